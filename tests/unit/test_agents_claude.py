"""Tests the reader for Claude Code: each call is recorded once, and context sizes are right."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import MODEL, ClaudeHome, Transcript, everyday, slug_of, usage
from benchmarks.agents.truth import Tokens, append, stamp
from sidecar.agents.file_reading import parse_iso_time
from sidecar.agents.stores import COMPACTED, NO_USAGE
from sidecar.cli.group import main
from sidecar.cost.cache_losses import CacheLoss, LossCause
from tests.unit.agents_world import World

Line = dict[str, Any]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "claude-code")


@pytest.fixture
def home(world: World) -> ClaudeHome:
    return ClaudeHome(world.home / ".claude")


@pytest.fixture
def session(world: World, home: ClaudeHome) -> Transcript:
    made = home.session(world.root)
    made.user()
    made.reply()
    return made


@pytest.mark.parametrize("seed", range(5))
def test_every_call_counts_once(world: World, seed: int) -> None:
    home = ClaudeHome(world.home / ".claude", seed=seed)
    for _ in range(3):
        session = everyday(home, world.root)
        copy = session.copy(background=seed % 2 == 0, keeps=None if seed % 3 else 12)
        copy.reply()
        copy.half_line()
    world.check_calls(home.truth)


def test_every_session_has_the_right_size(world: World, home: ClaudeHome) -> None:
    sessions = [everyday(home, world.root, turns) for turns in (1, 4, 6)]
    sessions[0].copy().reply()
    sessions[2].compact()
    world.check_context(home.truth)


def test_only_new_bytes_are_read(world: World, home: ClaudeHome, session: Transcript) -> None:
    world.ingest()
    size = session.path.stat().st_size
    assert world.bytes_read == size
    assert world.ingest() == 0
    session.reply()
    assert world.ingest() == session.path.stat().st_size - size
    world.check_calls(home.truth)


def test_reply_read_before_its_last_line_counts_once(world: World, home: ClaudeHome) -> None:
    session = home.session(world.root)
    session.reply(blocks=4)
    whole = session.path.read_bytes()
    for cut in range(0, len(whole), 301):
        session.path.write_bytes(whole[:cut])
        world.ingest()
    session.path.write_bytes(whole)
    world.check_calls(home.truth)


def test_rewritten_file_is_read_again(world: World, home: ClaudeHome, session: Transcript) -> None:
    world.ingest()
    history = [*session.history]
    session.path.unlink()
    append(session.path, {"type": "mode", "mode": "default"}, *history)
    session.reply()
    world.check_calls(home.truth)


def test_truncated_file_that_grows_again_counts_once(
    world: World, home: ClaudeHome, session: Transcript
) -> None:
    session.reply()
    world.ingest()
    lines = session.path.read_bytes().splitlines(keepends=True)
    session.path.write_bytes(b"".join(lines[:-2]))
    for _ in range(3):
        session.reply()
    world.check_calls(home.truth)


def test_deleted_session_stays_billed(world: World, home: ClaudeHome, session: Transcript) -> None:
    world.ingest()
    session.path.unlink()
    world.ingest()
    assert world.states() == {}
    world.check_calls(home.truth)
    assert world.sessions() == {}
    with world.ledger.reader() as connection:
        assert connection.execute("SELECT count(*) FROM agent_session").fetchone() == (0,)


def test_calls_without_ids_count_once(world: World, home: ClaudeHome) -> None:
    session = home.session(world.root)
    tokens = Tokens(5, 0, 0, 0, 6)
    for fields in ({"requestId": "req_1"}, {}):
        body = session.message("", tokens, id=None)
        line = session.line("assistant", message=body, **fields)
        session.write(line)
        home.truth.calls[fields.get("requestId", line["uuid"])] = (session.id, tokens)
    world.ingest()
    world.check_calls(home.truth)


def test_cache_writes_are_split_by_lifetime(world: World, home: ClaudeHome) -> None:
    session = home.session(world.root)
    split = {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 50}
    for name, total in (("msg_a", 0), ("msg_b", 100)):
        numbers = usage(Tokens(1, 0, total, 0, 2), cache_creation=split)
        session.write(
            session.line("assistant", message=session.message(name, Tokens(), usage=numbers))
        )
        session.took(name, Tokens(1, 0, max(total, 80), 50, 2))
    world.check(home.truth)
    assert [call.buckets.cache_write_5m for call in world.calls] == [30, 30]


@pytest.mark.parametrize(
    ("requested", "hour", "minutes"), [("1h", 80, 0), ("5m", 0, 80), (None, 0, 0)]
)
def test_a_line_may_say_how_long_its_cache_writes_live(
    world: World, home: ClaudeHome, requested: str | None, hour: int, minutes: int
) -> None:
    session = home.session(world.root)
    numbers = usage(Tokens(1, 0, 80, 0, 2), cache_creation=None)
    message = session.message("msg_a", Tokens(), usage=numbers)
    session.write(session.line("assistant", message=message, promptCacheRequested=requested))
    session.took("msg_a", Tokens(1, 0, 80, hour, 2))
    world.check(home.truth)
    assert [call.buckets.cache_write_5m for call in world.calls] == [minutes]


def test_message_with_several_calls_is_billed_as_their_total(
    world: World, home: ClaudeHome
) -> None:
    session = home.session(world.root)
    parts = [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
        {
            "type": "advisor_message",
            "model": "claude-fable-5",
            "input_tokens": 9,
            "output_tokens": 3,
        },
    ]
    numbers = usage(Tokens(23_000, 0, 0, 0, 1_000), iterations=parts)
    session.write(
        session.line("assistant", message=session.message("msg_a", Tokens(), usage=numbers))
    )
    session.took("msg_a", Tokens(203_000, 0, 0, 0, 4_500))
    home.truth.calls["msg_a/0"] = (session.id, Tokens(9, 0, 0, 0, 3))
    home.truth.context[session.id] = 24_000
    world.check(home.truth)


def test_unfinished_reply_is_billed(world: World, home: ClaudeHome, session: Transcript) -> None:
    body = session.message("msg_a", Tokens(1, 0, 0, 0, 1), last=False)
    session.write(session.line("assistant", message=body))
    world.ingest()
    assert world.recorded()["msg_a"][1].output == 1


def test_summary_does_not_set_the_context_size(world: World, session: Transcript) -> None:
    session.compact()
    (shown,) = world.sessions().values()
    assert shown.tokens is None
    assert (shown.compacted, shown.note) == (True, COMPACTED)
    assert shown.model == session.model


def summaries(world: World) -> list[tuple[str, int, int]]:
    """Return the model, prompt tokens and output tokens of each call that created a summary."""
    world.ingest()
    made = (call for call in world.calls if call.category == "summary")
    return [(call.model, call.buckets.prompt, call.buckets.completion) for call in made]


def cost_state(session: Transcript, **models: Tokens) -> None:
    """Write a `cost-state` line with each model's total usage."""
    line = session.cost_state(Tokens())
    used = line["modelUsage"].pop(session.model)
    for model, tokens in models.items():
        name = model.replace("_", "-") + ("[1m]" if "opus" in model else "")
        line["modelUsage"][name] = {
            **used, "inputTokens": tokens.fresh, "outputTokens": tokens.output,
        }  # fmt: skip
    session.write(line)


def test_summary_is_billed_to_the_compacted_model(world: World, session: Transcript) -> None:
    """The total includes titles, web searches and earlier turns, and these may use other models."""
    opus, haiku = Tokens(900_000, output=9_000), Tokens(20_000, output=500)
    cost_state(session, claude_opus_5=opus)
    session.model = "claude-sonnet-5"
    session.write(session.line("assistant", message=session.message("m", Tokens(10, output=1))))
    session.compact()
    sonnet = Tokens(150_010, output=3_001)
    cost_state(session, claude_opus_5=opus, claude_sonnet_5=sonnet, claude_haiku_4_5=haiku)
    assert summaries(world) == [("claude-sonnet-5", 150_000, 3_000)]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_summary_in_the_first_turn_is_billed(
    world: World, home: ClaudeHome, *, is_resumed: bool
) -> None:
    """Claude Code starts its totals at 0 each time it is launched."""
    session = home.session(world.root)
    if is_resumed:
        cost_state(session, claude_opus_5=Tokens(900_000, output=9_000))
        world.ingest()
    session.write(session.line("assistant", message=session.message("m", Tokens(10, output=1))))
    session.compact()
    cost_state(session, claude_opus_5=Tokens(150_010, output=3_001))
    assert summaries(world) == [(session.model, 150_000, 3_000)]


def test_agent_cost_of_a_resumed_session_counts_in_full(world: World, session: Transcript) -> None:
    """Claude Code starts its totals at 0 each time it is launched, even in a resumed session."""
    for cost in (8.0, 2.0):
        session.reply()
        line = session.cost_state(Tokens())
        line["modelUsage"][session.model]["costUSD"] = cost
        session.write(line)
        world.ingest()
    costs = {call.request_id: call.agent_cost for call in world.calls if call.agent_cost}
    assert sum(map(float, costs.values())) == 10.0


def test_error_does_not_change_the_context_size(
    world: World, home: ClaudeHome, session: Transcript
) -> None:
    """After an error, another program's status line wrongly shows an empty context."""
    session.user()
    session.synthetic()
    world.check_context(home.truth)
    assert [one.active for one in world.sessions().values()] == [False]


def test_subagent_does_not_change_the_context_size(
    world: World, home: ClaudeHome, session: Transcript
) -> None:
    """Other programs' status lines wrongly show the sub-agent's context."""
    session.sidechain()
    session.subagent()
    world.check_context(home.truth)
    (subagent,) = world.sessions()[session.id].subagents
    assert (subagent.tokens, subagent.model, subagent.active) == (1_043, MODEL, False)


def test_zero_tokens_are_not_a_context_size(world: World, home: ClaudeHome) -> None:
    session = home.session(world.root)
    session.write(session.line("assistant", message=session.message("msg_a", Tokens())))
    (shown,) = world.sessions().values()
    assert (shown.tokens, shown.note) == (None, NO_USAGE)


def test_broken_lines_are_counted_and_skipped(
    world: World, home: ClaudeHome, session: Transcript
) -> None:
    with session.path.open("a", encoding="utf-8") as file:
        file.write(
            '{"type":"assistant","message":{"usage":{"input_tokens":-5}}}\n{"usage" broken\n\n'
        )
    session.reply()
    world.check(home.truth)
    assert world.skipped[str(session.path)] == 2


def test_prompt_over_the_small_window_implies_the_large_window_of_its_model(
    world: World, home: ClaudeHome
) -> None:
    session = home.session(world.root)
    session.cached = 250_000
    for write in (session.reply, session.compact, session.reply, session.compact):
        write()
        assert [one.limit for one in world.sessions().values()] == [1_000_000]
    session.model = "claude-haiku-4-5"
    session.reply()
    assert [one.limit for one in world.sessions().values()] == [None]


def test_environment_can_disable_the_large_window(tmp_path: Path) -> None:
    world = World(tmp_path, "claude-code", {"CLAUDE_CODE_DISABLE_1M_CONTEXT": "1"})
    ClaudeHome(tmp_path / ".claude").session(world.root).reply()
    assert [one.limit for one in world.sessions().values()] == [200_000]


def test_projects_with_the_same_folder_name_are_distinguished(
    world: World, home: ClaudeHome
) -> None:
    twin = world.root.with_name("my-proj.ect")
    twin.mkdir()
    mine, other = home.session(world.root), home.session(twin)
    assert mine.project == other.project
    mine.reply()
    other.reply()
    assert set(world.sessions()) == {mine.id}
    assert set(world.sessions(twin)) == {other.id}


def test_linked_long_and_renamed_project_folders_are_found(world: World, home: ClaudeHome) -> None:
    below = world.root / ("deep" * 50) / "er"
    below.mkdir(parents=True)
    link = world.home / "link"
    link.symlink_to(world.root)
    found = [
        home.session(below),
        home.session(world.root, slug="renamed"),
    ]
    for one in found:
        one.reply()
    home.session(world.home).reply()
    assert set(world.sessions(link)) == {one.id for one in found}


def test_git_worktrees_belong_to_the_same_project(world: World, home: ClaudeHome) -> None:
    tree = world.home / "trees" / "one"
    tree.mkdir(parents=True)
    private = world.root / ".git" / "worktrees" / "one"
    private.mkdir(parents=True)
    (private / "gitdir").write_text(f"{tree}/.git\n")
    (private / "commondir").write_text("../..\n")
    (tree / ".git").write_text(f"gitdir: {private}\n")
    session = home.session(tree)
    session.reply()
    assert set(world.sessions()) == {session.id}
    main = home.session(world.root)
    main.reply()
    assert set(world.sessions(tree)) == {session.id, main.id}


def test_titles_come_from_the_agent(world: World, session: Transcript) -> None:
    for fields, title in (
        ({"type": "summary", "summary": "Old"}, "Old"),
        ({"type": "ai-title", "aiTitle": "Named"}, "Named"),
        ({"type": "custom-title", "customTitle": "Mine"}, "Mine"),
        ({"type": "ai-title", "aiTitle": "Later"}, "Mine"),
    ):
        session.write(fields)
        assert [one.title for one in world.sessions().values()] == [title]
    stored = (world.home / "state" / "ledger.db").read_bytes() + b"".join(world.states().values())
    assert b"Mine" not in stored


def test_running_turn_is_active(world: World, home: ClaudeHome) -> None:
    session = home.session(world.root)
    session.user()
    session.write(
        session.line("assistant", message=session.message("m", Tokens(9), stop_reason="tool_use"))
    )
    assert [one.active for one in world.sessions().values()] == [True]
    session.tool_result()
    assert [one.active for one in world.sessions().values()] == [True]
    session.reply()
    assert [one.active for one in world.sessions().values()] == [False]


BLOCKED: dict[str, Any] = {
    "subtype": "informational",
    "content": "UserPromptSubmit operation blocked by hook: enough",
    "preventContinuation": True,
}
STOPPED = {"type": "hook_stopped_continuation", "message": "enough", "hookEvent": "PreToolUse"}


def test_a_session_is_idle_after_a_hook_stopped_it(world: World, home: ClaudeHome) -> None:
    session = home.session(world.root)
    session.write(session.line("system", **BLOCKED))
    assert [one.active for one in world.sessions().values()] == [False]
    session.user()
    session.reply(stop_reason="tool_use")
    session.tool_result()
    session.write(session.line("attachment", attachment=STOPPED))
    assert [one.active for one in world.sessions().values()] == [False]
    session.user()
    assert [one.active for one in world.sessions().values()] == [True]


@pytest.mark.parametrize(
    ("reason", "active"),
    [
        *[(reason, False) for reason in ("refusal", "max_tokens", "stop_sequence")],
        *[(reason, True) for reason in (None, "tool_use", "pause_turn")],
    ],
)
def test_turn_runs_while_the_model_continues(
    world: World, session: Transcript, reason: str | None, active: bool
) -> None:
    session.user()
    session.reply(stop_reason=reason)
    assert [one.active for one in world.sessions().values()] == [active]


def test_line_without_a_time_has_the_time_of_the_previous_line(
    world: World, home: ClaudeHome, session: Transcript
) -> None:
    """The previous line may be a prompt, or a line that was read in an earlier step."""
    session.user()
    asked = parse_iso_time(stamp(home.clock.now))
    for name in ("msg_a", "msg_b"):
        reply = session.line("assistant", message=session.message(name, Tokens(5, 6, 7, 0, 8)))
        del reply["timestamp"]
        session.write(reply)
        session.took(name, Tokens(5, 6, 7, 0, 8))
        world.ingest()
    world.check_calls(home.truth)
    assert [call.at for call in world.calls[-2:]] == [asked, asked]


def sent(request: str, messages: str, *, base: str = "", keep: int = 0, **fields: Any) -> Line:
    """Return an `api-request` line. Each letter stands for the hash of a message."""
    made = {"type": "api-request", "id": request, "shapeHash": "s", "keep": keep}
    return made | {"base": base or None, "tail": [*messages], "params": {}} | fields


WARM = Tokens(10, 50_000, 500, 0, 100)
EFFORT: Line = {"params": {"output_config": {"effort": "low"}}}


@pytest.mark.parametrize(
    ("request_line", "cause"),
    [
        (sent("r3", "de", base="r2", keep=3), LossCause.UNEXPLAINED),
        (sent("r3", "abcde"), LossCause.UNEXPLAINED),
        (sent("r3", "abcde", shapeHash="t"), LossCause.SHAPE),
        (sent("r3", "abcde", **EFFORT), LossCause.EFFORT),
        (sent("r3", "xcde", base="r2", keep=1), LossCause.HISTORY),
        (sent("r3", "axcde"), LossCause.HISTORY),
        (sent("r3", "x", base="r2", keep=1), None),
        (sent("r3", "ax"), None),
    ],
)
def test_requests_tell_why_the_cache_was_lost(
    world: World, home: ClaudeHome, request_line: Line, cause: LossCause | None
) -> None:
    session = home.session(world.root)
    requests = [sent("r1", "a"), sent("r2", "bc", base="r1", keep=1), request_line]
    all_tokens = WARM, WARM, WARM._replace(read=0, write=50_500)
    for tokens, request in zip(all_tokens, requests, strict=True):
        session.write(request)
        name = f"msg_{request['id']}"
        body = session.message(name, tokens)
        session.write(session.line("assistant", requestRef=request["id"], message=body))
        world.ingest()
    losses = [call.loss for call in world.recorded_calls()]
    wanted = CacheLoss() if cause is None else CacheLoss(50_500, cause)
    assert losses == [CacheLoss(), CacheLoss(), wanted]


def test_the_vendors_diagnosis_and_compactions_are_causes(world: World, home: ClaudeHome) -> None:
    session = home.session(world.root)
    lost = WARM._replace(read=0, write=50_500)
    reason: Line = {"diagnostics": {"cache_miss_reason": {"type": "tools_changed"}}}
    session.write(session.line("assistant", message=session.message("m1", WARM)))
    session.write(session.line("assistant", message=session.message("m2", lost, **reason)))
    session.write(session.line("system", subtype="compact_boundary"))
    session.write(session.line("assistant", message=session.message("m3", lost)))
    world.ingest()
    causes = [call.loss.cause for call in world.recorded_calls() if call.loss]
    assert causes == [None, LossCause.TOOLS, LossCause.COMPACTION]


def _null_id(session: Transcript, tokens: Tokens) -> dict[str, Any]:
    tool = {"type": "tool_use", "id": "toolu_1", "name": "Edit", "input": {"id": None}}
    return session.message("msg_a", tokens, content=[tool])


def _null_speed(session: Transcript, tokens: Tokens) -> dict[str, Any]:
    return session.message("msg_a", tokens, usage=usage(tokens, speed=None, iterations=None))


def _usage_in_a_tool(session: Transcript, tokens: Tokens) -> dict[str, Any]:
    tool = {"type": "tool_use", "id": None, "input": {"message": {"usage": {"input_tokens": 9}}}}
    return session.message("msg_a", tokens, content=[tool])


@pytest.mark.parametrize("spaces", [False, True], ids=["compact", "spaces after the colon"])
@pytest.mark.parametrize("make", [_null_id, _null_speed, _usage_in_a_tool])
def test_nulls_and_spaces_in_lines_are_accepted(
    world: World, home: ClaudeHome, make: Any, spaces: bool
) -> None:
    session = home.session(world.root, spaces=spaces)
    tokens = Tokens(5, 6, 7, 0, 8)
    session.write(session.line("assistant", requestId="r", message=make(session, tokens)))
    session.took("msg_a", tokens)
    world.check(home.truth)


def test_reply_with_missing_request_ids_counts_once(world: World, home: ClaudeHome) -> None:
    """A gateway omits the request id in some lines. The message id identifies the reply."""
    session = home.session(world.root)
    for fields in ({}, {"requestId": "req_1"}, {"requestId": None}, {"requestId": ""}):
        body = session.message("msg_a", Tokens(5, 6, 7, 0, 8))
        session.write(session.line("assistant", message=body, **fields))
    session.took("msg_a", Tokens(5, 6, 7, 0, 8))
    world.check_calls(home.truth)


def test_long_paths_with_the_same_prefix_are_two_projects(world: World, home: ClaudeHome) -> None:
    """A project folder's name contains only the first 200 characters of the path."""
    deep = world.root / ("a" * 120) / ("b" * 120)
    folders = [deep / "one", deep / "two"]
    sessions = []
    for folder in folders:
        folder.mkdir(parents=True)
        sessions.append(home.session(folder, slug=slug_of(folder)[:200]))
        sessions[-1].reply()
    assert [set(world.sessions(folder)) for folder in folders] == [
        {session.id} for session in sessions
    ]


def test_window_of_a_million_is_known_from_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transcript's model name lacks `[1m]`, and no call has exceeded 200,000 tokens yet."""
    root = tmp_path / "home" / "app"
    root.mkdir(parents=True)
    monkeypatch.chdir(root)
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    session = home.session(root)
    session.cached = 150_000
    session.reply()
    data = json.loads(CliRunner().invoke(main, ["usage", "--json"]).output)
    assert (data["tokens"], data["limit"]) == (home.truth.context[session.id], 1_000_000)


def test_projects_in_one_custom_folder_are_distinguished(tmp_path: Path) -> None:
    """All projects share the folder that `CLAUDE_CODE_PROJECT_DIR_NAME` defines."""
    world = World(tmp_path, "claude-code", {"CLAUDE_CODE_PROJECT_DIR_NAME": "mine"})
    home = ClaudeHome(tmp_path / ".claude")
    other = tmp_path / "other"
    other.mkdir()
    sessions = [home.session(root, slug="mine") for root in (world.root, world.root, other)]
    for age, session in enumerate(reversed(sessions)):
        session.reply()
        os.utime(session.path, (2_000_000_000 - age, 2_000_000_000 - age))
    assert set(world.sessions()) == {one.id for one in sessions[:2]}
    assert set(world.sessions(other)) == {sessions[2].id}
