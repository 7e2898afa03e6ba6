"""Runs a real agent with a fake vendor and our server in the same workspace.

A `Scene` runs turns and compares the server's numbers with the vendor's. It collects all
differences, and `assert_no_differences` fails if there are any.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.models.catalogue import prompt_limit_of
from sidecar.models.window import Window, resolve_limit
from tests.e2e.agents.adapters import Agent
from tests.e2e.agents.install import ensure_node
from tests.e2e.agents.sandbox import Ended, Program, Sandbox
from tests.e2e.agents.scores import Score
from tests.e2e.agents.sidecar_client import SidecarClient
from tests.e2e.agents.views import Numbers, expected_in, numbers_in_editor, numbers_in_terminal
from tests.fake_vendor import FakeVendor, Kind, Script, Usage, VendorCall

TURN_SECONDS = 120
STATUS_SECONDS = 10
"""Maximum time to wait for a status or a recorded call, in seconds."""
LAG_SECONDS = 2.0
"""Maximum time until a status shows a new context, in seconds. Ignored on a busy machine."""
ESTIMATE_BAND = 25
"""The margin of error of an agent's own estimate after a compaction, in percent (±)."""
FORECAST_BAND = 30
"""Maximum error of the forecast of remaining calls, in percent."""
PRICES = {
    "gpt-5": (1.25, 0.125, 1.25, 10.0),
    "claude-sonnet-4-5": (3.0, 0.3, 3.75, 15.0),
    "gemini-2.5-pro": (1.25, 0.125, 1.25, 10.0),
    "kimi-k2-0905-preview": (0.6, 0.15, 0.6, 2.5),
    "devstral-2512": (0.4, 0.04, 0.4, 2.0),
    "gpt-6.2-sol": (2.0, 0.1, 2.5, 10.0),
}
"""USD per million tokens of uncached input, cache reads, five-minute cache writes and output."""
USER_SETTINGS = """
[[price]]
models = "gpt-6.2-sol"
input = 2
cache-read = 0.1
cache-write = 2.5
output = 10
"""
"""Settings with the price of a model that the price list does not contain yet."""
LONG_PROMPT, LONG_PRICES = 200_000, {"gemini-2.5-pro": (2.5, 0.25, 2.5, 15.0)}
"""Prices of calls with more than `LONG_PROMPT` prompt tokens, if they differ from `PRICES`."""
CACHE_WRITE_1H_FACTOR = 1.6
"""The price of one-hour cache writes, relative to five-minute cache writes."""
CATEGORIES: dict[Kind, str] = {"title": "main", "other": "main"}
"""The ledger's category for each call kind, if the names differ."""


class Stage:
    """An agent and a fake vendor, with a home folder and a workspace in it."""

    def __init__(self, agent: Agent, program: Path, folder: Path) -> None:
        self.agent, self.program = agent, program
        omissions = agent.cannot | agent.unrecorded_kinds | agent.limits
        self.score = Score(agent.name, agent.package.version, omissions=omissions)
        self.home = folder / "home"
        self.root = self.home / "work" / "project"
        self.root.mkdir(parents=True)
        self._stack = ExitStack()
        self.sandbox = self._stack.enter_context(Sandbox(self.home))
        self.script = Script(agent.side_calls, turns_have_tools=agent.has_tools)
        vendor = FakeVendor(self.script, self.sandbox.listener, agent.reply_seconds)
        self.vendor = self._stack.enter_context(vendor)
        agent.configure(self.home, self.vendor.url)

    def init_repository(self) -> None:
        """Make the workspace a git repository."""
        subprocess.run(["git", "init", "--quiet", str(self.root)], check=True)

    def close(self) -> None:
        """Stop all processes."""
        self._stack.close()

    def start(self, prompt: str, *, resume: bool = False, folder: Path | None = None) -> Program:
        """Start the agent with a prompt.

        Args:
            prompt: The prompt.
            resume: Whether to continue the newest session.
            folder: The folder in which the agent starts, if not the workspace.
        """
        padding = "" if resume else self.agent.padding
        arguments = self.agent.arguments(prompt + padding, resume=resume)
        command = [str(self.program), *arguments]
        return self.sandbox.start(command, folder or self.root, self.environment())

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the agent."""
        path = f"{ensure_node().parent}:{self.program.parent}:/usr/local/bin:/usr/bin:/bin"
        return {"PATH": path} | self.agent.environment(self.vendor.url)


class Scene(Stage):
    """An agent, a fake vendor and our server in one workspace."""

    def __init__(self, name: str, agent: Agent, program: Path, folder: Path) -> None:
        super().__init__(agent, program, folder)
        self.name = name
        self.differences: list[str] = []
        self.init_repository()
        Path(os.environ["TOKEN_SIDECAR_CONFIG"]).write_text(USER_SETTINGS)
        self.editors: list[SidecarClient] = []
        self.sidecar = self.open_editor()
        # From here on, the server records calls only when the agent's files change.
        assert not self.sidecar.report_costs()["note"]

    def open_editor(self) -> SidecarClient:
        """Start a server for the folder, as an editor does when it opens the folder."""
        editor = SidecarClient(self.root)
        self._stack.callback(editor.stop)
        self.editors.append(editor)
        return editor

    def turn(self, prompt: str, *, resume: bool = False) -> Ended:
        """Run the agent with a prompt, then check that the status shows its context."""
        before = len(self.vendor.calls)
        ended = self.start(prompt, resume=resume).wait(TURN_SECONDS)
        assert ended.code == 0, f"{self.agent.name} ended with {ended.code}:\n{ended.output}"
        assert len(self.vendor.calls) > before, f"no request came:\n{ended.output}"
        self.check_current_context()
        return ended

    def check(self, what: str, seen: object, expected: object) -> None:
        """Compare two values, and collect any difference."""
        if self._is_limited(what):
            return
        self.score.checks += 1
        if seen == expected:
            self.score.passed += 1
        else:
            self.differences.append(f"{what}: {seen!r}, expected {expected!r}")

    def check_current_context(self) -> None:
        """Check that the status shows the context size of the latest call.

        After a compaction, the status must show the agent's estimate, or None if it makes no
        estimate.
        """
        newest = self.vendor.billed("main", "summary")[-1]
        if newest.kind == "main":
            self.check_context(newest)
            return
        estimate = self.agent.estimate_after_compaction(self.home)
        self._wait_until(lambda: self.sidecar.usage()["tokens"] == estimate)
        usage = self.sidecar.usage()
        self.check("context after a compaction", usage["tokens"], estimate)
        if estimate is not None:
            self.check("band of the estimate", usage["errorPercent"], ESTIMATE_BAND)
            self.check("label of the estimate", "~" in self.sidecar.context_text(), True)

    def check_context(self, call: VendorCall, what: str = "context") -> None:
        """Check that the status shows a call's context size, with a tolerance of `band_percent`."""
        assert call.usage is not None
        assert call.finished_at is not None
        if self._is_limited(what):
            return
        tokens = call.usage.context
        for editor in self.editors:
            at = editor.context_shown_at(
                lambda shown: self.accept(shown, tokens) == tokens, call.finished_at, STATUS_SECONDS
            )
            self.check(f"{what}: shown live", at is not None, True)
            usage = editor.usage()
            self.check(what, self.accept(usage["tokens"] or 0, tokens), tokens)
            self.check(f"{what}: band in percent", usage["errorPercent"], self.agent.band_percent)
            if at is not None:
                self._check_lag(what, at - call.finished_at)

    def check_views(self) -> None:
        """Check that all views in the editors and on the command line show the vendor's numbers.

        If the numbers in the agent's files differ, all views must show the numbers in the files.
        """
        newest = self.vendor.billed("main")[-1].usage
        assert newest is not None
        tokens = self.sidecar.usage()["tokens"] if self.agent.band_percent else newest.context
        usd = sum(map(_cost, self.recorded_calls()))
        if self._is_limited("cost"):
            usd = sum(row["costUsd"] for row in self.sidecar.export_calls())
        prompt_limit = prompt_limit_of(self.agent.model)
        window = Window(resolve_limit(transcript=self.agent.window, prompt=prompt_limit))
        expected = Numbers(tokens, window.percent(tokens), usd)

        def check(place: str, shown: dict[str, Numbers]) -> None:
            for view, numbers in shown.items():
                self.check(f"{view}, {place}", numbers, expected_in(view, expected))

        def is_settled(editor: SidecarClient) -> bool:
            shown = numbers_in_editor(editor).items()
            return all(numbers == expected_in(view, expected) for view, numbers in shown)

        for number, editor in enumerate(self.editors, 1):
            # The status may show the context before the costs and the context window are known.
            self._wait_until(partial(is_settled, editor))
            check(f"editor {number}", numbers_in_editor(editor))
        check("command line", numbers_in_terminal(self.root))

    def accept(self, shown: int, tokens: int) -> int:
        """Return `tokens` if it equals `shown` within the agent's margin of error, else `shown`."""
        is_within_band = abs(shown - tokens) <= shown * self.agent.band_percent / 100
        return tokens if is_within_band else shown

    def calls_left(self) -> int | None:
        """Return the forecast number of calls until the window is full."""
        left: int | None = (self.sidecar.usage()["forecast"] or {}).get("callsLeft")
        return left

    def check_forecast(self, forecasts: dict[int, int | None], sizes: list[int]) -> None:
        """Check the first forecast that was made after the context was half full.

        Args:
            forecasts: The forecasts, keyed by the number of calls made before the forecast.
            sizes: The prompt sizes of calls that fill the window.
        """
        kinds = [call.kind for call in self.vendor.billed("main", "summary")]
        filled = kinds.index("summary") if "summary" in kinds else len(sizes)
        half = sum(size < sizes[filled - 1] / 2 for size in sizes)
        calls = next((calls for calls in forecasts if calls > half), None)
        if calls is None or self._is_limited("calls left"):
            return
        seen, left = forecasts[calls], filled - calls
        self.score.forecasts.append(f"{seen} of {left}")
        is_close = seen is not None and abs(seen - left) <= left * FORECAST_BAND / 100
        self.check("calls left", seen, seen if is_close else left)

    def check_session(self, *, title: str | None) -> None:
        """Check the displayed session's agent, model, window, title and final state."""
        # The server may still be loading the context windows of models.
        self._wait_until(lambda: self.sidecar.usage()["limit"] is not None)
        usage = self.sidecar.usage()
        shown = [session for session in self.sidecar.sessions() if session["shown"]]
        self.check("shown sessions", len(shown), 1)
        row = self.shown_session()
        self.check("agent", row.get("source"), self.agent.name)
        self.check("model", row.get("model"), self.agent.model_in_files or self.agent.model)
        self.check("window", usage["limit"], self.agent.window)
        self.check("title", row.get("title"), title)
        self.check_state(self.agent.state_at_end)

    def check_state(self, expected: str, what: str = "state") -> None:
        """Wait until the displayed session has the expected state, and check it."""
        self._wait_until(lambda: self.shown_session().get("state") == expected)
        self.check(what, self.shown_session().get("state"), expected)

    def check_bill(self) -> None:
        """Check that the ledger contains each call once, with the right numbers and cost."""
        calls, agent, recorded = self.vendor.billed(), self.agent, self.recorded_calls()
        self._wait_until(lambda: self.sidecar.count_recorded_calls() == len(recorded))
        live = self.sidecar.count_recorded_calls()
        self.check("calls recorded live", live, len(recorded))
        report = self.sidecar.report_costs()
        rows = self.sidecar.export_calls()
        self.check("reported costs", _reported(report), _summed_up(rows))
        self.check("number of calls", len(rows), len(recorded))
        seen = Counter(_entry(row, agent) for row in rows)
        self.check(
            "recorded calls", seen, Counter(_expected_entry(call, agent) for call in recorded)
        )
        if agent.band_percent:
            sizes = sorted(_prompt(row) + _output(row) for row in rows)
            expected = sorted(call.usage.context for call in recorded if call.usage)
            self.check("sizes of calls", list(map(self.accept, sizes, expected)), expected)
        cost = sum(row["costUsd"] or 0 for row in rows)
        self.check("cost", cost, pytest.approx(sum(map(_cost, recorded))))
        self.score.prompt_tokens += sum(call.usage.prompt for call in calls if call.usage)
        self.score.recorded_prompt_tokens += sum(_prompt(row) for row in rows)

    def assert_no_differences(self) -> None:
        """Fail if there were any differences."""
        assert not self.differences, "\n".join([f"{self.agent.name}:", *self.differences])

    def recorded_calls(self) -> list[VendorCall]:
        """Return the calls that the agent's files should contain."""
        kinds = self.agent.unrecorded_kinds
        calls = [call for call in self.vendor.billed() if call.kind not in kinds]
        return _merge_summaries(calls) if self.agent.merges_summaries else calls

    def shown_session(self) -> dict[str, Any]:
        """Return the session in the status, or an empty dict if there is none yet."""
        return next((row for row in self.sidecar.sessions() if row["shown"]), {})

    def _is_limited(self, what: str) -> bool:
        return not self.agent.limits.keys().isdisjoint((what, f"{self.name}: {what}"))

    def _wait_until(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + STATUS_SECONDS
        while not (is_met := condition()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return is_met

    def _check_lag(self, what: str, seconds: float) -> None:
        self.score.lags.append(seconds)
        load = os.getloadavg()[0]
        if load > (os.cpu_count() or 1):
            self.score.loads.append(load)
        else:
            self.check(f"{what}: seconds until shown", seconds, min(seconds, LAG_SECONDS))


def _merge_summaries(calls: list[VendorCall]) -> list[VendorCall]:
    """Replace consecutive calls for summaries by one call with the sum of their tokens."""
    merged: list[VendorCall] = []
    for call in calls:
        before = merged[-1].usage if merged else None
        if before and call.usage and call.kind == merged[-1].kind == "summary":
            total = Usage(*map(sum, zip(before, call.usage, strict=True)))
            merged[-1] = replace(merged[-1], usage=total)
        else:
            merged.append(call)
    return merged


_CACHE_WRITES = ("cacheWriteTokens", "cacheWrite5mTokens", "cacheWrite1hTokens")


def _prompt(row: dict[str, Any]) -> int:
    writes = sum(row[name] for name in _CACHE_WRITES)
    return int(row["inputTokens"] + row["cacheReadTokens"] + writes)


def _output(row: dict[str, Any]) -> int:
    return int(row["outputTokens"] + row["reasoningTokens"])


def _reported(report: dict[str, Any]) -> dict[tuple[str, str], list[int]]:
    """Return the calls, prompt tokens and output tokens in a report, by category and model."""
    return {
        (row["category"], row["model"]): [
            row["calls"], row["promptTokens"], row["completionTokens"]
        ]
        for row in report["rows"]
    }  # fmt: skip


def _summed_up(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[int]]:
    """Return the calls, prompt tokens and output tokens in an export, by category and model."""
    sums: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        key = row["category"], row["model"]
        call = 1, _prompt(row), _output(row)
        sums[key] = [sum(pair) for pair in zip(sums.get(key, (0, 0, 0)), call, strict=True)]
    return sums


def _entry(row: dict[str, Any], agent: Agent) -> tuple[object, ...]:
    labels = row["category"], row["model"]
    if agent.band_percent:
        return labels
    writes = [row[name] for name in _CACHE_WRITES]
    split = [row["inputTokens"], row["cacheReadTokens"], *writes]
    prompt = split if agent.records_cache else [sum(split)]
    return *labels, *prompt, row["outputTokens"], row["reasoningTokens"]


def _expected_entry(call: VendorCall, agent: Agent) -> tuple[object, ...]:
    usage = call.usage
    assert usage is not None
    labels = CATEGORIES.get(call.kind, call.kind), agent.model_in_files or call.model
    if agent.band_percent:
        return labels
    short = usage.cache_write - usage.cache_write_1h
    has_ttl = call.kind not in agent.kinds_without_cache_ttl
    writes = [0 if has_ttl else short, short if has_ttl else 0, usage.cache_write_1h]
    split = [usage.uncached, usage.cache_read, *writes]
    prompt = split if agent.records_cache else [sum(split)]
    has_reasoning = agent.records_reasoning and call.kind not in agent.kinds_without_reasoning
    reasoning = usage.reasoning if has_reasoning else 0
    return *labels, *prompt, usage.output - reasoning, reasoning


def _cost(call: VendorCall) -> float:
    usage = call.usage
    assert usage is not None
    writes = usage.cache_write + usage.cache_write_1h * (CACHE_WRITE_1H_FACTOR - 1)
    tokens = (usage.uncached, usage.cache_read, writes, usage.output)
    prices = PRICES[call.model]
    if usage.prompt > LONG_PROMPT:
        prices = LONG_PRICES.get(call.model, prices)
    return sum(count * price for count, price in zip(tokens, prices, strict=True)) / 1e6
