"""A second process that counts with us while a very long document is counted for the first time.

Counting holds the interpreter, so threads alone use one core. The process is this module, started
when a long document comes and ended when it has had nothing to do for a while. It is a helper that
nothing depends on: we count from the front, it counts from the back, and pieces that it has not
answered for when we come to them are counted here. Whether it is slow, stopped, killed or cannot
be started at all, the number is the same, for both sides count by the same engine.

It is handed text through a pipe, and ends when that pipe does: with the server, however that ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import IO, TYPE_CHECKING, cast

from sidecar.counting.engines import engine, names

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.text.pieces import Piece

LONG_CHARACTERS = 2_000_000
"""From so much uncounted text on, a second process is worth its start: a tenth of a second, in
which we count as much alone."""
BATCH_PIECES = 16, 128
"""What is handed over at once, at least and at most: 2 to 20 ms of work."""
_PARTS = 12
"""It is a part of what is left, so that both come to the middle at about the same time."""
_AHEAD = 2
"""How many batches it has: one that it counts, and one that it goes on with at once."""
IDLE_SECONDS = 10.0
"""How long it is kept with nothing to do."""
ANSWER_SECONDS = 10.0
"""How long one answer may take; meanwhile we have counted the same text."""
NICENESS = 10
"""It gives way to the editor: where both want a core, a key is worth more than a number."""
_PIPE_BYTES = 1 << 20
"""Room for all that it has at once: whoever writes never waits."""
_RELEASE_SECONDS = 1.0
_FAILURES = 2
"""After so many ends that nobody asked for, this server starts no more."""
_ENVIRONMENT = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that Python may need to start; the rest, keys among it, is not handed on."""
_CODE = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from sidecar.workspace.second_process import main; main()"
)


class SecondProcess:
    """Starts, feeds and ends the process. Any thread may call any method; `count` blocks."""

    def __init__(
        self, idle_seconds: float = IDLE_SECONDS, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._idle_seconds, self._answer_seconds = idle_seconds, answer_seconds
        self._turn = threading.Lock()  # one text at a time
        self._state = threading.Lock()  # short: what follows is read and written under it
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._closed = False
        self._since = 0.0  # the last start of a batch, or end of one
        self._ended = threading.Event()

    @property
    def pid(self) -> int | None:
        """The process that runs, if one does."""
        with self._state:
            return self._process.pid if self._process else None

    def start(self) -> subprocess.Popen[bytes] | None:
        """Have it running, if it can be; some milliseconds when it was not."""
        with self._state:
            if self._process is None and not self._closed and self._failures < _FAILURES:
                self._process = _started()
                self._failures += self._process is None
                if self._process is not None:
                    self._since, self._ended = time.monotonic(), threading.Event()
                    watching = (self._process, self._ended)
                    threading.Thread(target=self._watch, args=watching, daemon=True).start()
            return self._process

    def prepare(self, name: str) -> None:
        """Have it running with a vocabulary loaded: the time of counting 2 MB."""
        self.count(["a"], name)

    def count(self, texts: Sequence[str], name: str) -> list[int] | None:
        """The tokens of each text by the vocabulary `name`; None where it could not be had."""
        return next(self.count_each([texts], name), None)

    def count_each(self, batches: Iterable[Sequence[str]], name: str) -> Iterator[list[int]]:
        """The tokens of each text of one batch after the other, until it cannot be had.

        A batch is taken, and handed over, before the counts of the one before are waited for:
        whoever counts there never waits for us, who may have to wait for the interpreter.
        """
        with self._turn:
            self._since = time.monotonic()
            process = self.start()
            if process is None:
                return
            try:
                for counts in _answers(process, batches, name):
                    self._since = time.monotonic()
                    yield counts
            except (OSError, ValueError):
                self._end(process, failed=True)
                _close_pipes(process)

    def close(self) -> None:
        """End it for good."""
        with self._state:
            self._closed, process = True, self._process
        if process is not None:
            self._end_from_outside(process, failed=False)

    def _watch(self, process: subprocess.Popen[bytes], ended: threading.Event) -> None:
        """End it when it is idle for long, or does not answer."""
        while not ended.wait(min(self._idle_seconds, self._answer_seconds) / 4):
            asked = self._turn.locked()
            patience = self._answer_seconds if asked else self._idle_seconds
            if time.monotonic() - self._since > patience:
                self._end_from_outside(process, failed=asked)

    def _end_from_outside(self, process: subprocess.Popen[bytes], *, failed: bool) -> None:
        """Whoever waits for its answer hears of it, and then lets go of its pipes."""
        self._end(process, failed=failed)
        if self._turn.acquire(timeout=_RELEASE_SECONDS):
            _close_pipes(process)
            self._turn.release()

    def _end(self, process: subprocess.Popen[bytes], *, failed: bool) -> None:
        with self._state:
            if self._process is not process:
                return
            self._process = None
            self._failures += failed and not self._closed
            self._ended.set()
        process.kill()
        process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # of what was not written yet
            if pipe is not None:
                pipe.close()


def count_together(
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    count: Callable[[], int],
    second: SecondProcess,
) -> int:
    """What `count` says of the pieces, which it counts from the first to the last; meanwhile the
    second process fills in counts from the last on, if that is much and it can count it."""
    name = tokenizer.name
    new = [piece for piece in pieces if name not in piece.counts]
    if sum([len(piece) for piece in new]) < LONG_CHARACTERS or not can_count(tokenizer):
        return count()
    enough = threading.Event()
    from_the_back = threading.Thread(
        target=_fill_in, args=(new, name, second, enough), name="second", daemon=True
    )
    from_the_back.start()
    try:
        return count()
    finally:
        enough.set()


def can_count(tokenizer: Tokenizer) -> bool:
    """Whether the second process counts by the same engine as this tokenizer."""
    return tokenizer.name in names() and engine(tokenizer.name) is tokenizer


def _fill_in(
    pieces: list[Piece], name: str, second: SecondProcess, enough: threading.Event
) -> None:
    """Batch after batch from the last piece on, until one was counted already."""
    asked: deque[list[Piece]] = deque()

    def texts() -> Iterator[list[str]]:
        end = len(pieces)
        while end > 0 and not enough.is_set() and name not in pieces[end - 1].counts:
            left = 2 * end - len(pieces)  # we have counted about as much from the front
            size = max(BATCH_PIECES[0], min(left // _PARTS, BATCH_PIECES[1]))
            start = max(0, end - size)
            asked.append(pieces[start:end])
            yield [piece.text for piece in pieces[start:end]]
            end = start

    for counts in second.count_each(texts(), name):
        for piece, tokens in zip(asked.popleft(), counts, strict=True):
            piece.counts[name] = tokens


def _started() -> subprocess.Popen[bytes] | None:
    """The process, with our own import path and nothing of ours that it does not need; None where
    there is no Python to start (an embedded one), or no room for a process."""
    import os
    import subprocess

    if not sys.executable:
        return None
    paths = [path for path in sys.path if path and os.path.isabs(path)]
    try:
        process = subprocess.Popen(  # noqa: S603 - this Python with a constant, no shell
            [sys.executable, "-I", "-c", _CODE, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=os.path.abspath(os.sep),
            env={key: os.environ[key] for key in _ENVIRONMENT if key in os.environ},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except (OSError, ValueError):
        return None
    widen(cast("IO[bytes]", process.stdin).fileno())
    return process


def widen(pipe: int) -> None:
    """Give a pipe room for more than 64 KB, where the system lets us: who writes and who reads much
    then wake each other up a tenth as often."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # no pipe, or more than this user may have
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _answers(
    process: subprocess.Popen[bytes], batches: Iterable[Sequence[str]], name: str
) -> Iterator[list[int]]:
    """The counts of each batch, `_AHEAD` batches after it was written.

    Raises:
        OSError, ValueError: it has ended, or says what no helper of ours says.
    """
    asked: deque[int] = deque()
    for texts in batches:
        _ask(process, texts, name)
        asked.append(len(texts))
        if len(asked) >= _AHEAD:
            yield _answer(process, asked.popleft())
    while asked:
        yield _answer(process, asked.popleft())


def _ask(process: subprocess.Popen[bytes], texts: Sequence[str], name: str) -> None:
    """Write a line of sizes and the texts."""
    into = cast("IO[bytes]", process.stdin)
    data = "".join(texts).encode("utf-8", "surrogatepass")
    sizes = " ".join([str(len(text)) for text in texts])
    into.write(f"{name} {len(data)} {sizes}\n".encode() + data)
    into.flush()


def _answer(process: subprocess.Popen[bytes], size: int) -> list[int]:
    """Read a line of so many counts."""
    counts = [int(number) for number in cast("IO[bytes]", process.stdout).readline().split()]
    if len(counts) != size or min(counts, default=0) < 0:
        raise ValueError("no count for each text")
    return counts


def main() -> None:
    """Count what comes until the pipe ends."""
    import os
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, which is meant for the server
    with suppress(AttributeError, OSError):  # not on Windows
        os.nice(NICENESS)
    with suppress(OSError):
        while header := sys.stdin.buffer.readline():
            name, length, *sizes = header.decode().split()
            data = sys.stdin.buffer.read(int(length)).decode("utf-8", "surrogatepass")
            counts = _counted(data, [int(size) for size in sizes], name)
            sys.stdout.buffer.write(" ".join(counts).encode() + b"\n")
            sys.stdout.buffer.flush()


def _counted(data: str, sizes: Sequence[int], name: str) -> list[str]:
    counter, counts, start = engine(name), [], 0
    for size in sizes:
        counts.append(str(counter.count(data[start : start + size])))
        start += size
    return counts
