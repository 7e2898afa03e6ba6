"""Checks that no text from agents' sessions is stored or logged.

Run it as `python -m tests.fuzz.agent_secrets [MEGABYTES]`. It generates sessions with secrets, such
as keys and e-mail addresses, in messages, titles, tool calls, results and malformed lines. A server
and the command line read all of them. The numbers must be right. The ledger, the state folder, logs
and error messages must not contain secrets. No agent's file may be changed or opened for writing,
except SQLite's `-wal` and `-shm` files. With `agents.enabled = false`, no file may be opened. Set
`TRACER=audit` to use Python's audit events instead of strace.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.agents import (
    claude,
    cline,
    cline_sessions,
    codex,
    copilot,
    copilot_cli,
    databases,
    gemini,
    opencode,
    others,
)
from benchmarks.agents.corpus import history
from benchmarks.agents.truth import WORDS, Clock, Truth, append
from benchmarks.client import StdioClient
from benchmarks.following import _totals
from sidecar.agents.compressed import zstd
from tests.fuzz import opened_files
from tests.fuzz.opened_files import Opened

MEGABYTES = 100.0
MARK = "planted"
"""A substring that all secrets share."""
_FORMS = (MARK.encode(), MARK.encode("utf-16-le"), MARK.encode().hex().encode())
_NUMBERS = itertools.count()
_HOMES = (".claude", ".codex", ".config", ".gemini", ".local", ".cline", ".copilot")


def secret() -> str:
    """Return unique secrets: a key, two tokens, an e-mail address, a word and a path."""
    number = next(_NUMBERS)
    return (
        f"sk-{MARK}{number:016x} ghp_{MARK}{number:024x} AKIA{MARK.upper()}{number:09X}"
        f" person{number}@{MARK}.example {MARK}word{number} /home/{MARK}{number}/notes.txt "
    )


def _text(_: Clock, length: int) -> str:
    text = secret()
    return text + WORDS * max(0, (length - len(text)) // len(WORDS))


def plant(home: Path, megabytes: float, writers: ExitStack) -> list[Truth]:
    """Create sessions in all kinds of stores. Other processes keep the databases open."""
    truths, root = history(home, megabytes), home / "work" / "0"
    return [*truths, *_logs(home, root), *_documents(home, root), *_databases(home, root, writers)]


def _logs(home: Path, root: Path) -> Iterator[Truth]:
    """Create line-based session files with titles and malformed lines."""
    chats = copilot.CodeHome(home / ".config" / "Code" / "User", seed=11)
    chat = copilot.everyday(chats, root)
    chat.state["customTitle"] = secret()
    chat.save()
    chat.write({"kind": 1, "k": ["requests", 0, "elapsedMs"], "v": secret()})
    titled = claude.ClaudeHome(home / ".claude", seed=12)
    _broken(claude.everyday(titled, root))
    geminis = gemini.GeminiHome(home / ".gemini", seed=13)
    gemini.everyday(geminis, root).write({"$set": {"summary": secret()}})
    codexes = codex.CodexHome(home / ".codex", seed=14)
    codex.everyday(codexes, root).event("thread_name_updated", thread_name=secret())
    yield from (one.truth for one in (chats, titled, geminis, codexes))


def _documents(home: Path, root: Path) -> Iterator[Truth]:
    """Create stores that agents rewrite completely."""
    storage = home / ".config" / "Code" / "User" / "globalStorage"
    tasks = cline.ClineHome(storage / "saoudrizwan.claude-dev", seed=15)
    cline.everyday(tasks, root)
    sessions = cline_sessions.SessionsHome(home / ".cline" / "data" / "sessions", seed=16)
    cline_sessions.everyday(sessions, root)
    path = others.amp(home / ".local" / "share" / "amp", root, amp := Truth())
    path.write_text(path.read_text().replace("A title", secret()))
    yield from (tasks.truth, sessions.truth, amp)


def _databases(home: Path, root: Path, writers: ExitStack) -> Iterator[Truth]:
    """Create SQLite stores that other processes keep open."""
    data = home / ".local" / "share"
    opened_code = opencode.OpenHome(data / "opencode", seed=17)
    opencode.everyday(opened_code, root)
    opened_code.db.execute("UPDATE session_v2 SET title = ?", (secret(),))
    zed = databases.ZedStore(data / "zed" / "threads" / "threads.db", seed=18)
    zed.pack = zstd.compress
    zed.thread(root)
    zed.db.execute("UPDATE threads SET summary = ?", (secret(),))
    goose = databases.GooseStore(data / "goose" / "sessions" / "sessions.db", seed=19)
    goose.session(root, ledger=True)
    goose.db.execute("UPDATE sessions SET name = ?", (secret(),))
    cli = copilot_cli.CliHome(home / ".copilot", seed=20)
    copilot_cli.everyday(cli, root)
    for made in (opened_code, zed, goose, cli):
        writers.enter_context(closing(made.db))
        yield made.truth


def _broken(session: claude.Transcript) -> None:
    """Write titles, and lines that readers cannot decode."""
    session.write({"type": "custom-title", "customTitle": secret()})
    session.write({"type": "summary", "summary": secret()})
    append(session.path, {"type": "assistant", "message": {"usage": secret(), "model": secret()}})
    with session.path.open("a", encoding="utf-8") as file:
        file.write('{"usage" broken ' + secret() + "\n")


def states(home: Path) -> dict[str, tuple[int, int, str]]:
    """Return each agent file's size, modification time and hash.

    The hash of a database also covers its rows.
    """
    found = {}
    for path in (one for name in _HOMES for one in (home / name).rglob("*") if one.is_file()):
        if not path.name.endswith(("-wal", "-shm")):
            stat, digest = path.stat(), hashlib.sha256(path.read_bytes())
            for line in _dump(path) if path.suffix == ".db" else ():
                digest.update(line.encode())
            found[str(path)] = (stat.st_size, stat.st_mtime_ns, digest.hexdigest())
    return found


def _dump(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        yield from database.iterdump()


class Reading:
    """Runs token-sidecar on a home folder, and records what is stored, logged and opened."""

    def __init__(self, home: Path, state: Path, *, enabled: bool = True) -> None:
        self.home, self.state = home, state
        self.traced = os.environ.get("TRACER") != "audit" and opened_files.may_trace()
        state.mkdir()
        config = state.with_suffix(".toml")
        config.write_text("" if enabled else "[agents]\nenabled = false\n")
        variables = {"HOME": str(home), "TOKEN_SIDECAR_STATE": str(state),
                     "TOKEN_SIDECAR_CONFIG": str(config)}  # fmt: skip
        os.environ.update(variables)
        self.logs = state.with_suffix(".opened")
        self.logs.mkdir()
        self.outputs: list[bytes] = []

    def serve(self) -> None:
        """Run an editor session with all requests about agents, including invalid ones."""
        command = opened_files.command(
            self.logs / "serve", "serve", "--log-level", "DEBUG", traced=self.traced
        )
        with (self.state.with_suffix(".stderr")).open("wb") as stderr:
            client = StdioClient(command, stderr=stderr)
            client.initialize(self.home / "work" / "0")
            rows = client.request("context/sessions", {"all": True})
            self._ask(client, "cost/detail", {})
            self._ask(client, "cost/files", {})
            for row in rows[:3]:
                for method in ("context/select", "context/fit", "context/append"):
                    self._ask(client, method, {"session": row["id"]})
            self._ask(client, "context/usage", {"session": "unknown"})
            client.close()
        self.outputs.append(self.state.with_suffix(".stderr").read_bytes())

    def _ask(self, client: StdioClient, method: str, params: dict[str, Any]) -> None:
        try:
            client.request(method, params)
        except RuntimeError as error:
            self.outputs.append(str(error).encode())

    def verb(self, *arguments: str, titles: bool = False) -> None:
        """Run a command. Its output must not contain secrets, except for titles."""
        log = self.logs / arguments[0]
        command = opened_files.command(log, *arguments, traced=self.traced)
        result = subprocess.run(
            command, cwd=self.home / "work" / "0", capture_output=True, stdin=subprocess.DEVNULL
        )
        assert result.returncode == 0, result.stderr
        self.outputs += [result.stderr] if titles else [result.stdout, result.stderr]

    def run(self) -> None:
        """Run the editor session, followed by the command line."""
        self.serve()
        self.verb("cost", "--json")
        self.verb("doctor", "--json")
        self.verb("statusline")
        self.verb("usage", "--all", "--json", titles=True)

    def leaks(self) -> list[str]:
        """Return the files and output that contain secrets."""
        kept = [path for path in self.state.rglob("*") if path.is_file()]
        found = [str(path) for path in kept if _has_secret(path.read_bytes())]
        leaked = [text for text in self.outputs if _has_secret(text)]
        return found + [text.decode(errors="replace")[:500] for text in leaked]

    def opened(self) -> list[Opened]:
        """Return the agents' files that were opened or changed."""
        homes = tuple(f"{self.home}/{name}/" for name in _HOMES)
        found = itertools.chain(*map(opened_files.read, sorted(self.logs.iterdir())))
        return [one for one in found if one.path.startswith(homes)]


def _has_secret(data: bytes) -> bool:
    lower = data.lower()
    return any(form in data or form in lower for form in _FORMS)


def check(home: Path, folder: Path, truths: list[Truth]) -> None:
    """Run all checks that the module describes.

    Raises:
        AssertionError: A check failed.
    """
    before = states(home)
    reading = Reading(home, folder / "state")
    reading.run()
    totals = [truth.total for truth in truths]
    assert _totals(reading.state) == (
        sum(len(truth.calls) for truth in truths),
        sum(total.prompt for total in totals),
        sum(one.output for one in totals),
    )
    assert reading.leaks() == [], reading.leaks()
    seen = reading.opened()
    assert len({one.path for one in seen}) > len(_HOMES)
    written = {one.path for one in seen if one.writes}
    assert [path for path in written if not path.endswith(("-wal", "-shm"))] == []
    assert states(home) == before
    disabled = Reading(home, folder / "disabled", enabled=False)
    disabled.run()
    assert disabled.opened() == []
    assert states(home) == before
    kept = sum(path.is_file() for path in reading.state.rglob("*"))
    print(f"  {next(_NUMBERS):,} secrets planted, none found in {kept} stored files or in outputs")
    print(f"  {len(before)} agent files unchanged, {len(seen)} times opened;"
          f" {len(written)} SQLite files opened for writing ({_by(reading)})")  # fmt: skip
    print("  agents.enabled = false: none opened")


def _by(reading: Reading) -> str:
    return "strace" if reading.traced else "Python's audit events"


def main(megabytes: float) -> None:
    """Generate the sessions, read them, and check the results."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as writers:
        folder = Path(name).resolve()
        home = folder / "home"
        with patch.object(Clock, "text", _text):
            truths = plant(home, megabytes, writers)
        print(
            f"Secrets in {megabytes:g} MB of sessions, {sum(len(truth.calls) for truth in truths)} calls"
        )
        check(home, folder, truths)


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else MEGABYTES)
