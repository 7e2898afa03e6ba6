"""Generates opencode's sessions with known totals, in the formats of all versions."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.agents.truth import Clock, Tokens, Truth

if TYPE_CHECKING:
    from pathlib import Path

MODEL, PROVIDER = "claude-sonnet-5", "anthropic"
Form = Literal["files", "first", "second"]
_TABLES = """
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT,
  directory TEXT, title TEXT, time_created INTEGER, time_updated INTEGER);
CREATE TABLE IF NOT EXISTS message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
  time_updated INTEGER, data TEXT);
CREATE TABLE IF NOT EXISTS part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT,
  time_created INTEGER, time_updated INTEGER, data TEXT);
"""
_SECOND = """
CREATE TABLE IF NOT EXISTS session_v2 (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT,
  directory TEXT, title TEXT, time_created INTEGER, time_updated INTEGER, cost REAL,
  tokens_input INTEGER, fork_session_id TEXT, fork_boundary INTEGER, time_compacting INTEGER);
CREATE TABLE IF NOT EXISTS session_message (id TEXT PRIMARY KEY, session_id TEXT, type TEXT,
  seq INTEGER, time_created INTEGER, time_updated INTEGER, data TEXT);
"""


@dataclass
class OpenHome:
    """A folder `~/.local/share/opencode`. Its database stays open, as in opencode."""

    folder: Path
    name: str = "opencode"
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"{self.name}.db"
        self._db: sqlite3.Connection | None = None

    @property
    def db(self) -> sqlite3.Connection:
        """The connection to the database. The first use opens it."""
        if self._db is None:
            self._db = sqlite3.connect(self.path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(_TABLES)
        return self._db

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()

    def now(self) -> int:
        """Return a time in milliseconds since 1970, which increases with each call."""
        self.clock.tick()
        return int(self.clock.now.timestamp() * 1000)

    def session(
        self, root: Path, form: Form = "second", parent: Conversation | None = None
    ) -> Conversation:
        """Start a session that works in `root`."""
        return Conversation(self, f"ses_{self.now():x}{self.clock.id(8)}", os.path.realpath(root), form,
                    parent)  # fmt: skip

    def put(self, table: str, **row: Any) -> None:
        """Insert or update a row."""
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.db.execute(
            f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
            tuple(row.values()),
        )


@dataclass
class Conversation:
    """A session. Each method writes what opencode would write."""

    home: OpenHome
    id: str
    root: str
    form: Form
    parent: Conversation | None = None
    title: str = "A title"
    messages: list[tuple[str, str, int, dict[str, Any]]] = field(default_factory=list)
    """The id, role, sequence number and data of each message."""

    def __post_init__(self) -> None:
        self.cached = 0
        self.forked: tuple[str, int] | None = None
        if self.parent is None:
            self.home.truth.context[self.id] = None
        if self.form == "second":
            self.home.db.executescript(_SECOND)
        self.save()

    def save(self) -> None:
        """Write the session's own row."""
        now, parent = self.home.now(), self.parent.id if self.parent else None
        if self.form == "files":
            fields = {"id": self.id, "directory": self.root, "title": self.title,
                      "parentID": parent, "time": {"created": now, "updated": now}}  # fmt: skip
            self._file("session", "proj", f"{self.id}.json", fields)
            return
        row: dict[str, Any] = {
            "id": self.id, "project_id": "proj", "parent_id": parent, "directory": self.root,
            "title": self.title, "time_created": now, "time_updated": now,
        }  # fmt: skip
        if self.forked and self.form == "second":
            row |= {"fork_session_id": self.forked[0], "fork_boundary": self.forked[1]}
        self.home.put("session_v2" if self.form == "second" else "session", **row)

    def _file(self, kind: str, folder: str, name: str, data: dict[str, Any]) -> None:
        path = self.home.folder / "storage" / kind / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=2))

    def put(self, name: str, role: str, seq: int, data: dict[str, Any]) -> None:
        """Add or replace a message."""
        if self.form == "files":
            self._file("message", self.id, f"{name}.json",
                       {"id": name, "sessionID": self.id, "role": role, **data})  # fmt: skip
            return
        created, now = data["time"]["created"], self.home.now()
        row: dict[str, Any] = {"id": name, "session_id": self.id, "time_created": created,
                               "time_updated": now}  # fmt: skip
        if self.form == "second":
            self.home.put("session_message", **row, type=role, seq=seq, data=json.dumps(data))
        else:
            self.home.put("message", **row, data=json.dumps({"role": role, **data}))

    def message(self, role: str, **data: Any) -> tuple[str, str, int, dict[str, Any]]:
        """Add a message."""
        now = self.home.now()
        made = (f"msg_{now:x}", role, len(self.messages) + 1, {"time": {"created": now}, **data})
        self.messages.append(made)
        self.put(*made)
        return made

    def user(self) -> None:
        """Add a user message. Older versions store changes in `summary`."""
        text = self.home.clock.text(300) + '"tokens":{"input":99999}'
        self.message("user", summary={"title": text, "diffs": []}, parts=[{"text": text}])

    def reply(self, **more: Any) -> None:
        """Add a reply. Its tokens are 0 until it is complete."""
        rng = self.home.clock.rng
        tokens = Tokens(
            rng.randrange(1, 50), self.cached, rng.randrange(100, 2_000), 0,
            rng.randrange(60, 900), rng.randrange(60),
        )  # fmt: skip
        self.cached += tokens.write
        named: dict[str, Any] = {"modelID": MODEL, "providerID": PROVIDER}
        if self.form == "second":
            named = {"model": {"id": MODEL, "providerID": PROVIDER}}
        numbers = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        name, role, seq, data = self.message(
            "assistant",
            **{**named, "tokens": numbers, "cost": 0, "path": {"cwd": self.root}, **more},
        )
        data["tokens"] = {
            "input": tokens.fresh, "output": tokens.output - tokens.reasoning,
            "reasoning": tokens.reasoning,
            "cache": {"read": tokens.read, "write": tokens.write},
        }  # fmt: skip
        data["time"]["completed"] = self.home.now()
        self.put(name, role, seq, data)
        owner = self.parent or self
        self.home.truth.calls[name] = (owner.id, tokens)
        if self.parent is None:
            self.home.truth.context[self.id] = tokens.prompt + tokens.output

    def compact(self) -> None:
        """Add a summary. Its tokens are not the context's size."""
        self.user()
        if self.form == "first":
            now = self.home.now()
            self.home.put("part", id=f"prt_{now}", message_id="m", session_id=self.id,
                          time_created=now, data='{"type":"compaction","auto":true}')  # fmt: skip
        self.reply(summary=True)
        self.home.truth.context[self.id] = None
        self.cached = 500

    def fork(self) -> Conversation:
        """Return a session with copies of all messages under new ids."""
        other = self.home.session(self.root, self.form)  # type: ignore[arg-type]
        other.forked, other.cached = (self.id, len(self.messages)), self.cached
        other.save()
        for name, role, seq, data in self.messages:
            copied = (f"{name}f", role, seq, data)
            other.messages.append(copied)
            other.put(*copied)
        self.home.truth.context[other.id] = self.home.truth.context[self.id]
        return other

    def upgrade(self) -> Conversation:
        """Copy the session to the tables of 2.x. The old tables do not change."""
        other = Conversation(self.home, self.id, self.root, "second")
        for name, role, seq, data in self.messages:
            model = {"id": data.get("modelID"), "providerID": data.get("providerID")}
            moved = (name, role, seq, {**data, "model": model})
            other.messages.append(moved)
            other.put(*moved)
        other.cached = self.cached
        return other


def everyday(home: OpenHome, root: Path, form: Form = "second", turns: int = 3) -> Conversation:
    """Write a typical session."""
    made = home.session(root, form)
    for _ in range(turns):
        made.user()
        made.reply()
    child = home.session(root, form, parent=made)
    child.user()
    child.reply()
    return made
