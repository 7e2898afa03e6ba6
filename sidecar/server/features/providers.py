"""Providers that a setting switches on: announced while it is on, if the client allows it.

An editor asks an announced provider again after nearly every key, only to learn that there is
nothing. A client that takes registrations later (`dynamicRegistration`) hears of these providers
when its settings are known, and again when they change. To any other they are announced in the
answer to `initialize`; hints and lenses then answer with nothing while they are off, and symbols
always with all parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.server.features import symbols

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace


@dataclass(frozen=True, eq=False)
class _Provider:
    """`name` is its field in the client's abilities; with `_provider`, in the server's."""

    method: str
    name: str
    options: object
    """As in the answer to `initialize`; for the documents that the client chose."""
    wanted: Callable[[Settings], bool]
    refresh: Callable[[SidecarServer], object]
    """Has the client ask again; called only where it offers to."""


def _no_refresh(_server: SidecarServer) -> None:
    """LSP has none for symbols."""


SWITCHED = (
    _Provider(
        types.TEXT_DOCUMENT_INLAY_HINT,
        "inlay_hint",
        types.InlayHintRegistrationOptions(),
        lambda settings: settings.inlay_hints,
        lambda server: server.workspace_inlay_hint_refresh(None),
    ),
    _Provider(
        types.TEXT_DOCUMENT_CODE_LENS,
        "code_lens",
        types.CodeLensRegistrationOptions(resolve_provider=False),
        lambda settings: settings.code_lens,
        lambda server: server.workspace_code_lens_refresh(None),
    ),
    # The outline is for those who count parts: beside a language server's own it is one too many.
    _Provider(
        types.TEXT_DOCUMENT_DOCUMENT_SYMBOL,
        "document_symbol",
        types.DocumentSymbolRegistrationOptions(label=symbols.LABEL),
        lambda settings: settings.inlay_hints or settings.code_lens,
        _no_refresh,
    ),
)


class Providers:
    """Knows which of the switched providers are wanted, and which were announced."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._later: set[_Provider] = set()
        """Those that are announced to this client only while they are wanted."""
        self._wanted: frozenset[_Provider] = frozenset()

    def hold_back(
        self, announced: types.ServerCapabilities, abilities: types.ClientCapabilities
    ) -> None:
        """Take out of an answer to `initialize` what can be announced later. Changes it."""
        for provider in SWITCHED:
            ability = getattr(abilities.text_document, provider.name, None)
            field = f"{provider.name}_provider"
            if ability is not None and ability.dynamic_registration:
                self._later.add(provider)
                setattr(announced, field, None)

    def settings_changed(self) -> None:
        """Announce what somebody wants now, and take back what nobody wants any more.

        To be called only after the client's `initialized`.
        """
        before, settings = self._wanted, [root.settings for root in self._server.services.roots]
        self._wanted = frozenset(
            provider for provider in SWITCHED if any(provider.wanted(each) for each in settings)
        )
        self._unregister(before - self._wanted)
        self._register(self._wanted - before)
        # What was just registered too: Neovim asks only after the next edit.
        self._refresh(self._wanted | (before - self._later))

    def shows(self, method: str, workspace: Workspace) -> bool:
        """Whether a provider shows anything in a workspace: a registration holds for them all."""
        return not any(
            one.method == method and not one.wanted(workspace.settings) for one in self._later
        )

    def numbers_changed(self) -> None:
        """The counts are others though the text is the same: the model was changed."""
        self._refresh(self._wanted)

    def _register(self, providers: frozenset[_Provider]) -> None:
        registrations = [
            types.Registration(one.method, one.method, one.options)
            for one in SWITCHED
            if one in providers & self._later
        ]
        if registrations:
            self._server.client_register_capability(types.RegistrationParams(registrations))

    def _unregister(self, providers: frozenset[_Provider]) -> None:
        entries = [
            types.Unregistration(one.method, one.method)
            for one in SWITCHED
            if one in providers & self._later
        ]
        if entries:
            self._server.client_unregister_capability(types.UnregistrationParams(entries))

    def _refresh(self, providers: frozenset[_Provider]) -> None:
        """Have the client ask again, where it offers to."""
        workspace = self._server.client_capabilities.workspace
        for provider in providers:
            ability = getattr(workspace, provider.name, None)
            if ability is not None and ability.refresh_support:
                provider.refresh(self._server)
