"""Tests that our numbers for real coding agents equal the vendor's numbers."""

from __future__ import annotations

import random

import pytest

from sidecar.models.catalogue import prompt_limit_of
from tests.e2e.agents.adapters import Agent
from tests.e2e.agents.scene import Scene
from tests.fake_vendor import Reply

GREET = "Greet me in one line."
CONTINUE = "Say it again, please."
WORK = "Run the command that waits."
DELEGATE = "Let somebody look into the cellar."
CELLAR = "Look into the cellar and report."
LONG = "Read the whole archive."
CALLS_PER_TURN = 8


def growing_sizes(agent: Agent) -> list[int]:
    """Return prompt sizes that grow until the window is full, as in a turn with many tool calls."""
    end = min(agent.window, prompt_limit_of(agent.model) or agent.window)
    rng, size, sizes = random.Random(agent.name), end / 10, list[int]()
    while size < end:
        sizes.append(int(size))
        size += end / 40 * rng.lognormvariate(0, 0.5)
    return sizes


def test_tool_call(scene: Scene) -> None:
    """While the tool runs, the status shows the context of the call that requested it."""
    flag = scene.root / "go-on"
    command = f"until [ -e {flag} ]; do sleep 0.1; done"
    scene.script.on(WORK, Reply("", (scene.agent.shell(command),)), Reply("The command is done."))
    program = scene.start(WORK)
    assert scene.vendor.wait_until(lambda _: len(scene.vendor.billed("main")) == 1, 60)
    scene.check_context(scene.vendor.billed("main")[0], "context while a tool runs")
    scene.check_state("running", "state while a tool runs")
    flag.touch()
    ended = program.wait(60)
    assert ended.code == 0, ended.output
    scene.check_context(scene.vendor.billed("main")[-1])
    scene.check_state(scene.agent.state_at_end)
    scene.check("calls of the turn", len(scene.vendor.billed("main")), 2)
    scene.check_bill()
    scene.assert_no_differences()


def test_subagent(scene: Scene) -> None:
    """A sub-agent's calls are billed, but do not change the session's context size."""
    delegate = Reply("", (scene.agent.subagent(CELLAR),))
    scene.script.on(DELEGATE, delegate, Reply("It is empty.", after="subagent"))
    scene.script.on(CELLAR, Reply("Nothing there."), kind="subagent")
    scene.turn(DELEGATE)
    scene.check("sub-agent's calls", len(scene.vendor.billed("subagent")) > 0, True)
    scene.check_state(scene.agent.state_at_end)
    scene.check_bill()
    scene.assert_no_differences()


def test_refusal_and_retry(scene: Scene) -> None:
    scene.script.on(GREET, Reply(status=429), Reply("Hello after all."))
    scene.turn(GREET)
    scene.check("answered calls", len(scene.vendor.billed("main")), 1)
    scene.check_bill()
    scene.assert_no_differences()


def test_abort(scene: Scene) -> None:
    """An aborted reply does not change the context. The session becomes idle."""
    scene.script.on(GREET, Reply("Hello there."))
    scene.script.on(LONG, Reply("Let me", hangs=True))
    scene.turn(GREET)
    program = scene.start(LONG, resume=True)
    assert scene.vendor.wait_until(lambda calls: any(call.reply.hangs for call in calls), 60)
    program.interrupt()
    program.wait(30)
    scene.check_context(scene.vendor.billed("main")[-1], "context after the abort")
    scene.check_state(scene.agent.state_at_end)
    scene.turn(CONTINUE, resume=True)
    scene.check_bill()
    scene.assert_no_differences()


@pytest.mark.timeout(400)
def test_growing_session(scene: Scene) -> None:
    """All views in two editors agree while a session fills its context window.

    There is only one session, each call is recorded once, and the number of remaining calls can be
    forecast when the window is half full.
    """
    scene.open_editor()
    agent, sizes = scene.agent, growing_sizes(scene.agent)
    starts = range(0, len(sizes), CALLS_PER_TURN)
    turns = [sizes[start : start + CALLS_PER_TURN] for start in starts]
    if not agent.resumes:
        half = sum(size < sizes[-1] / 2 for size in sizes) + 1
        turns = [sizes[:half] if agent.has_tools else sizes[:1]]
    forecasts: dict[int, int | None] = {}
    for number, turn in enumerate(turns):
        prompt = f"Read part {chr(ord('A') + number)} of the archive."
        # Some agents stop when the model repeats a command.
        replies = [
            Reply("Reading.", (agent.shell(f"true {size}"),), prompt_tokens=size)
            for size in turn[:-1]
        ]
        # An agent that counts tokens itself does not use the vendor's numbers.
        size = None if agent.band_percent else turn[-1]
        scene.script.on(prompt, *replies, Reply("Done.", prompt_tokens=size))
        scene.turn(prompt, resume=number > 0)
        if scene.vendor.billed("summary"):
            scene.turn(CONTINUE, resume=True)
        scene.check_views()
        if scene.vendor.billed("summary"):
            break
        forecasts[len(scene.vendor.billed("main"))] = scene.calls_left()
    scene.check_forecast(forecasts, sizes)
    scene.check("sessions", len(scene.sidecar.sessions()), 1)
    scene.check_session(title=agent.title("Read part A of the archive."))
    scene.check_bill()
    scene.assert_no_differences()


def test_compaction(scene: Scene) -> None:
    """A compaction is recorded as one call, and the next turn sets the context size."""
    agent = scene.agent
    read = (agent.shell("true"),) if agent.compacts_within_turn else ()
    scene.script.on(GREET, Reply("Hello there."))
    scene.script.on(LONG, Reply("Reading.", read, prompt_tokens=agent.fills_window))
    scene.turn(GREET)
    scene.turn(LONG, resume=True)
    if agent.compact_command:
        scene.turn(agent.compact_command, resume=True)
    scene.check_state(agent.state_at_end, "state after a compaction")
    scene.turn(CONTINUE, resume=True)
    scene.check("summaries", len(scene.vendor.billed("summary")) > 0, True)
    scene.check_bill()
    scene.assert_no_differences()


def test_another_session(scene: Scene) -> None:
    """The second session is displayed, and the first session keeps its size."""
    scene.script.on(GREET, Reply("Hello there."))
    expected = {}
    for prompt in (GREET, WORK):
        scene.turn(prompt)
        if prompt == GREET:
            scene.check_session(title=scene.agent.title(GREET))
        usage = scene.vendor.billed("main")[-1].usage
        assert usage is not None
        expected[scene.shown_session().get("id")] = usage.context
    sizes = {row["id"]: row["tokens"] or 0 for row in scene.sidecar.sessions()}
    scene.check("sessions", len(sizes), 2)
    accepted = {id: scene.accept(size, expected.get(id, 0)) for id, size in sizes.items()}
    scene.check("sizes of the sessions", accepted, expected)
    scene.check_bill()
    scene.assert_no_differences()
