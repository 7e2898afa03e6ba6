"""Generates Copilot CLI's database and events with known totals. The database stays open."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, append

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "claude-opus-5"
_COLUMNS = (
    "id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, turn_index INTEGER,"
    " model TEXT, input_tokens INTEGER, output_tokens INTEGER, cache_read_tokens INTEGER,"
    " cache_write_tokens INTEGER, reasoning_tokens INTEGER, created_at TEXT"
)
_NEWER = ", token_details_json TEXT, total_nano_aiu INTEGER, initiator TEXT, agent_id TEXT"


@dataclass
class CliHome:
    """A folder `~/.copilot`. With `newer`, the database has the columns of the newest releases."""

    folder: Path
    newer: bool = True
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "session-store.db"
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA wal_autocheckpoint = 0")
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS sessions"
            " (id TEXT PRIMARY KEY, cwd TEXT, repository TEXT, branch TEXT, created_at TEXT)"
        )
        more = _NEWER if self.newer else ""
        self.db.execute(f"CREATE TABLE IF NOT EXISTS assistant_usage_events ({_COLUMNS}{more})")

    def session(self, root: Path) -> str:
        """Start a session that works in `root`."""
        name, cwd = self.clock.uuid(), os.path.realpath(root)
        self.db.execute("INSERT INTO sessions VALUES (?, ?, NULL, 'main', ?)", (name, cwd, "x"))
        folder = self.folder / "session-state" / name
        folder.mkdir(parents=True)
        (folder / "workspace.yaml").write_text(f"id: {name}\ncwd: {cwd}\n")
        self.event(name, "session.start", sessionId=name, selectedModel=MODEL)
        self.truth.context[name] = None
        return name

    def event(self, session: str, kind: str, **data: Any) -> None:
        """Append an event of a session."""
        line = {"type": kind, "data": data, "id": self.clock.uuid(), "timestamp": self.clock.tick()}
        append(self.folder / "session-state" / session / "events.jsonl", line)

    def call(self, session: str, initiator: str = "user", *, zero: bool = False) -> Tokens:
        """Add a request. With `zero`, its row has a wrong 0 for the cache writes."""
        rng = self.clock.rng
        tokens = Tokens(
            rng.randrange(1, 900), rng.randrange(9_000, 90_000), rng.randrange(1, 900), 0,
            rng.randrange(30, 900), rng.randrange(30),
        )  # fmt: skip
        self.event(session, "assistant.turn_start")
        row: dict[str, Any] = {
            "session_id": session, "model": MODEL, "input_tokens": tokens.prompt,
            "output_tokens": tokens.output, "cache_read_tokens": tokens.read,
            "cache_write_tokens": 0 if zero else tokens.write,
            "reasoning_tokens": tokens.reasoning,
            "created_at": self.clock.tick()[:19].replace("T", " "),
        }  # fmt: skip
        if self.newer:
            details = [
                {"tokenType": "input", "tokenCount": tokens.fresh, "batchSize": 1_000_000},
                {"tokenType": "cache_write", "tokenCount": tokens.write, "costPerBatch": 1},
            ]
            row |= {
                "token_details_json": json.dumps(details), "total_nano_aiu": 25 * 10**8,
                "initiator": initiator, "agent_id": "a1" if initiator == "sub-agent" else None,
            }  # fmt: skip
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        made = self.db.execute(
            f"INSERT INTO assistant_usage_events ({names}) VALUES ({marks})",  # noqa: S608
            tuple(row.values()),
        )
        self.truth.calls[f"{session}/{made.lastrowid}"] = (session, tokens)
        if initiator == "user":
            self.event(session, "assistant.message", messageId="m", outputTokens=tokens.output)
            self.truth.context[session] = tokens.prompt + tokens.output
        elif initiator == "compaction":
            self.event(session, "session.compaction_complete", compactionTokensUsed={"input": 9})
            self.truth.context[session] = None
        return tokens


def everyday(home: CliHome, root: Path, calls: int = 4) -> str:
    """Write a typical session."""
    session = home.session(root)
    for _ in range(calls):
        home.call(session)
    if home.newer:
        home.call(session, "compaction")
        home.call(session, zero=True)
        home.call(session, "sub-agent")
    usage = {"inputTokens": 5, "outputTokens": 5}
    home.event(session, "session.shutdown", modelMetrics={MODEL: {"usage": usage}})
    return session
