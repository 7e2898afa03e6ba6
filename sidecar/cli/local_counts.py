"""Chooses counters for commands, and runs counting on several threads."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from sidecar.cli.output import print_problems, warn
from sidecar.config.paths import state_dir
from sidecar.counting.saved_calibrations import CalibrationStore
from sidecar.counting.tokenizer_choice import CounterChoice, CounterChooser
from sidecar.operating_system import count_cores
from sidecar.project.files import STDIN
from sidecar.workspace.state_folder import State

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.counting.counts import Counts
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


def load_settings_for(path: str) -> tuple[Settings, bool]:
    """Load the settings for a path and print their problems. Return whether there are errors."""
    from sidecar.config.load import find_root, load

    loaded = load(find_root(Path.cwd() if path == STDIN else Path(path).absolute()))
    return loaded.settings, print_problems(loaded.problems)


def warn_if_unknown_model(model: str, settings: Settings) -> None:
    """Warn if a model is neither in the catalogue nor in the settings."""
    from sidecar.config.settings import DEFAULT_MODEL

    if model == DEFAULT_MODEL:  # in a short run, the lookup would be 10% of the time
        return
    from sidecar.counting.windows import similar_models
    from sidecar.workspace.views import describe_unknown_model

    similar = similar_models(model, settings)
    if similar is not None:
        warn(f"{model} is {describe_unknown_model(similar)}")


def run_with_counters(
    settings: Settings,
    models: Iterable[str],
    work: Callable[[CounterChooser, ChooseCounter], T],
) -> T:
    """Call `work` with counters for the given models, and return its result."""
    if needs_endpoint(settings, models):
        return run_with_endpoints(settings, work)
    return work(*local_counters(settings))


def needs_endpoint(settings: Settings, models: Iterable[str]) -> bool:
    """Return whether an endpoint is needed to count tokens for any of the models."""
    chooser = CounterChooser(CalibrationStore(state_dir()))
    return any(chooser.asks_endpoint(model, settings) for model in models)


def run_with_endpoints(settings: Settings, work: Callable[[CounterChooser, ChooseCounter], T]) -> T:
    """Call `work` on another thread while this thread sends requests to endpoints."""
    import asyncio

    return asyncio.run(_run_with_endpoints(settings, work))


def local_counters(settings: Settings) -> tuple[CounterChooser, ChooseCounter]:
    chooser = CounterChooser(CalibrationStore(state_dir()))
    loaded: set[str] = set()
    loading = Lock()  # so that only one thread reads the vocabulary

    def load(model: str) -> None:
        tokenizer = chooser.tokenizers(settings).for_model(model)
        tokenizer.count("a")  # loads the vocabulary; until then, the method is unknown
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


def ask_endpoint_window(chooser: CounterChooser, model: str, settings: Settings) -> int | None:
    """Return the window that an endpoint reports, in tokens. This can require a request."""
    if not chooser.is_window_due(model, settings):
        return chooser.known_limit(model, settings)
    import asyncio

    async def request_limit() -> int | None:
        endpoints = CounterChooser(CalibrationStore(state_dir())).endpoints(settings)
        try:
            return await endpoints.limit(model)
        finally:
            await endpoints.aclose()

    return asyncio.run(request_limit())


async def _run_with_endpoints(
    settings: Settings, work: Callable[[CounterChooser, ChooseCounter], T]
) -> T:
    import asyncio

    loop = asyncio.get_running_loop()
    async with open_counts() as counts:

        def choose(snapshot: Snapshot, model: str) -> CounterChoice:
            if not counts.asks_endpoint(model, settings):
                return counts.choose_local_counter(snapshot, model, settings)
            answer = counts.choose_counter(snapshot, model, settings)
            return asyncio.run_coroutine_threadsafe(answer, loop).result()

        return await asyncio.to_thread(work, counts, choose)


@contextlib.asynccontextmanager
async def open_counts() -> AsyncIterator[Counts]:
    """Yield a `Counts` like the one in the server, and save its calibration afterwards."""
    from sidecar.counting.counts import LATEST_SECONDS, Counts
    from sidecar.counting.windows import Windows
    from sidecar.tasks import Workers

    state, workers, calibrations = State(), Workers(), CalibrationStore(state_dir())
    counts = Counts(workers, calibrations, Windows(state))
    counts.seconds = LATEST_SECONDS  # wait longer, because a printed number cannot be corrected
    calibrations.loaded()
    try:
        yield counts
    finally:
        await counts.aclose()
        workers.close()
        with contextlib.suppress(OSError):  # counts are right even if the calibration is not saved
            calibrations.save()
        state.close()
