"""Sends `context/warning`."""

from __future__ import annotations

from sidecar.server.client import Client
from sidecar.server.feature import Feature
from sidecar.workspace.workspace import Event


class Warnings(Feature):
    """Sends the warnings about thresholds, caps and full context windows."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def on_event(self, event: Event) -> None:
        if event.warning is not None:
            self._client.protocol.push("context/warning", event.warning)
