"""Handles `capabilities/*`: what is known about the configured endpoints."""

from __future__ import annotations

from sidecar.endpoints.outcome import Capability
from sidecar.server.feature import Feature
from sidecar.server.methods import CapabilitiesParams, ProbeParams
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace


class Capabilities(Feature):
    """Lists the endpoints' capabilities. Only `capabilities/probe` sends requests to them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.handlers = {"capabilities/list": self._list, "capabilities/probe": self._probe}

    async def _list(self, params: CapabilitiesParams) -> list[Capability]:
        await self._services.configured.wait()
        settings = self._workspace_of(params).settings
        return self._services.counts.endpoints(settings).capabilities()

    async def _probe(self, params: ProbeParams) -> list[Capability]:
        await self._services.configured.wait()
        workspace = self._workspace_of(params)
        capabilities = await self._services.counts.endpoints(workspace.settings).probe(
            params.endpoint, params.model or workspace.model
        )
        self._services.publish(Event("endpoint"))
        return capabilities

    def _workspace_of(self, params: CapabilitiesParams | ProbeParams) -> Workspace:
        if params.workspace is None and params.text_document is not None:
            return self._services.roots.of_document(params.text_document.uri)
        return self._services.find_workspace_or_first(params.workspace)
