"""Generates the databases of Goose, Crush and Zed with known totals. They stay open."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, stamp

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL, PROVIDER = "claude-sonnet-5", "anthropic"


@dataclass
class Store:
    """A database in which each session is a row that is updated."""

    path: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1
    tables = ""

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.executescript(self.tables)

    def put(self, table: str, **row: Any) -> None:
        """Insert or update a row."""
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.db.execute(
            f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
            tuple(row.values()),
        )

    def tokens(self) -> Tokens:
        """Return random tokens for a call, with cache reads and writes."""
        rng = self.clock.rng
        return Tokens(
            rng.randrange(1, 90), rng.randrange(4_000), rng.randrange(900), 0, rng.randrange(9, 400)
        )


class GooseStore(Store):
    """Goose's `sessions.db`."""

    tables = """
CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, name TEXT, user_set_name BOOLEAN,
  session_type TEXT NOT NULL DEFAULT 'user', parent_session_id TEXT, working_dir TEXT, created_at TIMESTAMP, updated_at TIMESTAMP, total_tokens INTEGER,
  input_tokens INTEGER, output_tokens INTEGER, accumulated_total_tokens INTEGER,
  accumulated_input_tokens INTEGER, accumulated_output_tokens INTEGER, provider_name TEXT,
  model_config_json TEXT);
CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT,
  role TEXT, content_json TEXT, created_timestamp INTEGER);
"""
    ledger_table = """
CREATE TABLE IF NOT EXISTS usage_ledger (id INTEGER PRIMARY KEY AUTOINCREMENT,
  session_id TEXT NOT NULL, created_timestamp INTEGER NOT NULL, model TEXT, input_tokens INTEGER,
  output_tokens INTEGER, total_tokens INTEGER, cache_read_tokens INTEGER,
  cache_write_tokens INTEGER, cost REAL, cost_source TEXT, is_compaction INTEGER DEFAULT 0);
"""

    def session(
        self, root: Path, calls: int = 3, *, ledger: bool = False, parent: str | None = None
    ) -> str:
        """Add a session, or a sub-agent's session if it has a parent.

        With `ledger`, the database has a row for each request.
        """
        name = self._create(root, parent)
        if ledger:
            self.db.execute(self.ledger_table)
        for _ in range(calls):
            self.call(name, ledger=ledger)
        return name

    def _create(self, root: Path, parent: str | None = None) -> str:
        name, at = self.clock.id(8), self._tick()
        self.put(
            "sessions", id=name, name="A name", user_set_name=True, working_dir=str(root),
            session_type="sub_agent" if parent else "user", parent_session_id=parent,
            created_at=at, updated_at=at, accumulated_input_tokens=0, accumulated_output_tokens=0,
            provider_name=PROVIDER, model_config_json=json.dumps(
                {"model_name": MODEL, "context_limit": 1_000_000, "temperature": None}
            ),
        )  # fmt: skip
        return name

    def call(self, name: str, *, ledger: bool = False) -> None:
        """Add a call and its message to a session. With `ledger`, it gets a row of its own."""
        tokens, at = self.tokens(), self._tick()
        now = int(self.clock.now.timestamp())
        self.put("messages", session_id=name, role="assistant", created_timestamp=now)
        self.db.execute(
            "UPDATE sessions SET updated_at = ?, total_tokens = ?, input_tokens = ?,"
            " output_tokens = ?, accumulated_input_tokens = accumulated_input_tokens + ?,"
            " accumulated_output_tokens = accumulated_output_tokens + ? WHERE id = ?",
            (at, tokens.prompt + tokens.output, *(tokens.prompt, tokens.output) * 2, name),
        )
        owner = self._column(name, "parent_session_id") or name
        if owner == name:
            self.truth.context[name] = tokens.prompt + tokens.output
        if ledger:
            number = self._add_row(
                name, model=MODEL, input_tokens=tokens.prompt, output_tokens=tokens.output,
                cache_read_tokens=tokens.read, cache_write_tokens=tokens.write, cost=0.01,
                cost_source="provider_reported",
            )  # fmt: skip
            self.truth.calls[f"{name}/{number}"] = (owner, tokens)
        else:
            _, before = self.truth.calls.get(name, (owner, Tokens()))
            total = Tokens(before.fresh + tokens.prompt, output=before.output + tokens.output)
            self.truth.calls[name] = (owner, total)

    def copy(self, name: str, *, imported: bool) -> str:
        """Copy a session with its messages. An import also copies the totals, a fork does not."""
        self.clock.now += timedelta(minutes=1)
        copy = self._create(Path(self._column(name, "working_dir")))
        self.db.execute(
            "INSERT INTO messages (session_id, role, created_timestamp)"
            " SELECT ?, role, created_timestamp FROM messages WHERE session_id = ?",
            (copy, name),
        )
        if imported:
            columns = ("accumulated_input_tokens", "accumulated_output_tokens")
            for column in columns:
                self.db.execute(
                    f"UPDATE sessions SET {column} = ? WHERE id = ?",  # noqa: S608
                    (self._column(name, column), copy),
                )
        return copy

    def carry_forward(self, name: str) -> None:
        """Add a row with a session's total, as Goose does before the first call in the ledger."""
        self._add_row(
            name, input_tokens=self._column(name, "accumulated_input_tokens"),
            output_tokens=self._column(name, "accumulated_output_tokens"),
            cost_source="carried_forward",
        )  # fmt: skip

    def _add_row(self, name: str, **columns: Any) -> int:
        now = int(self.clock.now.timestamp())
        self.put("usage_ledger", session_id=name, created_timestamp=now, **columns)
        return int(self.db.execute("SELECT max(id) FROM usage_ledger").fetchone()[0])

    def _column(self, name: str, column: str) -> Any:
        query = f"SELECT {column} FROM sessions WHERE id = ?"  # noqa: S608
        return self.db.execute(query, (name,)).fetchone()[0]

    def _tick(self) -> str:
        return self.clock.tick()[:19].replace("T", " ")


class CrushStore(Store):
    """Crush's `crush.db` of one project."""

    tables = """
CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, parent_session_id TEXT, title TEXT,
  message_count INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER, cost REAL,
  summary_message_id TEXT, updated_at INTEGER, created_at INTEGER);
CREATE TABLE IF NOT EXISTS messages (id TEXT PRIMARY KEY, session_id TEXT, role TEXT, parts TEXT,
  model TEXT, provider TEXT, created_at INTEGER, updated_at INTEGER);
"""

    def session(self, name: str = "", calls: int = 3, parent: str | None = None) -> str:
        """Add calls to a session. It stores the newest call's tokens and the total cost."""
        name = name or self.clock.uuid()
        for number in range(calls):
            tokens = self.tokens()
            self.clock.tick()
            now = int(self.clock.now.timestamp())
            self.put(
                "sessions", id=name, parent_session_id=parent, title="A title",
                prompt_tokens=tokens.prompt, completion_tokens=tokens.output,
                cost=0.25 * (number + 1), updated_at=now, created_at=now,
            )  # fmt: skip
            self.put("messages", id=self.clock.uuid(), session_id=name, role="assistant",
                     parts="[]", model=MODEL, provider=PROVIDER, created_at=now)  # fmt: skip
            if parent is None:
                self.truth.context[name] = tokens.prompt + tokens.output
        return name

    def summarize(self, name: str) -> None:
        """Add a summary, after which Crush stores the context's size as completion tokens."""
        self.db.execute(
            "UPDATE sessions SET prompt_tokens = 0, completion_tokens = 700,"
            " summary_message_id = 'm', updated_at = updated_at + 1 WHERE id = ?",
            (name,),
        )
        self.truth.context[name] = None


class ZedStore(Store):
    """Zed's `threads.db`. `pack` compresses documents."""

    tables = """
CREATE TABLE IF NOT EXISTS threads (id TEXT PRIMARY KEY, summary TEXT, updated_at TEXT,
  data_type TEXT, data BLOB, parent_id TEXT, folder_paths TEXT);
"""
    pack: Callable[[bytes], bytes] | None = None

    def thread(
        self,
        root: Path,
        turns: int = 3,
        *,
        name: str = "",
        parent: str | None = None,
        as_list: bool = False,
        reports: bool = True,
    ) -> str:
        """Add a thread. Each turn has several calls, but only the usage of the newest is stored.

        With `as_list`, usage is a list, as in older versions. Without `reports`, there is no usage.
        """
        name = name or self.clock.uuid()
        messages: list[Any] = []
        usage: dict[str, Any] = {}
        total = Tokens()
        for _ in range(turns):
            user = self.clock.uuid()
            messages += [{"User": {"id": user, "content": [{"Text": self.clock.text(200)}]}},
                         {"Agent": {"content": [{"Text": "…"}], "tool_results": {}}}, "Resume"]  # fmt: skip
            for _ in range(3):
                tokens = self.tokens()
                total = Tokens(*(one + two for one, two in zip(total, tokens, strict=True)))
                usage = {user: _zed(tokens), **{k: v for k, v in usage.items() if k != user}}
        if as_list:
            messages = [{"id": n, "role": ("user", "assistant")[n % 2]} for n in range(2 * turns)]
        in_list = [{}, *reversed(usage.values())]  # newest last
        if not reports:
            usage, in_list, total, tokens = {}, [], Tokens(), Tokens()
        document = json.dumps({
            "title": "A title", "messages": messages,
            "request_token_usage": in_list if as_list else usage,
            "cumulative_token_usage": _zed(total), "version": "0.2.0" if as_list else "0.3.0",
            "model": {"provider": "zed.dev", "model": MODEL},
        }).encode()  # fmt: skip
        self.clock.tick()
        self.put(
            "threads", id=name, summary="A title", updated_at=stamp(self.clock.now),
            data_type="zstd" if self.pack else "json",
            data=self.pack(document) if self.pack else document, parent_id=parent,
            folder_paths=str(root),
        )  # fmt: skip
        if reports:
            self.truth.calls[name] = (parent or name, total)
        if parent is None:
            self.truth.context[name] = tokens.prompt + tokens.output if reports else None
        return name


def _zed(tokens: Tokens) -> dict[str, int]:
    """Return tokens in Zed's format, which omits zeros."""
    named = {
        "input_tokens": tokens.fresh, "output_tokens": tokens.output,
        "cache_creation_input_tokens": tokens.write, "cache_read_input_tokens": tokens.read,
    }  # fmt: skip
    return {name: number for name, number in named.items() if number}
