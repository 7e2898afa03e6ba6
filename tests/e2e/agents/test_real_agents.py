"""Tests with real coding agents that our numbers equal the vendor's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fake_vendor import Reply

if TYPE_CHECKING:
    from tests.e2e.agents.scene import Scene

GREET = "Greet me in one line."
CONTINUE = "Say it again, please."
WORK = "Run the command that waits."
DELEGATE = "Let somebody look into the cellar."
CELLAR = "Look into the cellar and report."
LONG = "Read the whole archive."


def test_first_turn(scene: Scene) -> None:
    scene.script.on(GREET, Reply("Hello there."))
    scene.turn(GREET)
    scene.check_session(title=scene.agent.title(GREET))
    scene.check_bill()
    scene.assert_no_differences()


def test_tool_call(scene: Scene) -> None:
    """While the tool runs, the status shows the context of the call that requested it."""
    flag = scene.root / "go-on"
    command = f"until [ -e {flag} ]; do sleep 0.1; done"
    scene.script.on(WORK, Reply("", (scene.agent.shell(command),)), Reply("The command is done."))
    program = scene.start(WORK)
    assert scene.vendor.wait_until(lambda _: len(scene.vendor.billed("main")) == 1, 30)
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
    """A sub-agent is billed, but its context is not displayed as the session's."""
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
    assert scene.vendor.wait_until(lambda calls: any(call.reply.hangs for call in calls), 30)
    program.interrupt()
    program.wait(30)
    scene.check_context(scene.vendor.billed("main")[-1], "context after the abort")
    scene.check_state(scene.agent.state_at_end)
    scene.turn(CONTINUE, resume=True)
    scene.check_bill()
    scene.assert_no_differences()


def test_resume(scene: Scene) -> None:
    """A resumed session remains one session, and each of its calls is recorded once."""
    scene.turn(GREET)
    scene.turn(CONTINUE, resume=True)
    scene.turn(CONTINUE, resume=True)
    scene.check("sessions", len(scene.sidecar.sessions()), 1)
    scene.check_session(title=scene.agent.title(GREET))
    scene.check_bill()
    scene.assert_no_differences()


def test_compaction(scene: Scene) -> None:
    """The summary is recorded as one call. The next turn determines the size of the context."""
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
    """The newest session is displayed. The size of the other session does not change."""
    scene.script.on(GREET, Reply("Hello there."))
    expected = {}
    for prompt in (GREET, WORK):
        scene.turn(prompt)
        usage = scene.vendor.billed("main")[-1].usage
        assert usage is not None
        expected[scene.shown_session().get("id")] = usage.context
    sizes = {row["id"]: row["tokens"] or 0 for row in scene.sidecar.sessions()}
    scene.check("sessions", len(sizes), 2)
    accepted = {id: scene.accept(size, expected.get(id, 0)) for id, size in sizes.items()}
    scene.check("sizes of the sessions", accepted, expected)
    scene.check_bill()
    scene.assert_no_differences()
