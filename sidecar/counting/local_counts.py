"""Counts many texts without an event loop, on several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from sidecar.config.paths import state_dir
from sidecar.counting.model_tokenizers import LazyTokenizer
from sidecar.counting.saved_calibrations import CalibrationStore
from sidecar.counting.tokenizer_choice import CounterChoice, CounterChooser
from sidecar.operating_system import count_cores

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.counting.open_documents import Snapshot

ChooseCounter = Callable[["Snapshot", str], CounterChoice]
"""Chooses the counter for text and a model. It may block until an endpoint answers."""

T = TypeVar("T")
R = TypeVar("R")

BATCH = 50
"""Number of files per task. Passing a small file to a thread takes longer than counting it."""


def map_batches(
    work: Callable[[Sequence[T]], list[R]], items: Sequence[T], threads: int = 0
) -> Iterator[R]:
    """Process items in batches on several threads, and yield the results in order.

    Args:
        work: Processes a batch.
        items: The items.
        threads: The number of threads, or 0 for one per core.
    """
    threads = threads or count_cores()
    size = max(1, min(BATCH, len(items) // threads))
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    if len(batches) <= 1 or threads == 1:
        for batch in batches:
            yield from work(batch)
        return
    with ThreadPoolExecutor(threads) as pool:
        for results in pool.map(work, batches):
            yield from results


def needs_endpoint(settings: Settings, models: Iterable[str]) -> bool:
    """Return whether an endpoint is needed to count tokens for any of the models."""
    chooser = CounterChooser(CalibrationStore(state_dir()))
    return any(chooser.asks_endpoint(model, settings) for model in models)


def local_counters(settings: Settings) -> tuple[CounterChooser, ChooseCounter]:
    chooser = CounterChooser(CalibrationStore(state_dir()))
    loaded: set[str] = set()
    loading = Lock()  # so that only one thread reads the calibrations

    def load(model: str) -> None:
        tokenizer = chooser.tokenizers(settings).for_model(model)
        if isinstance(tokenizer, LazyTokenizer):
            tokenizer.load()  # until then, the method is unknown
        if tokenizer.method != "exact":
            chooser.calibrations.loaded()
        loaded.add(model)

    def choose(snapshot: Snapshot, model: str) -> CounterChoice:
        if model not in loaded:
            with loading:
                if model not in loaded:
                    load(model)
        return chooser.choose_local_counter(snapshot, model, settings)

    return chooser, choose
