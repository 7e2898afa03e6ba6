"""Tests that files from real agents yield the usage that a fake vendor reported to the agents.

The files come from the tests in tests/e2e/agents. Long texts have been shortened. Also tests that the
first request of the newest session is found.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.agents.claude import slug_of
from sidecar.agents import session_index
from sidecar.agents.first_requests import AgentUse, find_uses, read_sessions
from sidecar.agents.folders import Roots
from sidecar.agents.reader_registry import Sources
from sidecar.agents.readers import continue_dev
from sidecar.agents.stores import COMPACTED, ESTIMATED
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams
from tests.file_opens import recorded_opens
from tests.fixtures.agents import check
from tests.unit.agents_world import World


class Written(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """A recorded run of an agent, as described in tests/fixtures/agents/README.md."""

    folder: str
    agent: str
    contexts: tuple[int, ...]
    limit: int | None = None
    model: str = ""
    has_only_totals: bool = False
    missing_kind: str = ""
    has_cache_reads: bool = True

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls recorded by the vendor, except those that the agent does not write to files."""
        return check.billed_calls(self.folder)


RUNS = tuple(
    msgspec.convert({"folder": name, **run}, Written)
    for name, run in check.read_table("runs.toml").items()
)


def install(world: World, folder: str) -> None:
    """Copy the home folder of a recorded run to `world.home`."""
    check.install_run(folder, world.home, world.root)


@pytest.fixture(params=RUNS, ids=lambda run: run.folder)
def written(request: pytest.FixtureRequest) -> Written:
    run: Written = request.param
    return run


@pytest.fixture
def world(written: Written, tmp_path: Path) -> World:
    made = World(tmp_path, written.agent)
    install(made, written.folder)
    return made


def prompt_of(usage: dict[str, int]) -> int:
    return usage["uncached"] + usage["cache_read"] + usage["cache_write"]


def sums_of(calls: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the models and total tokens of all calls."""
    _, models, *tokens = zip(*calls, strict=True)
    return set(models).pop(), *map(sum, tokens)


def test_each_call_is_billed_once_as_the_vendor_reported(world: World, written: Written) -> None:
    world.ingest()
    assert world.ingest() == 0
    billed = {call.request_id: call for call in world.calls}.values()
    ours: list[tuple[Any, ...]] = [
        (one.category, one.model, one.buckets.prompt, one.buckets.completion,
         one.buckets.cache_read, one.buckets.cache_writes)
        for one in billed
    ]  # fmt: skip
    reported: list[tuple[Any, ...]] = [
        (call["kind"], call["model"], prompt_of(call["usage"]), call["usage"]["output"],
         call["usage"]["cache_read"], call["usage"]["cache_write"])
        for call in written.calls
    ]  # fmt: skip
    if not written.has_cache_reads:
        ours, reported = [call[:4] for call in ours], [call[:4] for call in reported]
    if written.has_only_totals:
        ours, reported = [sums_of(ours)], [sums_of(reported)]
    assert Counter(ours) == Counter(reported)
    assert {one.workspace for one in billed} == {str(world.root)}


def test_real_sessions_have_the_size_of_the_newest_call(world: World, written: Written) -> None:
    sessions = list(world.sessions().values())
    assert {session.tokens for session in sessions} == set(written.contexts)
    assert {session.limit for session in sessions} == {written.limit}
    assert {session.quality for session in sessions} == {"exact"}
    assert {session.model for session in sessions} == {written.model}
    assert {session.active for session in sessions} == {False}


@pytest.mark.parametrize(
    ("folder", "agent"), [("kimi-code-compaction", "kimi-code"), ("vibe-compaction", "vibe")]
)
def test_window_follows_the_settings_of_the_agent(tmp_path: Path, folder: str, agent: str) -> None:
    world = World(tmp_path, agent)
    install(world, folder)
    world.ingest()
    (config,) = world.home.rglob("config.toml")
    config.write_text(config.read_text().replace("200000", "100000"))
    assert world.ingest() == 0
    assert {session.limit for session in world.sessions().values()} == {100_000}


def test_kimi_code_shows_its_own_estimate_after_a_compaction(tmp_path: Path) -> None:
    world = World(tmp_path, "kimi-code")
    install(world, "kimi-code-compaction")
    (wire,) = world.home.glob(".kimi-code/sessions/*/*4ef2*/agents/main/wire.jsonl")
    lines = wire.read_text().splitlines(keepends=True)
    estimated = next(n for n, line in enumerate(lines) if "token_counting.rebased" in line)
    wire.write_text("".join(lines[: estimated + 1]))
    (shown,) = (session for name, session in world.sessions().items() if "4ef2" in name)
    assert (shown.tokens, shown.quality, shown.note) == (21_033, "estimate", ESTIMATED)
    wire.write_text("".join(lines[:estimated]))
    (shown,) = (session for name, session in world.sessions().items() if "4ef2" in name)
    assert (shown.tokens, shown.note) == (None, COMPACTED)


def test_kimi_code_shows_a_later_title_and_that_a_session_is_archived(tmp_path: Path) -> None:
    """Renaming or archiving a session adds no line to the conversation's file."""
    world = World(tmp_path, "kimi-code")
    install(world, "kimi-code-subagent")
    (before,) = world.sessions().values()
    assert not before.ended
    (state,) = world.home.rglob("state.json")
    changed = {"title": "Mine", "titleKind": "custom", "archived": True}
    state.write_text(json.dumps(json.loads(state.read_text()) | changed))
    (reader,) = world.readers
    assert reader.store_at(world.places, str(state)) in world.stores()
    billed = world.recorded()
    (shown,) = world.sessions().values()
    assert (shown.title, shown.ended) == ("Mine", True)
    assert world.recorded() == billed


def test_vibe_reads_no_generation_that_is_still_being_written(tmp_path: Path) -> None:
    """Vibe's journals already contain the calls of an unfinished generation."""
    world = World(tmp_path, "vibe")
    install(world, "vibe-compaction")
    world.ingest()
    before = world.recorded()
    other = World(tmp_path / "other", "vibe")
    install(other, "vibe-compaction")
    (generations,) = other.home.glob(".vibe/logs/session/unified/*/generations")
    newest = max(generations.iterdir())
    shutil.copytree(newest, generations / f".staging-{newest.name}-8f0e")
    other.ingest()
    assert other.recorded() == before


@pytest.mark.parametrize(
    ("folder", "agent", "subagent"),
    [
        ("kimi-code-subagent", "kimi-code", ("kimi-k2.5", 17_365, False)),
        ("opencode-subagent", "opencode", ("gpt-5", 7_121, False)),
        ("vibe-subagent", "vibe", ("devstral-2512", 8_353, False)),
    ],
)
def test_a_session_has_its_sub_agent_and_the_size_of_its_context(
    tmp_path: Path, folder: str, agent: str, subagent: tuple[str, int, bool]
) -> None:
    world = World(tmp_path, agent)
    install(world, folder)
    (session,) = world.shown()
    (found,) = session.subagents
    assert (found.model, found.tokens, bool(found.active)) == subagent
    assert {call.session for call in world.calls} == {session.id}


def test_codex_subagent_thread_is_listed_after_the_user_resumes_it(tmp_path: Path) -> None:
    world = World(tmp_path, "codex")
    install(world, "codex-resumed")
    world.ingest()
    thread = "01a2090a-7979-7a91-98b0-6dc061401d62"
    assert thread in world.sessions()
    first, resumed = (call for call in world.calls if call.buckets.prompt in (7_673, 7_751))
    assert (first.category, resumed.category) == ("subagent", "main")
    assert (first.session == thread, resumed.session == thread) == (False, True)


def test_gemini_cli_file_with_a_reply_is_preferred(tmp_path: Path) -> None:
    """Resuming a session creates a second file before the first prompt."""
    world = World(tmp_path, "gemini-cli")
    install(world, "gemini-cli-resumed")
    real, _ = sorted((world.home / ".gemini/tmp/p/chats").iterdir())
    lines = real.read_text().splitlines(keepends=True)
    replied = next(n for n, line in enumerate(lines) if '"tokens"' in line)
    real.write_text("".join(lines[: replied + 1]))
    (shown,) = world.sessions().values()
    assert (shown.path, shown.tokens, shown.active) == (str(real), 12_904, False)


def test_gemini_cli_resumption_in_the_same_file_keeps_the_size(tmp_path: Path) -> None:
    """A session that is resumed within a minute repeats its messages in the same file, without
    token counts.
    """
    world = World(tmp_path, "gemini-cli")
    install(world, "gemini-cli-aborted")
    (path,) = (world.home / ".gemini/tmp/p/chats").iterdir()
    lines = path.read_text().splitlines(keepends=True)
    replies = [n for n, line in enumerate(lines) if '"tokens"' in line]
    path.write_text("".join(lines[: replies[0] + 1]))
    for line in lines[replies[0] + 1 : replies[1]]:
        with path.open("a") as file:
            file.write(line)
        assert [session.tokens for session in world.sessions().values()] == [12_672]


@pytest.mark.parametrize("is_state_lost", [False, True])
def test_vibe_bills_calls_once_when_journals_are_deleted(
    tmp_path: Path, *, is_state_lost: bool
) -> None:
    """Vibe keeps only two generations and their journals. The totals include older calls."""
    world = World(tmp_path, "vibe")
    install(world, "vibe-compaction")
    world.ingest()
    billed = world.recorded()
    assert len(billed) == 4
    (journal,) = world.home.rglob("0000000000000009.jsonl")
    journal.unlink()
    shutil.rmtree(journal.parents[1] / "generations/0000000000000008")
    if is_state_lost:
        with world.ledger.transaction() as connection:
            connection.execute("UPDATE store SET state = x'', size = 0")
    assert world.ingest() == 0
    assert world.recorded() == billed
    assert is_state_lost or len(world.calls) == 4


def test_vibe_bills_a_subagent_once_when_journals_and_state_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, "vibe")
    install(world, "vibe-subagent")
    (child,) = world.home.glob(".vibe/logs/session/unified/child-*")
    saved = {path: path.read_text() for path in child.rglob("projection-state.json")}
    for path, text in saved.items():  # the files as they were before Vibe deleted the journal
        path.write_text(json.dumps(json.loads(text) | {"snapshot_sequence": 0}))
    world.ingest()
    billed = world.recorded()
    shutil.rmtree(child / "journal")
    for path, text in saved.items():
        path.write_text(text)
    version = session_index._VERSION + 1
    monkeypatch.setattr(session_index, "_VERSION", version)
    tables = (*session_index._TABLES[:-1], f"INSERT INTO index_form VALUES ({version})")  # noqa: S608
    monkeypatch.setattr(session_index, "_TABLES", tables)
    world.ingest()
    assert world.recorded() == billed


def test_vibe_bills_missed_calls_although_its_subagent_was_read_first(tmp_path: Path) -> None:
    world = World(tmp_path, "vibe")
    install(world, "vibe-subagent")
    (main,) = (path.parent for path in world.home.rglob("meta.json"))
    journals, kept = main / "journal", tmp_path / "kept"
    main.rename(kept)
    main.mkdir()
    shutil.copy(kept / "meta.json", main)
    world.ingest()  # a sub-agent's call is recorded for the main session
    assert [call.category for call in world.calls] == ["subagent"]
    shutil.rmtree(main)
    kept.rename(main)
    shutil.rmtree(journals)
    shutil.rmtree(main / "generations" / "0000000000000015")
    world.ingest()
    assert [call.category for call in world.calls] == ["subagent", "main"]
    assert len(world.recorded()) == 2


def test_vibe_session_without_its_description_is_read_later(tmp_path: Path) -> None:
    """No calls are recorded until the session's `meta.json` exists."""
    world = World(tmp_path, "vibe")
    install(world, "vibe-compaction")
    (meta,) = world.home.rglob("meta.json")
    described = meta.read_bytes()
    meta.unlink()
    (meta.parent / "CURRENT").touch()
    world.ingest()
    assert world.recorded() == {}
    meta.write_bytes(described)
    world.ingest()
    assert len(world.recorded()) == len(world.calls) == 4
    assert {call.category for call in world.calls} == {"main", "summary"}


def test_continue_costs_are_recorded(tmp_path: Path) -> None:
    world = World(tmp_path, "continue")
    install(world, "continue-abort")
    world.ingest()
    costs = {call.buckets.prompt: call.agent_cost for call in world.calls}
    assert (costs[2_538], costs[190_028]) == (Decimal("0.09"), Decimal("5.72"))


def test_continue_aborted_call_is_recorded_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Continue may save an aborted call's message up to an hour later."""
    world = World(tmp_path, "continue")
    install(world, "continue-abort")
    world.ingest()
    before = len(world.recorded())
    path = world.home / ".continue/sessions/9e8112b9-6139-4a59-8b2e-cfa33a265edf.json"
    session = json.loads(path.read_text())
    session["usage"]["promptTokens"] += 5_000
    path.write_text(json.dumps(session))
    world.ingest()
    assert len(world.recorded()) == before
    monkeypatch.setattr(continue_dev, "_SILENT_SECONDS", -1.0)
    world.ingest()
    assert len(world.recorded()) == before + 1
    calls = len(world.calls)
    world.ingest()
    assert len(world.calls) == calls


def claude_transcript(world: World) -> tuple[Path, list[str]]:
    """Install a real transcript as a session in `world.root`. Return its path and lines."""
    install(world, "claude-code-compaction")
    projects = world.home / ".claude" / "projects"
    (projects / "-work-p").rename(projects / slug_of(world.root))
    (path,) = (projects / slug_of(world.root)).glob("*.jsonl")
    return path, path.read_text().splitlines(keepends=True)


def test_claude_code_summary_calls_are_billed(tmp_path: Path) -> None:
    """Summaries are not messages. Their usage is derived from the session's total usage."""
    world = World(tmp_path, "claude-code")
    claude_transcript(world)
    world.ingest()
    (made,) = (call for call in world.calls if call.category == "summary")
    assert (made.buckets.prompt, made.buckets.completion) == (50_360, 809)
    assert (made.model, made.workspace) == ("claude-sonnet-4-5", str(world.root))


@pytest.mark.parametrize("is_watched", [False, True])
def test_claude_code_cost_is_recorded_beside_the_computed_cost(
    tmp_path: Path, *, is_watched: bool
) -> None:
    """The sum of all calls' costs equals the cost in the session's latest `cost-state` line."""
    world = World(tmp_path, "claude-code")
    path, lines = claude_transcript(world)
    for last in range(len(lines)) if is_watched else ():
        path.write_text("".join(lines[: last + 1]))
        world.ingest()
    path.write_text("".join(lines))
    world.ingest()
    totals = [json.loads(line)["totalCostUSD"] for line in lines if '"cost-state"' in line]
    book = CostBook(world.home / "state", zone=UTC)
    rows = book.detail(CostDetailParams(by=("session",))).rows
    book.close()
    assert sum(row.agent_cost_usd or 0 for row in rows) == pytest.approx(totals[-1])


def test_claude_code_subagent_calls_are_not_taken_for_a_summary(tmp_path: Path) -> None:
    """A sub-agent runs in the same turn as a compaction. Its calls are in another file."""
    world = World(tmp_path, "claude-code")
    path, lines = claude_transcript(world)
    boundary = next(line for line in lines if "compact_boundary" in line)
    third = next(n for n, line in enumerate(lines) if "third prompt" in line)
    path.write_text("".join([*lines[: third + 1], boundary, *lines[third + 1 :]]))
    world.ingest()
    (made,) = (call for call in world.calls if call.category == "summary")
    assert made.buckets.completion == 809


def test_claude_code_shows_its_own_estimate_after_a_compaction(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    path, lines = claude_transcript(world)
    after = next(n for n, line in enumerate(lines) if "after prompt" in line)
    path.write_text("".join(lines[:after]))
    (shown,) = world.sessions().values()
    assert (shown.tokens, shown.quality, shown.note) == (2_671, "estimate", ESTIMATED)
    assert (shown.active, shown.model) == (False, "claude-sonnet-4-5")


def test_claude_code_is_idle_after_an_interruption(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    path, lines = claude_transcript(world)
    assert [session.active for session in world.sessions().values()] == [False]
    asked = next(n for n, line in enumerate(lines) if "hang prompt" in line)
    for end in (asked + 1, len(lines) - 1):  # a prompt and a tool result
        path.write_text("".join(lines[:end]))
        assert [session.active for session in world.sessions().values()] == [True]


FIRST = {
    "kimi-code-subagent": 0,
    "kimi-code-compaction": 4,
    "kimi-code-fork": 0,
    "vibe-compaction": 0,
    "vibe-resumed": -1,
    "qwen-code-telemetry": -1,
    "qwen-code-compaction": 0,
    "gemini-cli-resumed": 0,
    "gemini-cli-aborted": 0,
    "opencode-subagent": 0,
    "claude-code-compaction": 0,
}
"""The position of the newest session's first call among the vendor's calls."""


def use_of(world: World, start: Path) -> AgentUse | None:
    sources = Sources(world.readers, world.places, Roots.of([world.root]))
    read_sessions(world.ledger, sources, 1 << 40)
    return find_uses(world.ledger, sources, start).get(world.readers[0].agent)


@pytest.mark.parametrize(
    "run", [run for run in RUNS if run.folder in FIRST], ids=lambda run: run.folder
)
def test_the_first_request_has_the_size_that_the_vendor_reported(
    run: Written, tmp_path: Path
) -> None:
    world = World(tmp_path, run.agent)
    install(world, run.folder)
    calls = [call for call in run.calls if call["kind"] == "main"]
    call = calls[FIRST[run.folder]]
    use = use_of(world, world.root)
    assert use is not None
    assert use.first is not None
    assert use.first.tokens == prompt_of(call["usage"])
    assert (use.model, use.first.model) == (run.model, run.model)
    (world.root / "inner").mkdir()
    assert use_of(world, world.root / "inner") is None


def test_sessions_without_times_have_no_first_request(tmp_path: Path) -> None:
    world = World(tmp_path, "continue")
    install(world, "continue-abort")
    use = use_of(world, world.root)
    assert use is not None
    assert (use.model, use.first) == ("gpt-4.1", None)


def test_only_so_many_bytes_are_read(tmp_path: Path) -> None:
    world = World(tmp_path, "kimi-code")
    install(world, "kimi-code-subagent")
    sources = Sources(world.readers, world.places, Roots.of([world.root]))
    read_sessions(world.ledger, sources, 10)
    with recorded_opens(world.home) as opened:
        assert find_uses(world.ledger, sources, world.root) == {}
    assert not [path for path in opened if path.endswith(".jsonl")], "the server has read them"
    read_sessions(world.ledger, sources, 1 << 40)
    assert find_uses(world.ledger, sources, world.root).keys() == {"kimi-code"}


def test_a_worktree_is_the_same_folder(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code")
    install(world, "claude-code-compaction")
    git = world.root / ".git"
    (git / "worktrees" / "other").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").write_text(f"gitdir: {git / 'worktrees' / 'other'}\n")
    (git / "worktrees" / "other" / "gitdir").write_text(f"{other / '.git'}\n")
    (git / "worktrees" / "other" / "commondir").write_text("../..\n")
    sources = Sources(world.readers, world.places, Roots.of([other]))
    read_sessions(world.ledger, sources, 1 << 40)
    found = find_uses(world.ledger, sources, other)
    assert found["claude-code"].first is not None
