"""Counts for work that runs once, with an endpoint where the settings name one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from sidecar.config.paths import state_dir
from sidecar.counting.calibration import CalibrationStore
from sidecar.counting.tokenizer_choice import (
    ChooseCounter,
    CounterChoice,
    CounterChooser,
    local_counters,
    needs_endpoint,
)
from sidecar.workspace.state_folder import State

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.counting.counts import Counts
    from sidecar.counting.open_documents import Snapshot
T = TypeVar("T")


def run_with_counters(
    settings: Settings,
    models: Iterable[str],
    work: Callable[[CounterChooser, ChooseCounter], T],
) -> T:
    """Call `work` with counters for the given models, and return its result."""
    if needs_endpoint(settings, models):
        return run_with_endpoints(settings, work)
    return work(*local_counters(settings))


def run_with_endpoints(settings: Settings, work: Callable[[CounterChooser, ChooseCounter], T]) -> T:
    """Call `work` on another thread while this thread sends requests to endpoints."""
    import asyncio

    return asyncio.run(_run_with_endpoints(settings, work))


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
    counts = Counts(workers, calibrations, Windows(state.estimate))
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
