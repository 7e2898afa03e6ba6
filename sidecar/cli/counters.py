"""What the verbs count with: the functions of the server.

Where an endpoint is asked, an event loop runs for as long as the verb counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from sidecar.cli.output import warn, warn_of
from sidecar.config.paths import state_dir
from sidecar.workspace.calibrations import CalibrationStore
from sidecar.workspace.counter_choice import CounterChoice, CounterChooser
from sidecar.workspace.files import STDIN
from sidecar.workspace.state import State

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.counting.engines import Purpose
    from sidecar.workspace.counts import Counts
    from sidecar.workspace.documents import Snapshot

    ChooseCounter = Callable[[Snapshot, str], CounterChoice]
    """What counts a text for a model; waits for an endpoint where one is asked. Any thread's."""

T = TypeVar("T")


def settings_at(path: str) -> tuple[Settings, bool]:
    """The settings where a path is (`-`: here), and whether something in them is wrong."""
    from sidecar.config.load import find_root, load

    loaded = load(find_root(Path.cwd() if path == STDIN else Path(path).absolute()))
    return loaded.settings, warn_of(loaded.problems)


def warn_of_model(model: str, settings: Settings) -> None:
    """Warn of a model that no list, no family and no table of the settings names."""
    from sidecar.config.settings import DEFAULT_MODEL

    if model == DEFAULT_MODEL:  # to look that up takes a tenth of a short run
        return
    from sidecar.workspace.windows import similar_models
    from sidecar.workspace.wording import unknown_model_text

    similar = similar_models(model, settings)
    if similar is not None:
        warn(f"{model} is {unknown_model_text(similar)}")


def run_with_counters(
    settings: Settings,
    models: Iterable[str],
    work: Callable[[CounterChooser, ChooseCounter], T],
    purpose: Purpose = "interactive",
) -> T:
    """Run work that counts texts for these models, and return its result."""
    return (
        run_with_endpoints(settings, work)
        if asks(settings, models)
        else work(*local_counters(settings, purpose))
    )


def asks(settings: Settings, models: Iterable[str]) -> bool:
    """Whether an endpoint is asked for texts of one of these models."""
    chooser = CounterChooser(CalibrationStore(state_dir()))
    return any(chooser.asks(model, settings) for model in models)


def run_with_endpoints(settings: Settings, work: Callable[[CounterChooser, ChooseCounter], T]) -> T:
    """Run work beside an event loop that asks endpoints, and return its result."""
    import asyncio

    return asyncio.run(_asking(settings, work))


def local_counters(settings: Settings, purpose: Purpose) -> tuple[CounterChooser, ChooseCounter]:
    """Return counters that ask no endpoint."""
    chooser = CounterChooser(CalibrationStore(state_dir()), purpose)
    loaded: set[str] = set()
    loading = Lock()  # threads that come at once would each read the tables

    def load(model: str) -> None:
        tokenizer = chooser.tokenizers(settings).for_model(model)
        tokenizer.count("a")  # a vocabulary from a file says only now how it really counts
        if tokenizer.method != "exact":
            chooser.calibrations.loaded()
        loaded.add(model)

    def choose(taken: Snapshot, model: str) -> CounterChoice:
        if model not in loaded:
            with loading:
                if model not in loaded:
                    load(model)
        return chooser.choose_local_counter(taken, model, settings)

    return chooser, choose


def window_of(chooser: CounterChooser, model: str, settings: Settings) -> int | None:
    """The window that an endpoint reports, in tokens; asked for where that was not done yet."""
    if not chooser.is_window_due(model, settings):
        return chooser.known_limit(model, settings)
    import asyncio

    async def ask() -> int | None:
        endpoints = CounterChooser(CalibrationStore(state_dir())).endpoints(settings)
        try:
            return await endpoints.limit(model)
        finally:
            await endpoints.aclose()

    return asyncio.run(ask())


async def _asking(settings: Settings, work: Callable[[CounterChooser, ChooseCounter], T]) -> T:
    import asyncio

    loop = asyncio.get_running_loop()
    async with opened() as counts:

        def choose(taken: Snapshot, model: str) -> CounterChoice:
            if not counts.asks(model, settings):
                return counts.choose_local_counter(taken, model, settings)
            asked = counts.choose_counter(taken, model, settings)
            return asyncio.run_coroutine_threadsafe(asked, loop).result()

        return await asyncio.to_thread(work, counts, choose)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Counts]:
    """Counts of the server's kind, and what was learned; that is kept in the end."""
    from sidecar.workspace.counts import LATEST_SECONDS, Counts
    from sidecar.workspace.windows import Windows
    from sidecar.workspace.workers import Workers

    state, workers, calibrations = State(), Workers(), CalibrationStore(state_dir())
    counts = Counts(workers, calibrations, Windows(state))
    counts.seconds = LATEST_SECONDS  # nobody types, and no late answer corrects what was printed
    calibrations.loaded()
    try:
        yield counts
    finally:
        await counts.aclose()
        workers.close()
        with contextlib.suppress(OSError):  # a full disk fails no count
            calibrations.save()
        state.close()
