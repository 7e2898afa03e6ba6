"""`capabilities/list` and `capabilities/probe`: what the configured endpoints can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.workspace.workspace import Event

if TYPE_CHECKING:
    from sidecar.endpoints.outcome import Capability
    from sidecar.server.methods import CapabilitiesParams, ProbeParams
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace


def register(server: SidecarServer) -> None:
    services = server.services

    def workspace_of(params: CapabilitiesParams | ProbeParams) -> Workspace:
        if params.workspace is None and params.text_document is not None:
            return services.roots.of_document(params.text_document.uri)
        return services.workspace_or_first(params.workspace)

    async def list_known(params: CapabilitiesParams) -> list[Capability]:
        await services.configured.wait()
        return services.counts.endpoints(workspace_of(params).settings).capabilities()

    async def probe(params: ProbeParams) -> list[Capability]:
        await services.configured.wait()
        workspace = workspace_of(params)
        capabilities = await services.counts.endpoints(workspace.settings).probe(
            params.endpoint, params.model or workspace.model
        )
        services.publish(Event("endpoint"))
        return capabilities

    server.protocol.custom["capabilities/list"] = list_known
    server.protocol.custom["capabilities/probe"] = probe
