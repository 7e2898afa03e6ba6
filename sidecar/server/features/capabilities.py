"""`capabilities/list` and `capabilities/probe`: what the user's own endpoints can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.endpoints.outcome import Capability
    from sidecar.server.messages import CapabilitiesParams, ProbeParams
    from sidecar.server.server import SidecarServer


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services = server.services

    async def known(_params: CapabilitiesParams) -> list[Capability]:
        await services.configured.wait()
        return services.endpoints(services.roots.default).capabilities()

    async def probe(params: ProbeParams) -> list[Capability]:
        await services.configured.wait()
        workspace = services.roots.default
        found = await services.endpoints(workspace).probe(
            params.endpoint, params.model or workspace.model
        )
        server.status.all_changed()
        return found

    server.protocol.custom["capabilities/list"] = known
    server.protocol.custom["capabilities/probe"] = probe
