"""Tests that the ledger's latest totals are displayed, in whichever order workers finish."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from sidecar.config.settings import Caps, Settings
from sidecar.cost.protocol import CostRecordParams
from sidecar.workspace.spending import Costs, Spending
from sidecar.workspace.state import State

if TYPE_CHECKING:
    from pathlib import Path


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
    assert (costs.today, costs.workspace) == (Decimal(2), Decimal(2))
    assert costs.severity == "error"
    assert costs.sessions == {"a": 1.0, "b": 1.0}
    every = spending.spent("a", every=True)
    _, third = spending.record(call("b"))
    costs.update(third)
    costs.update(every)
    assert (costs.workspace, costs.sessions) == (Decimal(3), {"a": 1.0, "b": 2.0})
