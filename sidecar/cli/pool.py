"""The pool of threads that counts many files, for `count` and for `check`."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
R = TypeVar("R")

BATCH = 50
"""Most files handed over at once: handing over one costs more than counting a small one."""


def map_batches(
    work: Callable[[Sequence[T]], list[R]], items: Sequence[T], threads: int = 0
) -> Iterator[R]:
    """Yield the results of `work`, which is given some items at a time, in the order of `items`.

    Args:
        work: What is done with a batch, on any thread.
        items: What there is to do.
        threads: How many run at once; 0 for one on each core.
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
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
