"""Counting of many files on a thread pool, for `count` and `check`."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
R = TypeVar("R")

BATCH = 50
"""Maximum files per task: passing one file to a thread costs more than counting a small one."""


def map_batches(
    work: Callable[[Sequence[T]], list[R]], items: Sequence[T], threads: int = 0
) -> Iterator[R]:
    """Yield the results of `work` on batches of items, in the order of `items`.

    Args:
        work: Handles a batch, on any thread.
        items: All items.
        threads: Number of threads; 0 for one per core.
    """
    threads = threads or _cores()
    size = max(1, min(BATCH, len(items) // threads))
    batches = [items[at : at + size] for at in range(0, len(items), size)]
    if len(batches) <= 1 or threads == 1:
        for batch in batches:
            yield from work(batch)
        return
    with ThreadPoolExecutor(threads) as pool:
        for results in pool.map(work, batches):
            yield from results


def _cores() -> int:
    """Return the number of cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
