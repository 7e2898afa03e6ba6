"""The base class of features that show the token counts of a document's sections.

They are off by default. Editors ask for them after almost every keystroke, so they are only
registered while a setting enables them. This requires a client with `dynamicRegistration`. For
other clients, they are announced in `initialize`, and return nothing while disabled.
"""

from __future__ import annotations

from typing import Any

from lsprotocol import types

from sidecar.config.settings import Settings
from sidecar.server.client import Client
from sidecar.server.protocol import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event


class SectionFeature(Feature):
    """A feature that is registered while any root's settings enable it."""

    method: str
    name: str
    """The name of the field in the client's capabilities. With the suffix `_provider`, it is also
    the name of the field in the server's capabilities.
    """
    announced: object = None
    """The options to announce to clients without dynamic registration."""
    registered: object
    """The options to register."""

    def __init__(self, services: Services, client: Client, scheduler: Scheduler) -> None:
        self._services, self._client, self._scheduler = services, client, scheduler
        self._is_dynamic = self._is_enabled = False
        self.handlers = {self.method: self.respond}
        self.options = {} if self.announced is None else {self.method: self.announced}

    async def respond(self, params: Any) -> object:
        """Handle a request."""
        raise NotImplementedError

    def is_enabled(self, settings: Settings) -> bool:
        """Return whether a root's settings enable the feature."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Ask the client to request results again, if LSP has a request for this."""

    def on_initialize(self, params: types.InitializeParams) -> None:
        able = getattr(params.capabilities.text_document, self.name, None)
        self._is_dynamic = bool(able and able.dynamic_registration)

    def announce(self, capabilities: types.ServerCapabilities) -> None:
        if self._is_dynamic:
            setattr(capabilities, f"{self.name}_provider", None)

    def on_event(self, event: Event) -> None:
        if event.what == "settings":
            self._scheduler.run_now(("registration", self.method), self._apply_settings)
        elif event.what in ("model", "endpoint") and self._is_enabled:
            self._refresh_if_supported()

    async def _apply_settings(self) -> None:
        await self._client.initialized.wait()
        if self._client.protocol.state != "running":
            return
        was_enabled = self._is_enabled
        self._is_enabled = any(self.is_enabled(root.settings) for root in self._services.roots)
        if self._is_dynamic and self._is_enabled != was_enabled:
            self._register()
        # Refresh a new feature, too. Otherwise Neovim requests no results until the next edit.
        if self._is_enabled or (was_enabled and not self._is_dynamic):
            self._refresh_if_supported()

    def _register(self) -> None:
        if self._is_enabled:
            new = types.Registration(self.method, self.method, self.registered)
            self._client.client_register_capability(types.RegistrationParams([new]))
        else:
            old = types.Unregistration(self.method, self.method)
            self._client.client_unregister_capability(types.UnregistrationParams([old]))

    def _refresh_if_supported(self) -> None:
        able = getattr(self._client.client_capabilities.workspace, self.name, None)
        if able is not None and able.refresh_support:
            self.refresh()
