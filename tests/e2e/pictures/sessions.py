"""Writes agents' session files for a typical working day, used in pictures and trials."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome, usage
from benchmarks.agents.opencode import OpenHome
from benchmarks.agents.truth import Clock, Tokens

_BYTES_PER_TOKEN = 4
_TEXT = (
    "the parser reads each line of the file and returns its length in bytes so that callers can "
    "cache the result while the document is edited and measured again after the next change "
)
_WORDS = _TEXT.split()
_TOOLS = ("Read", "Read", "Bash", "Grep", "Edit")


@dataclass
class Plan:
    """A generated session's parameters."""

    began: timedelta
    """The session's age."""
    ended: timedelta
    """The latest call's age."""
    context: int
    """The context size after the latest call, in tokens."""
    calls: int
    prompt: str
    """The text of the first prompt."""
    title: str | None = None
    branch: str = "main"
    model: str = "claude-opus-5"
    system: int = 16_000
    """The size of the system prompt and the tools, in tokens."""


@dataclass
class Day:
    """Writes a project's sessions to the agents' folders in `home`."""

    home: Path
    root: Path
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def text(self, tokens: int) -> str:
        """Return text of approximately this number of tokens."""
        words, size = list[str](), 0
        while size < tokens * _BYTES_PER_TOKEN:
            words.append(self.rng.choice(_WORDS))
            size += len(words[-1]) + 1
        return " ".join(words)

    def _steps(self, plan: Plan) -> list[int]:
        """Return each call's prompt size."""
        growth = (plan.context - plan.system - 600) / max(1, plan.calls)
        sizes, size = [], plan.system + 400.0
        for _ in range(plan.calls):
            size += growth * self.rng.uniform(0.6, 1.4)
            sizes.append(int(size))
        scale = (plan.context - 500) / sizes[-1]
        return [int(one * scale) for one in sizes]

    def _at(self, clock: Clock, plan: Plan, call: int) -> None:
        spread = (plan.began - plan.ended) / max(1, plan.calls)
        clock.now = self.now - plan.began + spread * (call + 1)

    def claude(self, plan: Plan, seed: int) -> str:
        """Write a Claude Code session, and return its id."""
        home = ClaudeHome(self.home / ".claude", seed=seed)
        home.clock.now = self.now - plan.began
        session = home.session(self.root)
        session.model = plan.model

        def line(kind: str, **fields: Any) -> None:
            session.write({**session.line(kind, **fields), "gitBranch": plan.branch})

        memory = self.text(2_400)
        line("attachment", attachment={"type": "memory", "content": memory})
        line("user", message={"role": "user", "content": plan.prompt})
        if plan.title:
            session.write({"type": "ai-title", "aiTitle": plan.title, "sessionId": session.id})
        before = 0
        sizes = self._steps(plan)
        for number, size in enumerate(sizes):
            self._at(home.clock, plan, number)
            following = sizes[number + 1] if number + 1 < len(sizes) else size + 800
            output = self.rng.randrange(120, 420)
            write = size - before - 3 if before else size - 3
            tokens = Tokens(3, before, write, 0, output)
            tool, call = self.rng.choice(_TOOLS), f"toolu_{home.clock.id()}"
            query = {"file_path": self.text(40)}
            content: list[dict[str, Any]] = [{"type": "text", "text": self.text(output - 40)}]
            is_last = number + 1 == len(sizes)
            ends_turn = is_last and plan.ended > timedelta(minutes=1)
            if not ends_turn:
                content.append({"type": "tool_use", "id": call, "name": tool, "input": query})
            body = session.message(f"msg_01{home.clock.id()}", tokens)
            body["content"] = content
            body["stop_reason"] = "end_turn" if ends_turn else "tool_use"
            line("assistant", requestId=f"req_{home.clock.id()}", message=body)
            before = size
            if is_last:
                break
            answer = self.text(max(20, following - size - output))
            if number % 9 == 8:
                line("user", message={"role": "user", "content": self.text(120)})
            result = {"type": "tool_result", "tool_use_id": call, "content": answer}
            line("user", message={"role": "user", "content": [result]}, toolUseResult={})
        self._touch(session.path, plan)
        return session.id

    def codex(self, plan: Plan, seed: int) -> str:
        """Write a Codex thread, and return its id."""
        home = CodexHome(self.home / ".codex", seed=seed)
        home.clock.now = self.now - plan.began
        thread = home.thread(self.root)
        if plan.title:
            thread.event("thread_name_updated", thread_id=thread.id, thread_name=plan.title)
        thread.begin_turn()
        prompt = [{"type": "input_text", "text": plan.prompt}]
        thread.write("response_item", {"type": "message", "role": "user", "content": prompt})
        sizes, before = self._steps(plan), 0
        for number, size in enumerate(sizes):
            self._at(home.clock, plan, number)
            output = self.rng.randrange(120, 420)
            thread.count(Tokens(size - before, before, 0, 0, output))
            before = size
            arguments = json.dumps({"command": ["rg", self.text(30)]})
            call = home.clock.id()
            thread.write(
                "response_item",
                {"type": "function_call", "name": "shell", "call_id": call, "arguments": arguments},
            )
            growth = (sizes[number + 1] if number + 1 < len(sizes) else size + 500) - size
            answer = self.text(max(20, growth - output))
            thread.write(
                "response_item",
                {"type": "function_call_output", "call_id": call, "output": answer},
            )
            assert usage(Tokens(size))["input_tokens"] == size
        thread.end_turn()
        self._touch(thread.path, plan)
        return thread.id

    def opencode(self, plan: Plan, seed: int) -> str:
        """Write an opencode session, and return its id."""
        home = OpenHome(self.home / ".local" / "share" / "opencode", seed=seed)
        home.clock.now = self.now - plan.began
        session = home.session(self.root, "first")
        home.db.execute("UPDATE session SET title = ? WHERE id = ?", (plan.title or "", session.id))
        session.message("user")
        before = 0
        for number, size in enumerate(self._steps(plan)):
            self._at(home.clock, plan, number)
            cache = {"read": before, "write": size - before}
            numbers = {"input": 3, "output": 200, "reasoning": 0, "cache": cache}
            at = home.now()
            named = {"modelID": plan.model, "providerID": "anthropic", "finish": "stop"}
            time = {"created": at, "completed": at}
            session.message("assistant", tokens=numbers, time=time, **named)
            before = size
        home.close()
        self._touch(home.path, plan)
        return session.id

    def _touch(self, path: Path, plan: Plan) -> None:
        at = (self.now - plan.ended).timestamp()
        os.utime(path, (at, at))


def write_day(home: Path, root: Path, now: datetime | None = None) -> Day:
    """Write a working day's six sessions. The newest session is still running."""
    day, minute = Day(home, root, now or datetime.now(UTC)), timedelta(minutes=1)
    day.opencode(Plan(310 * minute, 250 * minute, 61_000, 22, "Write the docs",
                      "Document the retry policy", model="claude-sonnet-5"), 11)  # fmt: skip
    day.codex(Plan(260 * minute, 200 * minute, 118_000, 40, "Review the storage layer",
                   "Review the storage layer"), 12)  # fmt: skip
    day.claude(Plan(185 * minute, 96 * minute, 171_400, 64, "Find out why the login test is flaky",
                    branch="fix/flaky-login", model="claude-sonnet-4-5"), 13)  # fmt: skip
    day.codex(Plan(75 * minute, 52 * minute, 34_500, 12, "Explain the cache"), 14)
    day.claude(Plan(44 * minute, 26 * minute, 38_200, 15, "Add a --json option to the exporter",
                    "Add a JSON option to the exporter", model="claude-haiku-4-5"), 15)  # fmt: skip
    day.claude(Plan(38 * minute, 0.4 * minute, 88_600, 41, "Make the parser incremental",
                    "Make the parser incremental", branch="incremental-parser",
                    model="claude-sonnet-4-5"), 16)  # fmt: skip
    return day
