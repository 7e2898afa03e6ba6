"""Makes real agents lose the fake vendor's prompt cache, and compares the verdicts.

`python -m tests.e2e.agents.cache_losses [AGENT…]` runs the agents and prints a table of all losses.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from sidecar.agents.folders import Places
from sidecar.agents.reader_registry import readers_of
from sidecar.agents.session_index import SessionIndex
from sidecar.config.settings import Agents
from sidecar.cost.cache_losses import LossCause
from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import LedgerEvent
from sidecar.cost.sums import Scope, read_events
from tests.e2e.agents.adapters import AGENTS
from tests.e2e.agents.install import ensure_installed
from tests.e2e.agents.scene import PRICES, TURN_SECONDS, Stage
from tests.fake_vendor import SIDE_TEXT, SUMMARY_TEXT, PromptCache, Reply, VendorCall

TEXT = "The ledger of the cellar has many lines, and each of them is worth a look. " * 1_300
"""The first prompt, long enough for every agent's prompt to be worth a report."""


class Provoked(NamedTuple):
    """A turn that loses the cache, and how it is reported."""

    what: str
    """What was changed, for people."""
    cause: LossCause
    """The cause to report: `unexplained` if the agent's files do not tell."""
    options: tuple[str, ...] = ()
    """The agent's options for this and all later turns of the session."""
    once: bool = False
    """Whether the options are for this turn only, so that the next turn loses the cache again."""
    wait: float = 0.0
    """How many seconds pass before the turn."""
    forget: bool = False
    """Whether the vendor drops its cache before the turn."""
    prompt: str = ""
    """A command, instead of a prompt, which the next turn follows."""
    prepare: Callable[[Stage], None] = lambda _: None


EXPIRY = Provoked("a pause of 6 minutes", LossCause.EXPIRED, wait=360)
DROPPED = Provoked("the vendor dropped the prompt", LossCause.UNEXPLAINED, forget=True)
LIKELY = Provoked("a pause of 90 minutes", LossCause.LIKELY_EXPIRED, wait=5_400)
TWO_DAYS = Provoked("a pause of two days", LossCause.LIKELY_EXPIRED, wait=172_800)


@dataclass
class Loss:
    """A provoked loss, what should be reported of it and what is."""

    agent: str
    provoked: Provoked
    tokens: int
    usd: float
    verdict: str = "none"
    verdict_usd: float | None = None

    @property
    def is_right(self) -> bool:
        return self.verdict == self.provoked.cause.text


@dataclass
class Run:
    """The sessions of one agent, in which it loses the cache or not."""

    stage: Stage
    cache: PromptCache = field(default_factory=PromptCache)
    pauses: list[tuple[datetime, float]] = field(default_factory=list)
    """Each pause: when it was, and how many seconds it should have taken."""
    options: tuple[str, ...] = ()
    turns: int = 0

    def __post_init__(self) -> None:
        self.stage.vendor.cache = self.cache
        # Vendors' summaries are long, and have to be sent for the first time.
        self.stage.script.summary_text = SUMMARY_TEXT.replace(SIDE_TEXT, TEXT[:20_000])

    def turn(self, prompt: str = "", *, resume: bool = True, options: Sequence[str] = ()) -> None:
        """Run the agent with a prompt, by default a short one that continues the session."""
        self.turns += 1
        prompt = prompt or f"look again at line {self.turns}"
        agent = self.stage.agent
        given = [*agent.arguments(prompt, resume=resume)]
        environment = self.stage.environment()
        command = [
            str(self.stage.program),
            *_with_options(given, prompt, [*self.options, *options]),
        ]
        ended = self.stage.sandbox.start(command, self.stage.root, environment).wait(TURN_SECONDS)
        assert ended.code == 0, f"{agent.id} ended with {ended.code}: {ended.output[-2000:]}"

    def begin(self) -> None:
        """Start a session, and make sure that the vendor has cached its prompt."""
        self.turn(f"session {self.turns}: {TEXT}", resume=False)
        self.turn()
        self.turn()

    def pause(self, seconds: float) -> None:
        """Let the vendor's time pass. The files get later times when the agent has ended."""
        self.cache.wait(seconds)
        self.pauses.append((datetime.now(UTC), seconds))

    def provoke(self, provoked: Provoked) -> Loss:
        """Lose the cache in one turn, and read it again in the next one."""
        before = self.newest_call()
        if provoked.wait:
            self.pause(provoked.wait)
        if provoked.forget:
            self.cache.forget()
        provoked.prepare(self.stage)
        if not provoked.once:
            self.options += provoked.options
        if provoked.prompt:
            self.turn(provoked.prompt)
        start = len(self.stage.vendor.calls)
        self.turn(options=provoked.options if provoked.once else ())
        found = [call for call in self.stage.vendor.calls[start:] if call.kind == "main"]
        usage, was = found[0].usage, before.usage
        assert usage is not None
        assert was is not None
        tokens = min(was.prompt, usage.prompt) - usage.cache_read
        model = found[0].model
        if not provoked.once:
            self.turn()
        return Loss(self.stage.agent.name, provoked, tokens, tokens * _price(model, usage) / 1e6)

    def newest_call(self) -> VendorCall:
        return self.stage.vendor.billed("main")[-1]

    def recorded(self) -> list[LedgerEvent]:
        """Return the calls in the agent's files, oldest first."""
        self.stage.close()
        for path in self.stage.home.rglob("*"):
            _move_times(path, self.pauses)
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger(Path(folder) / "ledger.db")
            settings = Agents(sources=(self.stage.agent.name,))
            places = Places.of(settings, {"HOME": str(self.stage.home)})
            readers = readers_of(settings)
            stores = [store for reader in readers for store in reader.find(places)]
            ledger.prices.load()
            SessionIndex(ledger).read(readers, stores)
            events = list(read_events(ledger, Scope()))
            ledger.close()
        return events


def _with_options(arguments: list[str], prompt: str, options: list[str]) -> list[str]:
    """Insert options before the prompt, or before the option that precedes it."""
    if not options:
        return arguments
    at = arguments.index(prompt)
    at -= arguments[at - 1] in ("-p",)
    return [*arguments[:at], *options, *arguments[at:]]


def _price(model: str, usage: object) -> float:
    """Return the price of a million tokens that were not read from the cache, less a cache read."""
    fresh, read, written, _ = PRICES.get(model) or MORE_PRICES[model]
    return (written if getattr(usage, "cache_write", 0) else fresh) - read


MORE_PRICES = {
    "claude-opus-4-5": (5.0, 0.5, 6.25, 25.0),
    "gpt-5-mini": (0.25, 0.025, 0.25, 2.0),
    "gemini-2.5-flash": (0.3, 0.03, 0.3, 2.5),
}
_ISO = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_MS = re.compile(r"(?<!\d)1[789]\d{11}(?!\d)")


def _moved(at: datetime, pauses: Sequence[tuple[datetime, float]]) -> datetime:
    return at + timedelta(seconds=sum(seconds for since, seconds in pauses if at >= since))


def _move_times(path: Path, pauses: Sequence[tuple[datetime, float]]) -> None:
    """Move the times in an agent's file, as if the pauses had really been that long."""
    if not pauses or not path.is_file():
        return

    def iso(found: re.Match[str]) -> str:
        moved = _moved(datetime.fromisoformat(found[0]), pauses)
        return moved.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def milliseconds(found: re.Match[str]) -> str:
        at = datetime.fromtimestamp(int(found[0]) / 1000, UTC)
        return str(round(_moved(at, pauses).timestamp() * 1000))

    if path.suffix in (".jsonl", ".json") and "node_modules" not in path.parts:
        text = path.read_text("utf-8")
        path.write_text(_MS.sub(milliseconds, _ISO.sub(iso, text)), "utf-8")
    elif path.name == "opencode.db":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.create_function("moved", 1, lambda text: _MS.sub(milliseconds, str(text)))
            for table in ("message", "part", "session_message"):
                connection.execute(
                    f"UPDATE {table} SET data = moved(data), "  # noqa: S608
                    "time_created = CAST(moved(time_created) AS INTEGER), "
                    "time_updated = CAST(moved(time_updated) AS INTEGER)"
                )


def _write_note(name: str) -> Callable[[Stage], None]:
    def write(stage: Stage) -> None:
        (stage.root / name).write_text("Answer in one sentence.\n")

    return write


def _set(path: str, **values: object) -> Callable[[Stage], None]:
    """Return a function that changes an agent's JSON settings."""

    def change(stage: Stage) -> None:
        file = stage.home / path
        settings = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(settings | values))

    return change


def _shrink_window(path: str, limit: tuple[str, ...], tokens: int) -> Callable[[Stage], None]:
    """Return a function that sets all models' windows in an agent's settings."""

    def change(stage: Stage) -> None:
        file = stage.home / path
        settings = json.loads(file.read_text())
        (provider,) = (settings.get("provider") or settings.get("providers")).values()
        models = provider["models"]
        for model in models.values() if isinstance(models, dict) else models:
            for key in limit[:-1]:
                model = model[key]
            model[limit[-1]] = tokens
        file.write_text(json.dumps(settings))

    return change


def _compacted(prepare: Callable[[Stage], None]) -> Provoked:
    return Provoked("compaction", LossCause.COMPACTION, prepare=prepare)


def _other_model(name: str, option: str = "--model") -> Provoked:
    return Provoked(f"model {name}", LossCause.MODEL, (option, name))


def _unseen(
    what: str, *options: str, prepare: Callable[[Stage], None] = lambda _: None
) -> Provoked:
    """Return a change that no line of the agent's files tells."""
    return Provoked(what, LossCause.UNEXPLAINED, options, prepare=prepare)


PROVOKED: dict[str, tuple[Provoked, ...]] = {
    "claude-code": (
        DROPPED,
        Provoked("no tool Bash", LossCause.SHAPE, ("--disallowedTools", "Bash"), once=True),
        _other_model("claude-opus-4-5"),
        Provoked("effort low", LossCause.EFFORT, ("--effort", "low")),
        EXPIRY,
        Provoked("compaction", LossCause.COMPACTION, prompt="/compact"),
        DROPPED,
        Provoked(
            "model and a pause of 8 hours",
            LossCause.MODEL,
            ("--model", "claude-sonnet-4-5"),
            wait=28_800,
        ),
        Provoked("no tool Read", LossCause.SHAPE, ("--disallowedTools", "Read")),
    ),
    "codex": (
        DROPPED,
        Provoked("effort low", LossCause.EFFORT, ("-c", "model_reasoning_effort=low")),
        _other_model("gpt-5-mini", "-m"),
        TWO_DAYS,
        DROPPED,
        Provoked("effort high", LossCause.EFFORT, ("-c", "model_reasoning_effort=high")),
        Provoked(
            "compaction",
            LossCause.COMPACTION,
            ("-c", "model_auto_compact_token_limit=20000"),
            once=True,
        ),
    ),
    "opencode": (
        DROPPED,
        _other_model("fake/gpt-5-mini", "-m"),
        LIKELY,
        Provoked("effort low", LossCause.EFFORT, ("--variant", "low")),
        _unseen("AGENTS.md is new", prepare=_write_note("AGENTS.md")),
        _compacted(_shrink_window(".config/opencode/opencode.json", ("limit", "context"), 60_000)),
    ),
    "pi": (
        DROPPED,
        Provoked("thinking low", LossCause.EFFORT, ("--thinking", "low")),
        Provoked("no tool bash", LossCause.TOOLS, ("--exclude-tools", "bash")),
        Provoked("longer system prompt", LossCause.SYSTEM, ("--append-system-prompt", "Be short.")),
        _other_model("gpt-5-mini"),
        LIKELY,
        Provoked("AGENTS.md is new", LossCause.SYSTEM, prepare=_write_note("AGENTS.md")),
        _compacted(_shrink_window(".pi/agent/models.json", ("contextWindow",), 40_000)),
    ),
    "gemini-cli": (
        DROPPED,
        _other_model("gemini-2.5-flash", "-m"),
        LIKELY,
        _unseen("GEMINI.md is new", prepare=_write_note("GEMINI.md")),
        _unseen(
            "no shell tool",
            prepare=_set(".gemini/settings.json", tools={"exclude": ["run_shell_command"]}),
        ),
        _compacted(_set(".gemini/settings.json", model={"compressionThreshold": 0.01})),
    ),
    "qwen-code": (
        DROPPED,
        _other_model("gpt-5-mini"),
        LIKELY,
        _unseen("longer system prompt", "--append-system-prompt", "Be short."),
        _unseen("no shell tool", "--exclude-tools", "run_shell_command"),
        _compacted(
            _set(
                ".qwen/settings.json",
                model={"name": "gpt-5-mini", "generationConfig": {"contextWindowSize": 60_000}},
            )
        ),
    ),
    "copilot-cli": (
        DROPPED,
        Provoked("effort low", LossCause.EFFORT, ("--reasoning-effort", "low")),
        _other_model("gpt-5-mini"),
        LIKELY,
        Provoked("AGENTS.md is new", LossCause.SHAPE, prepare=_write_note("AGENTS.md")),
        Provoked("no tool bash", LossCause.SHAPE, ("--excluded-tools=bash",)),
        Provoked("compaction", LossCause.COMPACTION, prompt="/compact"),
    ),
}


def _prepare_agent(name: str, home: Path) -> None:
    """Make an agent know the second model, and both as models with an effort."""
    if name == "opencode":
        path = home / ".config/opencode/opencode.json"
        settings = json.loads(path.read_text())
        models = settings["provider"]["fake"]["models"]
        models["gpt-5"]["reasoning"] = True
        models["gpt-5-mini"] = models["gpt-5"] | {"name": "gpt-5-mini"}
        path.write_text(json.dumps(settings))
    elif name == "pi":
        path = home / ".pi/agent/models.json"
        settings = json.loads(path.read_text())
        models = settings["providers"]["fake"]["models"]
        models[0]["reasoning"] = True
        models.append(models[0] | {"id": "gpt-5-mini"})
        path.write_text(json.dumps(settings))


def open_run(name: str, folder: Path) -> Run:
    agent = AGENTS[name]
    stage = Stage(agent, ensure_installed(agent.package), folder)
    _prepare_agent(name, stage.home)
    return Run(stage)


def provoke_all(run: Run) -> tuple[list[Loss], list[LedgerEvent]]:
    """Provoke an agent's losses in one session.

    Returns the losses with the verdicts on them, and the calls that are reported as other losses.
    """
    run.begin()
    losses = [run.provoke(one) for one in PROVOKED[run.stage.agent.name]]
    found = [event for event in run.recorded() if event.loss and event.loss.cause]
    for loss in losses:
        reported = next((one for one in found if one.loss and one.loss.tokens == loss.tokens), None)
        if reported is None or reported.loss is None or reported.loss.cause is None:
            continue
        found.remove(reported)
        loss.verdict = reported.loss.cause.text
        if reported.cost is not None and reported.cost.lost is not None:
            loss.verdict_usd = float(reported.cost.lost)
    return losses, found


def _keep_plain(run: Run) -> None:
    run.turn()


def _keep_with_tools(run: Run) -> None:
    shell = run.stage.agent.shell
    replies = [Reply(tools=(shell(f"echo {number}"),)) for number in range(4)]
    run.stage.script.on("count the lines", *replies, Reply())
    run.turn("count the lines")
    run.turn()


def _keep_while_growing(run: Run) -> None:
    run.turn(f"and this: {TEXT}")
    run.turn()


def _keep_in_time(run: Run) -> None:
    for _ in range(2):
        run.pause(240)
        run.turn()


def _keep_beside_others(run: Run) -> None:
    """Let the agent use a sub-agent, or continue in a fork if it has none."""
    agent = run.stage.agent
    if "subagent" in agent.cannot:
        session = max(run.stage.home.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        run.turn("look at line 1", resume=False, options=["--fork", str(session)])
        return
    run.stage.script.on("ask someone", Reply(tools=(agent.subagent("explore the cellar"),)))
    run.stage.script.on("explore the cellar", kind="subagent")
    run.turn("ask someone")
    run.turn()


KEPT: dict[str, Callable[[Run], None]] = {
    "four turns": _keep_plain,
    "a turn with four tool calls": _keep_with_tools,
    "a prompt of 24,000 tokens": _keep_while_growing,
    "two pauses of 4 minutes": _keep_in_time,
    "a sub-agent, or a fork": _keep_beside_others,
}
"""What happens in sessions that do not lose the cache."""
KEEPING_AGENTS = (*PROVOKED, "kimi-code")


def false_losses(run: Run, keep: Callable[[Run], None]) -> list[LedgerEvent]:
    """Run a session that does not lose the cache, and return the losses that are reported."""
    run.begin()
    keep(run)
    events = run.recorded()
    assert len(events) >= len(run.stage.vendor.billed("main")) > 2
    return [event for event in events if event.loss and event.loss.cause]


def main() -> None:
    """Print a row of a table for each loss, and a line for each session without one."""
    names = sys.argv[1:]
    for name in names or KEEPING_AGENTS:
        for what, keep in KEPT.items():
            with tempfile.TemporaryDirectory() as folder:
                found = false_losses(open_run(name, Path(folder)), keep)
            sys.stdout.write(f"{name}, {what}: {len(found)} losses {[one.loss for one in found]}\n")
    for name in names or PROVOKED:
        with tempfile.TemporaryDirectory() as folder:
            losses, others = provoke_all(open_run(name, Path(folder)))
        sys.stdout.write(f"{name}: {len(others)} other losses\n")
        for loss in losses:
            verdict = loss.verdict if loss.is_right else f"**{loss.verdict}**"
            usd = "" if loss.verdict_usd is None else f"{loss.verdict_usd:.4f}"
            cells = name, loss.provoked.what, verdict, f"{loss.tokens:,}", f"{loss.usd:.4f}", usd
            sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
