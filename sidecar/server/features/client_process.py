"""Ends the session when the client's process ends, even if the pipe stays open."""

from __future__ import annotations

import logging
from functools import partial

from lsprotocol import types

from sidecar.operating_system import is_alive
from sidecar.server.client import Client
from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler

logger = logging.getLogger(__name__)

CHECK_SECONDS = 3.0
"""How often to check whether the client process is still running."""


class ClientProcess(Feature):
    """Watches the process that `initialize` names."""

    def __init__(self, client: Client, scheduler: Scheduler) -> None:
        self._client, self._scheduler = client, scheduler

    def on_initialize(self, params: types.InitializeParams) -> None:
        # A process that is not found may run on another machine or outside of this container.
        if params.process_id is not None and is_alive(params.process_id):
            self._check(params.process_id)

    def _check(self, process_id: int) -> None:
        if is_alive(process_id):
            check = partial(self._check, process_id)
            self._scheduler.schedule(("client process",), CHECK_SECONDS, check)
        else:
            logger.error("the client process has exited; stopping")
            self._client.protocol.end(1)
