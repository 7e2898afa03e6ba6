"""Amp, Mistral Vibe, Continue and aider, as far as their files tell."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from benchmarks.agents import others
from benchmarks.agents.truth import Tokens, Truth
from sidecar.agents import ingest
from sidecar.agents.roots import Roots
from tests.unit.agents_world import World

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("model", ["claude-sonnet-5", "gpt-5.4"])
def test_amp(tmp_path: Path, model: str) -> None:
    world, truth = World(tmp_path, "amp"), Truth()
    path = others.amp(world.home / ".local/share/amp", world.root, truth, model=model)
    for _ in range(2):
        world.ingest()
    world.check(truth)
    world.check_context(truth)
    (shown,) = world.sessions().values()
    assert (shown.occupancy.limit, shown.title) == (others.WINDOW, "A title")
    path.write_bytes(path.read_bytes()[:500])
    world.ingest()
    world.check(truth)


def test_vibe(tmp_path: Path) -> None:
    world, truth = World(tmp_path, "vibe"), Truth()
    for calls in (2, 5):
        others.vibe(world.home / ".vibe", world.root, truth, calls=calls)
        world.ingest()
        world.check(truth)
    world.check_context(truth)
    assert {call.quality for call in world.calls} == {"estimate"}


def test_continue(tmp_path: Path) -> None:
    """Lines that are alike are calls of their own, and none is read twice."""
    world = World(tmp_path, "continue")
    for _ in range(2):
        others.continue_dev(world.home / ".continue")
        world.ingest()
    assert [one for _, one in world.recorded().values()] == [Tokens(900, output=40)] * 6
    assert world.sessions() == {}


def test_aider(tmp_path: Path) -> None:
    world = World(tmp_path, "aider")
    (world.root / ".aider.chat.history.md").write_text(others.AIDER)
    (shown,) = world.sessions().values()
    assert (shown.occupancy.tokens, shown.occupancy.quality) == (2_750, "estimate")
    assert shown.occupancy.error_percent == 75, "sums of calls, by another tokenizer, rounded"
    assert shown.model == "ollama/qwen3"
    stores = ingest.plan(world.readers, world.places, {}, Roots.of([world.root])).stores
    calls = [call for batch in ingest.read(world.readers, stores, {}) for call in batch.calls]
    assert [
        (one.model, one.usage.prompt_tokens, one.usage.cache_read_tokens, one.usage.output_tokens)
        for one in calls
    ] == [
        ("anthropic/claude-sonnet-5", 12_000, 0, 133),
        ("anthropic/claude-sonnet-5", 14_000, 3_500, 1_200),
        ("ollama/qwen3", 2_500, 0, 250),
    ]
    assert [one.cost_usd for one in calls] == [Decimal("0.04"), Decimal("0.06"), None]
    assert len({one.request for one in calls}) == 3
