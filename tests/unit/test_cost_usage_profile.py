"""Tests the profile of agents' calls that `token-sidecar cost profile` writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prompt_file_costs import (
    MOST_BYTES,
    MOST_MODELS,
    AgentUsage,
    PrefixCalls,
    group_calls,
    profile_usage,
    prompt_file_cost,
    read_profile,
)
from sidecar.cost.sums import Scope
from tests.cases import read_rows
from tests.unit.cost_calls import call_of

START = datetime(2026, 11, 20, tzinfo=UTC)
WARM = Buckets(input=5, cache_read=20_000, cache_write_5m=400)
COLD = Buckets(input=5, cache_write_5m=12_000)
HOUR = Buckets(input=5, cache_read=9_000, cache_write_1h=3_000)


def record(tmp_path: Path, *calls: LedgerEvent) -> Ledger:
    """Record calls, one a minute."""
    ledger = Ledger(tmp_path / "ledger.db")
    timed = [
        msgspec.structs.replace(call, at=START + timedelta(minutes=minute))
        for minute, call in enumerate(calls)
    ]
    assert ledger.record_many(timed).refused == 0
    return ledger


def claude(buckets: Buckets, **fields: Any) -> LedgerEvent:
    return call_of("claude-code", buckets=buckets, **{"session": "a", **fields})


def usages(tmp_path: Path, *calls: LedgerEvent) -> tuple[AgentUsage, ...]:
    return profile_usage(record(tmp_path, *calls), Scope(), 30).agents


def test_the_first_call_of_a_session_writes_even_if_it_reads_the_system_prompt(
    tmp_path: Path,
) -> None:
    (usage,) = usages(tmp_path, claude(HOUR), claude(WARM), claude(COLD), claude(WARM))
    assert usage.main == PrefixCalls(reads=2, writes_5m=1, writes_1h=1)
    assert (usage.sessions, usage.calls) == (1, 4)
    assert (usage.model, usage.provider) == ("gpt-5", "openai")
    assert usage.prompt_tokens == (2 * 12_005 + 2 * 20_405) // 4


def test_prompt_files_are_billed_like_the_instructions_of_a_profile(tmp_path: Path) -> None:
    ledger = record(tmp_path, claude(HOUR), claude(WARM), claude(COLD), claude(WARM))
    groups = group_calls(ledger, ledger.prices, Scope(), [1_000])
    assert {group.bucket: group.calls for group in groups} == {
        "cache_read": 2,
        "cache_write_5m": 1,
        "cache_write_1h": 1,
    }
    found = prompt_file_cost({"claude-code": 1_000}, groups)
    assert (found.requests, found.cached, found.unpriced) == (4, 2, 0)


def test_a_first_call_without_cache_writes_is_uncached(tmp_path: Path) -> None:
    automatic = Buckets(input=4_000, cache_read=8_000)
    (usage,) = usages(tmp_path, claude(automatic), claude(automatic))
    assert usage.main == PrefixCalls(reads=1, uncached=1)


def test_a_summary_makes_the_next_call_write_again(tmp_path: Path) -> None:
    calls = claude(COLD), claude(WARM, category="summary"), claude(HOUR), claude(WARM)
    (usage,) = usages(tmp_path, *calls)
    assert usage.main == PrefixCalls(reads=2, writes_5m=1, writes_1h=1)
    assert usage.sessions == 1


def test_without_reported_writes_the_call_after_a_summary_is_uncached(tmp_path: Path) -> None:
    automatic = Buckets(input=4_000, cache_read=8_000)
    categories = "main", "summary", "main", "main"
    (usage,) = usages(tmp_path, *(claude(automatic, category=one) for one in categories))
    assert usage.main == PrefixCalls(reads=2, uncached=2)


def test_each_sub_agent_begins_with_a_write(tmp_path: Path) -> None:
    """Its first call reads the agent's own system prompt, which others have left in the cache."""
    start = claude(Buckets(cache_read=9_000, cache_write_5m=3_000), category="subagent")
    more = claude(Buckets(cache_read=12_000, cache_write_5m=500), category="subagent")
    (usage,) = usages(tmp_path, start, start, more, start, more, more)
    assert usage.subagents == PrefixCalls(reads=3, writes_5m=3)
    assert (usage.main.calls, usage.sessions) == (0, 0)


def test_an_expired_cache_is_written_again_though_the_system_prompt_is_read(
    tmp_path: Path,
) -> None:
    (usage,) = usages(tmp_path, claude(COLD), claude(WARM), claude(HOUR), claude(WARM))
    assert usage.main == PrefixCalls(reads=2, writes_5m=1, writes_1h=1)


def test_conversations_with_several_models_have_a_cache_each(tmp_path: Path) -> None:
    small = claude(Buckets(cache_read=100, cache_write_5m=100), model="gpt-5-mini")
    found = usages(tmp_path, claude(COLD), small, claude(WARM), claude(HOUR))
    assert {usage.model: usage.main.reads for usage in found} == {"gpt-5": 1, "gpt-5-mini": 0}
    assert {usage.model: usage.sessions for usage in found} == {"gpt-5": 1, "gpt-5-mini": 0}


def test_main_conversations_and_subagents_are_separate(tmp_path: Path) -> None:
    start = claude(HOUR, category="subagent")
    (usage,) = usages(tmp_path, claude(COLD), start, claude(WARM))
    assert usage.main == PrefixCalls(reads=1, writes_5m=1)
    assert usage.subagents == PrefixCalls(writes_1h=1)
    assert usage.sessions == 1


def test_the_most_frequent_agent_and_model_come_first(tmp_path: Path) -> None:
    codex = call_of("codex", session="c")
    found = usages(
        tmp_path,
        codex,
        codex,
        claude(WARM, model="gpt-5-mini"),
        claude(WARM),
        claude(WARM),
        call_of(session="plugin"),
    )
    names = [(usage.agent, usage.model) for usage in found]
    assert names == [("claude-code", "gpt-5"), ("claude-code", "gpt-5-mini"), ("codex", "gpt-5")]


def test_a_profile_has_a_limited_number_of_models(tmp_path: Path) -> None:
    calls = [claude(WARM, model=f"m{number}") for number in range(MOST_MODELS + 1)]
    profile = profile_usage(record(tmp_path, *calls), Scope(), 30)
    assert len(profile.agents) == MOST_MODELS
    path = tmp_path / "usage-profile.json"
    path.write_bytes(msgspec.json.encode(profile))
    assert read_profile(path) == profile
    more = msgspec.structs.replace(profile, agents=(*profile.agents, *profile.agents))
    path.write_bytes(msgspec.json.encode(more))
    with pytest.raises(ValueError, match="is not a usage profile"):
        read_profile(path)


def test_the_example_in_the_reference_is_a_profile(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cost.md").read_text("utf-8")
    path = tmp_path / "usage-profile.json"
    path.write_text(page.partition("## Usage profiles")[2].split("```")[1].removeprefix("json"))
    (usage,) = read_profile(path).agents
    assert usage.main == PrefixCalls(reads=3_770, writes_1h=120)
    assert usage.subagents == PrefixCalls(reads=280, writes_5m=40)
    assert msgspec.to_builtins(usage) == msgspec.json.decode(path.read_bytes())["agents"][0]


def test_a_profile_contains_no_ids_paths_or_times(tmp_path: Path) -> None:
    call = claude(COLD, session="secret-id", workspace="file:///secret/place", request_id="secret")
    written = msgspec.json.encode(profile_usage(record(tmp_path, call), Scope(), 30))
    assert b"secret" not in written
    assert b"2026" not in written


@pytest.mark.parametrize("text", read_rows("cost", "invalid_profiles"))
def test_a_file_that_is_not_a_profile_is_refused_with_a_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "usage-profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"usage-profile\.json .*`token-sidecar cost profile`"):
        read_profile(path)


def test_a_huge_file_is_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "usage-profile.json"
    path.write_text('{"days": 30}' + " " * MOST_BYTES)
    with pytest.raises(ValueError, match="larger than 1 MB"):
        read_profile(path)


def test_a_missing_profile_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        read_profile(tmp_path / "none.json")
