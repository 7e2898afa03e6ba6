"""The second process that helps to count long documents: whatever becomes of it, numbers stay."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sidecar.counting.engines import engine
from sidecar.counting.incremental import count_pieces
from sidecar.text.pieces import Piece, pieces_of
from sidecar.workspace import second_process
from sidecar.workspace.second_process import (
    LONG_CHARACTERS,
    NICENESS,
    SecondProcess,
    count_together,
)
from sidecar.workspace.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60  # seconds
LINE = "def naïve(字, 𝒳): return '\ud800 \udc00' + \"<|endoftext|>\"  # some words; and others\n"
TEXT = LINE * (LONG_CHARACTERS // len(LINE) + 50)
NAME = "o200k_base"


@pytest.fixture
def second() -> Iterator[SecondProcess]:
    made = SecondProcess(answer_seconds=PATIENCE)
    yield made
    made.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Not there, or dead and only not looked after yet (a container's first process may not)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] in "ZX"


def pid_of(second: SecondProcess) -> int:
    assert second.pid is not None
    return second.pid


def ours() -> list[Piece]:
    return pieces_of(TEXT)


def expected() -> int:
    return count_pieces(ours(), engine(NAME))


def together(second: SecondProcess, pieces: list[Piece]) -> int:
    tokenizer = engine(NAME)
    count = partial(count_pieces, pieces, tokenizer, lambda: False)
    return count_together(pieces, tokenizer, count, second)


def test_it_counts_as_we_do(second: SecondProcess) -> None:
    """Lone surrogates, special tokens and what is disputed (which goes to tiktoken) too."""
    texts = [*[piece.text for piece in ours()[:5]], "", "it'\u017f", "\udfff", "\u0c5c", "\r\n"]
    for name in ("o200k_base", "cl100k_base"):
        assert second.count(texts, name) == engine(name).count_many(texts)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no niceness there")
def test_it_gives_way_to_the_editor(second: SecondProcess) -> None:
    second.prepare("o200k_base")
    assert second.pid is not None
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, second.pid) == min(19, mine + NICENESS)


def test_all_of_a_long_text_may_be_counted_by_it(second: SecondProcess) -> None:
    pieces = ours()
    waited = []

    def count() -> int:
        until(lambda: all(NAME in piece.counts for piece in pieces))
        waited.append(True)
        return count_pieces(pieces, engine(NAME))

    assert count_together(pieces, engine(NAME), count, second) == expected()
    assert waited


def test_it_has_the_next_batch_before_it_is_asked_for_the_counts_of_the_one_before(
    second: SecondProcess,
) -> None:
    batches, taken = [["a b"], ["a b c", ""], ["a"]], []

    def handed_over() -> Iterator[list[str]]:
        for batch in batches:
            taken.append(batch)
            yield batch

    second.prepare(NAME)
    seen = [(counts, len(taken)) for counts in second.count_each(handed_over(), NAME)]
    assert seen == [([2], 2), ([3, 0], 3), ([1], 3)]
    assert second.count(["a b"], NAME) == [2]  # and nothing is left in its pipe


async def test_several_long_texts_that_come_while_it_counts_hold_up_no_other_work() -> None:
    workers = Workers()
    workers.load(engine(NAME))
    workers.second.start()
    with workers.second._turn:
        for _ in range(8):
            workers.expect_much()
        assert await asyncio.wait_for(workers.run(lambda: 7), PATIENCE) == 7
    workers.close()


def test_both_count_and_the_sum_is_right(second: SecondProcess) -> None:
    assert together(second, ours()) == expected()


def test_killed_again_and_again_it_changes_no_number(second: SecondProcess) -> None:
    over = threading.Event()

    def kill() -> None:
        while not over.is_set():
            if (pid := second.pid) is not None:
                with suppress(ProcessLookupError):  # it was ended by itself just now
                    os.kill(pid, signal.SIGTERM)
            over.wait(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert [together(second, ours()) for _ in range(3)] == [expected()] * 3
    finally:
        over.set()
        killer.join()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP")
def test_stopped_it_holds_nobody_up_and_is_ended(second: SecondProcess) -> None:
    second.start()
    pid = pid_of(second)
    os.kill(pid, signal.SIGSTOP)
    second._answer_seconds = 1.0
    assert together(second, ours()) == expected()
    until(lambda: gone(pid))
    until(lambda: second.pid is None)
    second._answer_seconds = PATIENCE
    assert together(second, ours()) == expected()


def test_where_it_cannot_be_started_we_count_alone(
    second: SecondProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    assert together(second, ours()) == expected()
    assert second.pid is None


@pytest.mark.skipif(sys.platform != "linux", reason="pipes of a size")
def test_a_user_who_may_have_no_larger_pipes_has_it_too(
    second: SecondProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(fcntl, "fcntl", refused)
    assert second.count(["a b"], NAME) == [2]


@pytest.mark.parametrize("code", ["print('1 2')", "print('nonsense')", "print(-1)", "pass"])
def test_nonsense_is_not_believed_and_it_is_not_tried_for_ever(
    second: SecondProcess, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(second_process, "_CODE", f"input(); {code}")
    assert [second.count(["a"], NAME) for _ in range(3)] == [None] * 3
    monkeypatch.undo()
    assert second.start() is None


def test_idle_it_ends_and_starts_again_when_it_is_needed(second: SecondProcess) -> None:
    assert second.count(["a b"], NAME) == [2]
    pid = pid_of(second)
    second._idle_seconds = 0.2
    until(lambda: gone(pid))
    until(lambda: second.pid is None)
    second._idle_seconds = PATIENCE
    assert second.count(["a b"], NAME) == [2]
    second.close()
    assert second.pid is None
    assert second.start() is None


def test_it_ends_with_a_server_that_is_killed() -> None:
    code = (
        "import time; from sidecar.workspace.second_process import SecondProcess as S; s = S();"
        "s.count(['a'], 'o200k_base'); print(s.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert not gone(pid)
        server.kill()
    until(lambda: gone(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_it_knows_no_keys_and_looks_in_no_folder_of_the_users(
    second: SecondProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A module in the folder where the server was started is not imported."""
    (tmp_path / "sidecar").mkdir()
    (tmp_path / "sidecar" / "__init__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret")
    assert second.count(["a b"], NAME) == [2]
    assert b"sk-very-secret" not in Path(f"/proc/{second.pid}/environ").read_bytes()


def test_little_text_and_other_tokenizers_start_none(second: SecondProcess) -> None:
    little, much = pieces_of("some words\n" * 100), ours()
    tokenizer, other = engine(NAME), engine(NAME, "reference")
    assert count_together(little, tokenizer, lambda: 7, second) == 7
    assert count_together(much, other, lambda: 7, second) == 7
    assert second.pid is None
