"""Tests that lost caches of real agents are reported with their cause and cost, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.agents.adapters import Agent
from tests.e2e.agents.cache_losses import KEPT, false_losses, open_run, provoke_all


@pytest.mark.usefixtures("program")
def test_lost_caches_have_their_cause_and_cost(agent: Agent, tmp_path: Path) -> None:
    losses, others = provoke_all(open_run(agent.id, tmp_path))
    assert others == []
    for loss in losses:
        assert loss.is_right, loss
        assert loss.verdict_usd == pytest.approx(loss.usd), loss


@pytest.mark.slow
@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("what", KEPT)
def test_kept_caches_are_not_reported(agent: Agent, tmp_path: Path, what: str) -> None:
    assert false_losses(open_run(agent.id, tmp_path), KEPT[what]) == []
