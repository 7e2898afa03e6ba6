"""Sends random messages to a real server: `python -m tests.fuzz.message_soak --messages 1000000`.

The messages are valid, mutated (missing, swapped or wrongly typed fields, deep nesting, infinite
numbers) or arbitrary bytes. Some have reused or unknown ids, precede `initialize`, follow
`shutdown`, or are unexpected responses. Each request must get one response. The server must run
until it gets `exit` or a message over the size limit. If a check fails, or memory grows by more
than a tenth after the first 100,000 messages, the exit code is 1.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from benchmarks.client import SERVER
from sidecar.server.stdio import MAX_FRAME_BYTES, Framer
from tests.fuzz.messages import Message, Messages, body, ends, is_owed

MOST_OPEN = 64
"""The maximum number of unanswered requests."""
PATIENCE_SECONDS = 30.0
SETTLED = 100_000
"""The number of messages after which memory may grow only by the fraction `GROWTH`."""
GROWTH = 0.1
EVERY = 10_000
"""The number of messages between progress reports."""
BEFORE, AFTER = 200, 200
"""How many messages are sent before `initialize`, and how many after `shutdown`."""

CAPABILITIES = {
    "general": {"positionEncodings": ["utf-16"]},
    "window": {"workDoneProgress": True},
    "workspace": {
        "configuration": True,
        "inlayHint": {"refreshSupport": True},
        "codeLens": {"refreshSupport": True},
    },
    "textDocument": {
        "inlayHint": {"dynamicRegistration": True},
        "codeLens": {"dynamicRegistration": True},
        "publishDiagnostics": {},
    },
}


class WrongError(Exception):
    """Raised if the server violates the protocol."""


class Session:
    """A server process, with its unanswered requests and its responses."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        root = folder / "workspace"
        (root / "src").mkdir(parents=True, exist_ok=True)
        settings = '[[budget]]\nfiles = "*.md"\nmax-tokens = 5\n'
        (root / ".token-sidecar.toml").write_text(settings, encoding="utf-8")
        self._root = root.as_uri()
        self.messages = Messages(self._chance, self._root)
        self.sent = self.answers = self.mangled = 0
        self._owed: collections.Counter[Hashable] = collections.Counter()
        self._methods: dict[Hashable, object] = {}
        self._strays = 0
        self._news = threading.Condition()
        self._write_lock = threading.Lock()
        self._log = (folder / "stderr").open("w+b")
        self.process = subprocess.Popen(
            [*SERVER, "--log-level", "ERROR"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(folder),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, messages: int, end: str) -> Iterator[int]:
        """Send messages, and yield the total number after each thousand."""
        self._random_ones(min(BEFORE, messages // 4), ("initialize",))
        params = {"processId": os.getpid(), "rootUri": self._root, "capabilities": CAPABILITIES}
        self._send({"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": params})
        self._send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        while self.sent < messages - min(AFTER, messages // 4):
            self._random_ones(1_000)
            if (
                self.sent % EVERY < 1_000
            ):  # Reset conversations, because their growth is not a leak.
                self._send(self.messages.folders(removed=True))
                self._send(self.messages.folders(removed=False))
            yield self.sent
        self._wait(0)
        self._send({"jsonrpc": "2.0", "id": "last", "method": "shutdown"})
        self._random_ones(max(0, messages - self.sent - 1))
        self._wait(0)
        if end == "exit":
            self._send({"jsonrpc": "2.0", "method": "exit"})
        else:
            self._write(b"Content-Length: %d\r\n\r\n" % (MAX_FRAME_BYTES + 1))
        self._ended()

    def _random_ones(self, wanted: int, barred: tuple[str, ...] = ()) -> None:
        for _ in range(wanted):
            message = self.messages.next()
            if isinstance(message, bytes):
                self.mangled += 1
                self._frame(message)
            elif not ends(message) and message.get("method") not in barred:
                self._send(message)
            else:
                self._frame(b"[]")

    def _send(self, message: Message) -> None:
        if is_owed(message):
            with self._news:
                self._owed[message["id"]] += 1
                self._methods[message["id"]] = message.get("method")
            self._wait(MOST_OPEN)
        self._frame(body(message))

    def _frame(self, content: bytes) -> None:
        """Write a message. At random, write invalid data or a message with an incorrect length first."""
        self.sent += 1
        noise = self._chance.random()
        if noise < 0.01:
            self._write(b"\x00 no header \xff\r\n")
        elif noise < 0.02:
            self._write(b"Content-Length: 1\r\n\r\n[, and more than was announced")
        self._write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))

    def _write(self, data: bytes) -> None:
        stream = cast("IO[bytes]", self.process.stdin)
        try:
            with self._write_lock:
                stream.write(data)
                stream.flush()
        except OSError:
            raise WrongError(
                f"the server exited after {self.sent} messages\n{self.errors()}"
            ) from None

    def _wait(self, most: int) -> None:
        """Wait until no more than this many requests are pending."""
        with self._news:
            while self._owed.total() > most:
                before = self.answers
                self._news.wait(PATIENCE_SECONDS)
                if self.answers == before:
                    late = [(number, self._methods[number]) for number in self._owed]
                    raise WrongError(f"no response to {late!r:.3000}\n{self.errors()}")

    def _ended(self) -> None:
        code = self.process.wait(30)
        self._reader.join(30)
        if code != 0:
            raise WrongError(f"the server exited with {code}")
        if any(self._owed.values()) or self._strays > self.mangled:
            raise WrongError(f"{self._strays} unexpected responses")
        cast("IO[bytes]", self.process.stdin).close()

    def close(self) -> None:
        """Stop the process, and remove its files."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            with contextlib.suppress(OSError, ValueError):
                cast("IO[bytes]", stream).close()

    def errors(self) -> str:
        """Return the server log's last lines."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4_000))
        return self._log.read().decode("utf-8", "replace")

    def _read(self) -> None:
        framer, stream = Framer(), cast("IO[bytes]", self.process.stdout)
        while data := os.read(stream.fileno(), 1 << 18):
            for frame in framer.feed(data):
                message = json.loads(cast("bytes", frame), parse_constant=_refuse)
                if "method" not in message:
                    self._answered(message["id"])
                elif "id" in message:
                    self._asked(message)

    def _answered(self, number: Hashable) -> None:
        with self._news:
            if self._owed.get(number, 0) > 0:
                self._owed[number] -= 1
                if not self._owed[number]:
                    del self._owed[number], self._methods[number]
                self.answers += 1
                self._news.notify()
            elif number is not None:
                self._strays += 1

    def _asked(self, message: Message) -> None:
        """Answer the server's request correctly, with an error, with a wrong result, or twice."""
        chance = self._chance.random()
        answer: Message = {"jsonrpc": "2.0", "id": message["id"], "result": _right(message)}
        if chance < 0.1:
            answer = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": 1, "message": ""}}
        elif chance < 0.2:
            answer["result"] = self._chance.choice((5, "x", [], {}, [{"tokenSidecar": 3}]))
        for _ in range(2 if chance > 0.9 else 1):
            content = json.dumps(answer).encode()
            with contextlib.suppress(WrongError):
                self._write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))

    def memory(self) -> int:
        """Return the process's resident memory in kilobytes, or 0 if `ps` is not available."""
        command = ["ps", "-o", "rss=", "-p", str(self.process.pid)]
        try:
            return int(subprocess.run(command, capture_output=True, check=True).stdout)
        except OSError:
            return 0


def _right(message: Message) -> Any:
    if message["method"] == "workspace/configuration":
        return [None for _ in message["params"]["items"]]
    return {"title": "Go on"} if message["method"] == "window/showMessageRequest" else None


def _refuse(number: str) -> None:
    raise WrongError(f"the server sent {number}, which is not valid JSON")


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment that hides the user's own files."""
    home = str(folder)
    ours = {"TOKEN_SIDECAR_STATE": f"{home}/state", "TOKEN_SIDECAR_CONFIG": f"{home}/none.toml"}
    return {**os.environ, "HOME": home, "USERPROFILE": home, **ours}


def soak(
    messages: int, seed: int, end: str, report: Callable[[int, int, int], None] = lambda *_: None
) -> tuple[int, int]:
    """Run a session. Return the server's memory in kilobytes after the start phase and at the end.

    Raises:
        WrongError: A response is missing or superfluous, or the server ended early.
    """
    settled = last = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        session = Session(Path(name), seed)
        try:
            for sent in session.run(messages, end):
                if sent % EVERY < 1_000 or sent + AFTER >= messages or not last:
                    last = session.memory()
                    settled = settled if settled and sent > SETTLED + 1_000 else last
                    report(sent, session.answers, last)
        finally:
            session.close()
    return settled, last


def main() -> int:
    """Run a session, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--end", choices=("exit", "oversized"), default="exit")
    args = parser.parse_args()
    began = time.monotonic()

    def report(sent: int, answers: int, memory: int) -> None:
        seconds = time.monotonic() - began
        sys.stderr.write(f"{sent} messages, {answers} answers, {memory} KB, {seconds:.0f} s\n")

    try:
        settled, last = soak(args.messages, args.seed, args.end, report)
    except WrongError as error:
        sys.stderr.write(f"seed {args.seed}: {error}\n")
        return 1
    growth = last / max(1, settled) - 1
    sys.stdout.write(
        f"{args.messages} messages, each request answered once, {settled} KB after "
        f"{min(SETTLED, args.messages)} and {last} KB at the end ({growth:+.1%}), "
        f"{time.monotonic() - began:.0f} s\n"
    )
    return int(args.messages > SETTLED and growth > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
