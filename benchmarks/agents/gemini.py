"""Generates Gemini CLI's sessions with known totals."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, append

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "gemini-3-pro-preview"


@dataclass
class GeminiHome:
    """A folder `~/.gemini` with sessions."""

    folder: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def session(self, root: Path, *, legacy: bool = False, flat: bool = False) -> Chat:
        """Start a session that works in `root`. With `legacy`, its folder's name is a hash."""
        real = os.path.realpath(root)
        name = sha256(real.encode()).hexdigest() if legacy else self._listed(real)
        suffix = "json" if flat else "jsonl"
        folder = self.folder / "tmp" / name / "chats"
        made = Chat(self, folder / f"session-{self.clock.id(8)}.{suffix}", self.clock.uuid())
        self.truth.context[made.id] = None
        made.begin()
        return made

    def _listed(self, root: str) -> str:
        path = self.folder / "projects.json"
        known = json.loads(path.read_text())["projects"] if path.exists() else {}
        name = known.setdefault(root, f"{os.path.basename(root)}-{len(known)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"projects": known}))
        return str(name)


@dataclass
class Chat:
    """The file of a session. Each method appends what Gemini CLI would append."""

    home: GeminiHome
    path: Path
    id: str
    owner: str | None = None
    size: int = 400
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = self.home.clock
        self.cached = 0

    def head(self) -> dict[str, Any]:
        """Return the fields of the session."""
        at = self.clock.tick()
        kind = "subagent" if self.owner else "main"
        return {
            "sessionId": self.id,
            "projectHash": "0" * 64,
            "startTime": at,
            "lastUpdated": at,
            "kind": kind,
        }

    def begin(self) -> None:
        """Append the first line."""
        self.write(self.head())

    def write(self, *lines: dict[str, Any]) -> None:
        """Append lines to a log, or rewrite a flat file."""
        if self.path.suffix == ".jsonl":
            append(self.path, *lines)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self.head(), "messages": self.messages}, indent=2))

    def put(self, message: dict[str, Any]) -> None:
        """Add or replace a message."""
        known = [one["id"] for one in self.messages]
        if message["id"] in known:
            self.messages[known.index(message["id"])] = message
        else:
            self.messages.append(message)
        self.write(message, {"$set": {"lastUpdated": self.clock.tick()}})

    def user(self) -> dict[str, Any]:
        """Append a message of the user."""
        text = self.clock.text(self.size) + '"tokens":{"input":5}'
        made: dict[str, Any] = {
            "id": self.clock.uuid(),
            "timestamp": self.clock.tick(),
            "type": "user",
            "content": [{"text": text}],
        }
        self.put(made)
        return made

    def reply(self) -> dict[str, Any]:
        """Append a reply three times: without usage, with partial usage, and complete."""
        rng = self.clock.rng
        thoughts, output, tool = rng.randrange(300), rng.randrange(20, 600), rng.randrange(30)
        prompt, cached = self.cached + rng.randrange(100, 2_000), self.cached
        self.cached = prompt
        tokens = Tokens(prompt + tool - cached, cached, 0, 0, output + thoughts, thoughts)
        made: dict[str, Any] = {
            "id": self.clock.uuid(),
            "timestamp": self.clock.tick(),
            "type": "gemini",
            "model": MODEL,
            "content": self.clock.text(self.size),
            "toolCalls": [{"id": None, "args": {"tokens": {"input": 7}}, "status": "scheduled"}],
            "tokens": None,
        }
        self.put(made)
        for part in (output // 2, output):
            numbers = {
                "input": prompt,
                "output": part,
                "cached": cached,
                "thoughts": thoughts,
                "tool": tool,
                "total": prompt + part + thoughts + tool,
            }
            made = {**made, "tokens": numbers}
            self.put(made)
        self.home.truth.calls[made["id"]] = (self.owner or self.id, tokens)
        if self.owner is None:
            self.home.truth.context[self.id] = tokens.prompt + tokens.output
        return made

    def rewind(self, message: str) -> None:
        """Remove a message and all later ones."""
        self.write({"$rewindTo": message})
        known = [one["id"] for one in self.messages]
        self.messages = self.messages[: known.index(message)] if message in known else []
        self._measure()

    def checkpoint(self) -> None:
        """Append all current messages."""
        self.write({"$set": {"messages": self.messages}})

    def compress(self) -> None:
        """Replace older messages by a summary. The size is unknown until the next reply."""
        summary = {"id": self.clock.uuid(), "timestamp": self.clock.tick(), "type": "user"}
        self.messages = [summary, *self.messages[-2:]]
        self.checkpoint()
        self.cached = 900
        self.home.truth.context[self.id] = None

    def resume(self) -> Chat:
        """Continue a flat session as a log beside it, which starts with its messages."""
        other = Chat(self.home, self.path.with_suffix(".jsonl"), self.id)
        other.begin()
        other.messages, other.cached = [*self.messages], self.cached
        other.write(*self.messages)
        return other

    def half_line(self) -> None:
        """Append a line that is still being written."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write('{"id":"half","type":"gemini","tokens":{"inp')

    def subagent(self) -> None:
        """Write the file of a sub-agent."""
        path = self.path.parent / self.id / f"{self.clock.uuid()}.jsonl"
        child = Chat(self.home, path, path.stem, owner=self.id)
        child.begin()
        child.user()
        child.reply()

    def _measure(self) -> None:
        replies = [one["tokens"] for one in self.messages if one.get("tokens")]
        sizes = [sum(one.values()) - one["cached"] - one["total"] for one in replies]
        self.home.truth.context[self.id] = sizes[-1] if sizes else None


def everyday(home: GeminiHome, root: Path, turns: int = 4, **options: Any) -> Chat:
    """Write a typical session."""
    chat = home.session(root, **options)
    for _ in range(turns):
        chat.user()
        chat.reply()
        chat.reply()
    if chat.path.suffix == ".jsonl":
        chat.subagent()
    return chat
