"""Tests that counts run on threads and are shared by concurrent callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from sidecar.counting.counts import GIANT_CHARACTERS, UNUSUAL_WORD, SnapshotCounter
from sidecar.counting.open_documents import Documents, Snapshot
from sidecar.counting.tokenizer_interface import Tokenizer
from sidecar.tasks import Workers
from sidecar.text.document import TextDocument

GENES = "ACGT" * (GIANT_CHARACTERS // 2)
WORDS = "some words\n" * 2_000


class BlockingTokenizer(Tokenizer):
    """A tokenizer that counts characters. Long texts block until the test continues."""

    name = "waiting"
    has_safe_cuts = True

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.given: list[int] = []

    def count(self, text: str) -> int:
        if text != UNUSUAL_WORD:  # counted to load the tokenizer
            self.given.append(len(text))
        if len(text) > GIANT_CHARACTERS:
            self.begun.set()
            assert self.gate.wait(60)
        return len(text)


@pytest.fixture
def counter() -> Iterator[SnapshotCounter]:
    workers = Workers()
    yield SnapshotCounter(workers, Documents())
    workers.close()


def opened(*texts: str) -> list[Snapshot]:
    documents = Documents()
    for number, text in enumerate(texts):
        documents[f"untitled:{number}"] = TextDocument(f"untitled:{number}", text)
    return [documents.snapshot(uri) for uri in documents]


async def began(tokenizer: BlockingTokenizer) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, tokenizer.begun.wait, 60)


async def test_concurrent_counts_share_one_computation(counter: SnapshotCounter) -> None:
    (genes,), tokenizer = opened(GENES), BlockingTokenizer()
    first = asyncio.ensure_future(counter.count(genes, tokenizer))
    await began(tokenizer)
    others = [asyncio.ensure_future(counter.count(genes, tokenizer)) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    others[0].cancel()
    await asyncio.sleep(0)
    tokenizer.gate.set()
    assert await asyncio.gather(*others[1:]) == [len(GENES)] * 2
    assert first.cancelled()
    assert others[0].cancelled()
    assert tokenizer.given == [len(GENES)]
    assert not counter._counting


async def test_giant_pieces_do_not_block_other_counts(counter: SnapshotCounter) -> None:
    (*giants, words), tokenizer = (
        opened(GENES, GENES + "A", GENES + "C", WORDS),
        BlockingTokenizer(),
    )
    counting = [asyncio.ensure_future(counter.count(giant, tokenizer)) for giant in giants]
    await began(tokenizer)
    assert await counter.count(words, tokenizer) == len(WORDS)
    assert not any(each.done() for each in counting)
    tokenizer.gate.set()
    assert await asyncio.gather(*counting) == [len(GENES), len(GENES) + 1, len(GENES) + 1]


async def test_count_stops_when_its_last_waiter_is_cancelled(counter: SnapshotCounter) -> None:
    """The count stops at the next piece. A later request starts a new count."""
    (taken,), tokenizer = opened(GENES + "\n" + WORDS), BlockingTokenizer()
    asking = [asyncio.ensure_future(counter.count(taken, tokenizer)) for _ in range(2)]
    await began(tokenizer)
    for each in asking:
        each.cancel()
    await asyncio.wait(asking)
    again = asyncio.ensure_future(counter.count(taken, tokenizer))
    await asyncio.sleep(0)
    tokenizer.gate.set()
    assert await again == len(taken.text)
    assert sum(tokenizer.given) <= len(taken.text) + len(GENES)
