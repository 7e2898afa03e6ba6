"""Root folders and the position encoding, both negotiated by `initialize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lsprotocol import types
from pygls.uris import from_fs_path

from sidecar.workspace.workspace import SettingsChange

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer
    from sidecar.text.positions import Encoding


def register(server: SidecarServer) -> None:
    services = server.services

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        for uri in _root_uris(params):
            services.roots.add(uri)
        services.encoding = _choose_encoding(params.capabilities)
        server.diagnostics.choose(params.capabilities)
        _apply_options(server, params.initialization_options)
        server.configuration.reload()

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def folders_changed(params: types.DidChangeWorkspaceFoldersParams) -> None:
        for folder in params.event.removed:
            services.close_root(folder.uri)
        for folder in params.event.added:
            added = services.roots.add(folder.uri)
            if not added.editor:
                added.apply_settings(SettingsChange(editor=services.roots.outside.editor))
        services.configured.clear()  # counts wait until the new root's settings are read
        server.configuration.reload()


def _apply_options(server: SidecarServer, options: object) -> None:
    if isinstance(options, dict):
        section = options.get("tokenSidecar", options)
        for workspace in server.services.roots:
            editor = section if isinstance(section, dict) else {}
            workspace.apply_settings(SettingsChange(editor=editor))


def _root_uris(params: types.InitializeParams) -> list[str]:
    if params.workspace_folders:
        return [folder.uri for folder in params.workspace_folders]
    if params.root_uri:
        return [params.root_uri]
    uri = from_fs_path(params.root_path) if params.root_path else None
    return [uri] if uri else []


def _choose_encoding(capabilities: types.ClientCapabilities) -> Encoding:
    general = capabilities.general
    for kind in (general.position_encodings or []) if general else []:
        value = getattr(kind, "value", kind)
        if value in ("utf-8", "utf-16", "utf-32"):
            return cast("Encoding", value)
    return "utf-16"
