"""Tests that the ledger's latest totals are displayed, in whichever order workers finish."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import msgspec

from sidecar.config.settings import Caps, Settings
from sidecar.conversations.context_protocol import ContextUsage, SessionInfo
from sidecar.cost.cost_protocol import CostRecordParams
from sidecar.workspace.shared_services import SharedServices
from sidecar.workspace.spending import Costs, Spending
from sidecar.workspace.state_folder import State
from sidecar.workspace.status import cost_status


def call(session: str) -> CostRecordParams:
    """Return a call that costs about one dollar."""
    usage = {"prompt_tokens": 400_000, "completion_tokens": 0}
    return CostRecordParams(model="gpt-4o", usage=usage, session=session)


def test_older_sums_never_replace_newer_ones(tmp_path: Path) -> None:
    settings = Settings(cost=Caps(soft_cap_usd=Decimal("0.5"), hard_cap_usd=Decimal("1.5")))
    spending = Spending(State(tmp_path), settings, "file:///ws", "gpt-4o")
    _, first = spending.record(call("a"))
    _, second = spending.record(call("b"))
    assert first is not None
    assert second is not None
    costs = Costs()
    for late in (second, first):
        costs.update(late)
    assert (costs.sums.today, costs.sums.workspace) == (Decimal(2), Decimal(2))
    assert costs.sums.severity == "error"
    assert [costs.session_usd(name) for name in ("a", "b")] == [1.0, 1.0]
    every = spending.spent("a", every=True)
    _, third = spending.record(call("b"))
    costs.update(third)
    costs.update(every)
    assert costs.sums.workspace == Decimal(3)
    assert [costs.session_usd(name) for name in ("a", "b")] == [1.0, 2.0]


def test_sums_without_the_price_of_a_call_are_lower_bounds(tmp_path: Path) -> None:
    spending = Spending(State(tmp_path), Settings(), "file:///ws", "gpt-4o")
    costs = Costs()
    costs.update(spending.record(call("a"))[1])
    assert "≥" not in shown(costs, "a")
    costs.update(spending.record(msgspec.structs.replace(call("a"), model="house-1"))[1])
    costs.update(spending.record(call("b"))[1])
    for after_a_restart in (costs, Costs()):
        after_a_restart.update(spending.spent("", every=True))
        assert "| This session | ≥$1.00 at" in shown(after_a_restart, "a")
        assert "| This session | $1.00 at" in shown(after_a_restart, "b")
        assert "| Today | ≥$2.00 |" in shown(after_a_restart, "b")


def shown(costs: Costs, session: str) -> str:
    """Return the tooltip of the status that shows a session of Codex."""
    info = SessionInfo(id=session, source="codex", updated_at="")
    status = cost_status(costs, ContextUsage(session=info))
    assert status is not None
    return status.tooltip


def test_each_exceeded_cap_is_reported_once(tmp_path: Path) -> None:
    caps = Caps(soft_cap_usd=Decimal("0.5"), hard_cap_usd=Decimal("1.5"))
    services = SharedServices(state=State(tmp_path))
    workspace = services.roots.add("file:///ws")
    spending = Spending(services.state, Settings(cost=caps), "file:///ws", "gpt-4o")
    warnings = list[str]()
    services.listeners.append(
        lambda event: warnings.append(event.warning.message) if event.warning else None
    )
    for session in "abcd":
        services.update_costs(workspace, spending.record(call(session))[1])
        services.update_costs(workspace, spending.spent(session))
    assert warnings == [
        "$1.00 spent today exceeds the soft cap of $0.50.",
        "$2.00 spent today exceeds the hard cap of $1.50.",
    ]
    assert "| Cap | $4.00 spent today exceeds the hard cap of $1.50. |" in shown(
        workspace.costs, "a"
    )
    services.workers.close()
