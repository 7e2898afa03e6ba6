"""Tests that caps apply to past spending plus an estimate, and that unknown prices are not
guessed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.config.settings import Caps, Settings
from sidecar.cost.book import CostBook
from sidecar.cost.caps import judge
from sidecar.cost.context_costs import SpendingSums
from sidecar.workspace.spending import Spending
from sidecar.workspace.state_folder import State
from tests.cases import read_rows
from tests.unit.cost_calls import report_call


def spending(folder: Path, caps: Caps) -> Spending:
    """Return the spending of a workspace."""
    return Spending(State(folder / "state"), Settings(cost=caps), "file:///a", "gpt-5")


def spend(book: CostBook, usd: float, workspace: str, session: str, days_ago: int = 0) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": usd}
    at = datetime.now(UTC) - timedelta(days=days_ago)
    report_call(book, usage=usage, workspace=workspace, session=session, at=at)


@pytest.mark.parametrize(
    ("spent", "estimate", "verdict", "kinds"), read_rows("cost", "cap_verdicts")
)
@pytest.mark.parametrize("span", ["", "session_", "workspace_", "branch_"])
def test_over_the_soft_cap_warns_and_over_the_hard_one_refuses(
    spent: str, estimate: str, verdict: str, kinds: list[str], span: str
) -> None:
    limits: dict[str, Any] = {f"{span}soft_cap_usd": Decimal(2), f"{span}hard_cap_usd": Decimal(5)}
    caps = Caps(**limits)
    so_far = msgspec.structs.replace(SpendingSums(), **{span.rstrip("_") or "day": Decimal(spent)})
    found = judge(caps, so_far, Decimal(estimate), "gpt-5")
    assert found.verdict == verdict
    assert [reason.kind for reason in found.reasons] == kinds


def test_the_reason_names_the_numbers() -> None:
    caps = Caps(session_hard_cap_usd=Decimal("0.5"))
    verdict = judge(caps, SpendingSums(session=Decimal("0.4")), Decimal("0.2"), "gpt-5")
    assert [reason.message for reason in verdict.reasons] == [
        "$0.40 spent in this session plus up to $0.20 for this call exceeds the hard cap of $0.50."
    ]


def test_the_reason_marks_a_sum_without_the_price_of_a_call_as_a_lower_bound() -> None:
    spent = SpendingSums(day=Decimal("2.5"), partial=frozenset({"day"}))
    reason = judge(Caps(soft_cap_usd=Decimal(2)), spent, None, "house-1").reasons[0]
    assert reason.message == "≥$2.50 spent today exceeds the soft cap of $2.00."


def test_caps_report_an_unknown_price() -> None:
    caps = Caps(soft_cap_usd=Decimal(2), hard_cap_usd=Decimal(5))
    verdict = judge(caps, SpendingSums(), None, "house-1")
    assert (verdict.verdict, verdict.estimate) == ("warn", None)
    assert [reason.kind for reason in verdict.reasons] == ["unpriced"]
    spent = judge(caps, SpendingSums(day=Decimal(6)), None, "house-1")
    assert (spent.verdict, [r.kind for r in spent.reasons]) == ("refuse", ["hardCap", "unpriced"])


def test_hard_cap_of_zero_refuses_priced_calls() -> None:
    caps = Caps(hard_cap_usd=Decimal(0))
    assert judge(caps, SpendingSums(), Decimal("0.000001"), "m").verdict == "refuse"
    assert judge(caps, SpendingSums(), Decimal(0), "m").verdict == "ok"
    assert judge(caps, SpendingSums(), None, "m").verdict == "warn"


def test_spend_by_day_session_and_workspace(book: CostBook) -> None:
    spend(book, 1.0, "file:///a", "s")
    spend(book, 0.5, "file:///a", "t")
    spend(book, 0.25, "file:///b", "s")
    spend(book, 8.0, "file:///a", "s", days_ago=2)
    spent = book.spend("file:///a", "s")
    amounts = Decimal("1.75"), Decimal(9), Decimal("9.5")
    assert (spent.day, spent.session, spent.workspace, spent.calls) == (*amounts, 3)


def test_spend_on_a_branch_of_the_workspace(book: CostBook) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 2}
    for branch, folder in (("topic", "a/b"), ("main", "a"), ("topic", "c")):
        report_call(book, usage=usage, branch=branch, workspace=f"file:///{folder}", session="s")
    assert book.spend("file:///a", "s", branch="topic").branch == 2
    assert book.spend("file:///a", "s", branch="").branch == 0
    caps = Caps(branch_hard_cap_usd=Decimal(1))
    found = judge(caps, book.spend("file:///a", "", branch="topic"), Decimal(1), "gpt-5")
    assert found.verdict == "refuse"
    assert "spent on this branch plus" in found.reasons[0].message
    assert judge(caps, book.spend("file:///a", ""), Decimal(1), "gpt-5").verdict == "ok"


def test_unpriced_calls_have_unknown_spend(book: CostBook) -> None:
    report_call(book, model="house-1", workspace="file:///a", session="s")
    spend(book, 0.5, "file:///a", "t")
    spent = book.spend("file:///a", "s")
    assert (spent.session, spent.workspace) == (Decimal(0), Decimal("0.5"))
    assert spent.unknown == {"session"}
    assert book.spend("file:///b", "new").unknown == set(), "no calls cost nothing"


def test_an_estimate_is_input_and_output_up_to_the_limit(book: CostBook) -> None:
    by_hand = Decimal("0.00725")  # (1800 * 1.25 + 500 * 10) / 10**6
    assert book.estimate("gpt-5", 1800, 500) == by_hand
    assert book.estimate("gpt-5", 1800) == Decimal("0.00225")
    assert book.estimate("nobody-knows-me", 1800) is None


def test_a_preflight_without_caps_reads_no_ledger(tmp_path: Path) -> None:
    found = spending(tmp_path, Caps()).preflight("gpt-5", 1000, 0, "s")
    assert (found.verdict, found.estimate, found.reasons) == ("ok", Decimal("0.00125"), ())
    assert not (tmp_path / "state").exists()


def test_a_preflight_counts_what_was_spent(tmp_path: Path) -> None:
    asked = spending(tmp_path, Caps(session_hard_cap_usd=Decimal(1)))
    spend(asked.book, 0.999, "file:///a", "s")
    fine = asked.preflight("gpt-5", 800, 0, "s")
    over = asked.preflight("gpt-5", 801, 0, "s")
    other = asked.preflight("gpt-5", 801, 0, "t")
    assert (fine.verdict, over.verdict, other.verdict) == ("ok", "refuse", "ok")
