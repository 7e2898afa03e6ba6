"""`cost/record` and `cost/detail`: the ledger, off the event loop, with progress and cancel."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sidecar.cost.ledger import LedgerError, ReadCancelledError
from sidecar.server.progress import progress
from sidecar.workspace.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.cost.book import CostDetailParams, CostRecorded, CostRecordParams
    from sidecar.cost.rows import CostReport
    from sidecar.server.server import SidecarServer

T = TypeVar("T")


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services = server.services

    async def record(params: CostRecordParams) -> CostRecorded:
        await services.configured.wait()
        workspace = services.workspace(params.workspace)

        def work() -> CostRecorded:
            return services.spending(workspace).record(params)

        recorded = await services.counting.run(partial(_explained, work))
        server.status.context_changed(workspace)
        return recorded

    async def detail(params: CostDetailParams) -> CostReport:
        await services.configured.wait()
        workspace = services.workspace(params.workspace)
        stop = threading.Event()
        async with progress(server, "Cost report") as report:

            def work() -> CostReport:
                return services.spending(workspace).detail(params, stop.is_set, report)

            try:
                return await services.counting.run(partial(_explained, work))
            except asyncio.CancelledError:
                stop.set()
                raise

    server.protocol.custom["cost/record"] = record
    server.protocol.custom["cost/detail"] = detail


def _explained(work: Callable[[], T]) -> T:
    """Do it; what the cost room refuses becomes an error that the protocol knows."""
    try:
        return work()
    except ReadCancelledError:
        raise RequestError("storage", "the report was cancelled", retryable=True) from None
    except LedgerError as exc:
        raise RequestError("storage", str(exc), retryable=True) from None
    except ValueError as exc:
        raise RequestError("badParams", str(exc)) from None
