"""The base class of all features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lsprotocol import types

from sidecar.workspace.workspace import Event

Handler = Callable[[Any], Any]


class Feature:
    """Handlers for a group of methods, and reactions to events.

    A feature gets only the objects that it uses, and does not know the other features. If one
    feature affects another, it publishes an event.
    """

    handlers: Mapping[str, Handler] = {}
    """The handlers of requests and notifications, by method. Those of requests may be async."""
    options: Mapping[str, object] = {}
    """The options that `initialize` announces, by method."""
    commands: Mapping[str, Callable[..., Any]] = {}
    """The handlers of `workspace/executeCommand`, by command."""
    malformed_handlers: Mapping[str, Callable[[object], None]] = {}
    """The handlers of malformed notifications, by method. They receive the params, or None."""

    def on_initialize(self, params: types.InitializeParams) -> None:
        """Adapt to the client."""

    def announce(self, capabilities: types.ServerCapabilities) -> None:
        """Change the capabilities that `initialize` announces."""

    def on_event(self, event: Event) -> None:
        """Update everything of this feature that depends on the event."""

    def close(self) -> None:
        """Stop work on threads."""
