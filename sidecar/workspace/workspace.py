"""Root folders with their settings, costs and shown context.

An `Event` reports a change, for example to a root folder or to a document.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from sidecar.budgets.budget_rules import Rules
from sidecar.config.settings import Loaded, Settings
from sidecar.errors import BadParamsError
from sidecar.models.window import NamedLimits
from sidecar.operating_system import IS_WINDOWS, windows_path
from sidecar.workspace.spending import Costs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.conversations.context_protocol import ContextUsage, ContextWarning
    from sidecar.counting.counts import MissedCount
    from sidecar.counting.open_documents import FollowedSection


class ContextState(NamedTuple):
    """The context shown for a workspace. Published after each change."""

    model: str | None = None
    """The shown session's model."""
    limits: NamedLimits = NamedLimits()
    """The context windows that the shown session specifies."""
    usage: ContextUsage | None = None
    chosen: str | None = None
    """The model that the user has picked for the workspace."""
    revision: int = 0
    """A counter that increases whenever any session changes."""
    followed: tuple[FollowedSection, ...] = ()
    """All conversation sections that follow a document's edits."""


@dataclass(eq=False, repr=False)
class Workspace:
    """A root folder. `uri` and `path` are None for documents outside all roots."""

    uri: str | None
    path: Path | None
    loaded: Loaded = field(default_factory=lambda: Loaded(Settings(), (), {}))
    rules: Rules = field(default_factory=lambda: Rules(Settings()))
    editor: Mapping[str, Any] = field(default_factory=dict)
    """The `tokenSidecar` section of the editor's settings, as last received."""
    has_settings: bool = False
    """Whether the settings files have been read. If so, the root's disk responds."""
    costs: Costs = field(default_factory=Costs)
    linked: dict[str, PurePath] = field(default_factory=dict)
    """Paths below `path` of open documents whose URIs name them through other links."""

    context: ContextState = field(default_factory=ContextState)
    """The shown context. Only `SessionRegistry` may replace it."""

    def path_below(self, uri: str) -> PurePath | None:
        """Return a document's path relative to the root, or None if it is not inside the root."""
        path = self.linked.get(uri) or path_of(uri)
        if self.path is None or path is None or not path.is_relative_to(self.path):
            return None
        return path.relative_to(self.path)

    def limits_for(self, model: str) -> NamedLimits:
        """Return the context windows set by the displayed session, if it uses this model."""
        same = model == (self.context.model or self.settings.model)
        return self.context.limits if same else NamedLimits()

    def apply_editor_section(self, section: Mapping[str, Any]) -> None:
        self.editor = section

    def apply_settings(self, loaded: Loaded, rules: Rules) -> None:
        self.loaded, self.rules, self.has_settings = loaded, rules, True

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def model(self) -> str:
        """The default model: picked, configured, the shown session's, or the built-in default."""
        return self.model_in_session(self.context.model)

    def model_in_session(self, session_model: str | None) -> str:
        """Return the default model for requests from a session.

        Args:
            session_model: The session's model, which a picked or configured model overrides.
        """
        chosen = self.context.chosen or self.loaded.configured_model
        return chosen or session_model or self.settings.model

    @property
    def shown_session(self) -> str:
        """The shown session's ID, or "" if no session is shown."""
        usage = self.context.usage
        return usage.session.id if usage and usage.session else ""

    @property
    def budget_model(self) -> str:
        """The model for budgets that do not specify a model.

        This is the model that the user has picked or, by default, the model in the settings.
        Sessions are ignored, as in the `check` command.
        """
        return self.context.chosen or self.settings.model


EventKind = Literal[
    "document",
    "severity",  # another severity is the worst of a document's exceeded budgets
    "instructions",  # the findings about a document's instructions have changed
    "settings",
    "model",
    "context",
    "calls",  # calls have been recorded or priced, or a new day has begun
    "ledger",  # the costs that a workspace shows have been read
    "cache",  # a part of the shown session's prompt cache has expired, or its forecast has changed
    "shared ledger",  # another process has written to the ledger
    "endpoint",  # an endpoint has counted text, or a calibration has changed
    "missed",  # an endpoint failed to count, but may be asked again
    "learned",  # a calibration has changed and needs to be written
    "warning",
]


class Event(NamedTuple):
    """A state change, which `SidecarServer.on_event` passes to all features."""

    what: EventKind
    workspace: Workspace | None = None
    """The affected workspace, or None for all workspaces."""
    uri: str | None = None
    """The affected document, if it is only one."""
    warning: ContextWarning | None = None
    missed: MissedCount | None = None

    @property
    def shows(self) -> bool:
        """Whether the event may change what the editor displays."""
        hidden = ("instructions", "missed", "learned", "warning", "shared ledger")
        return self.what not in hidden

    def concerns(self, workspace: Workspace) -> bool:
        """Return whether the event affects a workspace."""
        return self.workspace is None or self.workspace is workspace


@lru_cache(maxsize=4096)
def path_of(uri: str) -> PurePath | None:
    """Return the local path of a `file:` URI, or None for other URIs. Does not access the disk."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file":
        return None
    path = unquote(parts.path)
    return windows_path(parts.netloc, path) if IS_WINDOWS else PurePath(path)


def workspace_remotes(uri: str) -> list[str]:
    """Return the URLs of a workspace's git remotes, read at most once an hour. Blocks."""
    return _read_remotes(uri, int(time.monotonic() // 3_600))


@lru_cache(maxsize=1_000)
def _read_remotes(uri: str, _hour: int) -> list[str]:
    from sidecar.project.git import remote_urls

    path = path_of(uri)
    return [] if path is None else remote_urls(Path(path))


def find_linked_root(uri: str, roots: Mapping[str, Path]) -> tuple[str, PurePath] | None:
    """Find the root that contains a document after all links are resolved. This function blocks.

    Args:
        uri: The document's URI.
        roots: The paths of the roots, by key.

    Returns:
        The key of the innermost root, and the document's path below the root's own path. None if
        no root contains the document.
    """
    path = path_of(uri)
    if path is None:
        return None
    real = PurePath(os.path.realpath(path))
    real_roots = {key: PurePath(os.path.realpath(root)) for key, root in roots.items()}
    around = [key for key, root in real_roots.items() if real.is_relative_to(root)]
    if not around:
        return None
    key = max(around, key=lambda key: len(real_roots[key].parts))
    return key, roots[key] / real.relative_to(real_roots[key])


def _as_uri(workspace: str) -> str:
    try:
        return workspace if "://" in workspace else Path(workspace).as_uri()
    except ValueError:
        raise BadParamsError("a workspace must be a URI or an absolute path") from None


class Workspaces:
    """This process's workspaces.

    Documents outside all roots share one workspace that has no root.
    """

    def __init__(self) -> None:
        self._by_uri: dict[str, Workspace] = {}
        self.outside = Workspace(uri=None, path=None)

    def __iter__(self) -> Iterator[Workspace]:
        return iter([*self._by_uri.values(), self.outside])

    @property
    def default(self) -> Workspace:
        """The first root's workspace, or `outside` if no root is open."""
        return next(iter(self))

    def add(self, uri: str) -> Workspace:
        """Open a root if it is not open yet."""
        key = uri.rstrip("/") or uri
        if key not in self._by_uri:
            path = path_of(key)
            self._by_uri[key] = Workspace(uri=uri, path=Path(path) if path else None)
        return self._by_uri[key]

    def remove(self, uri: str) -> Workspace | None:
        """Close a root. Returns its workspace, or None if the root was not open."""
        return self._by_uri.pop(uri.rstrip("/") or uri, None)

    def of_document(self, uri: str) -> Workspace:
        """Return the innermost root that contains a document, or `outside` if there is none."""
        path = path_of(uri)
        if path is None and len(self._by_uri) == 1:
            return self.default  # an unsaved buffer belongs to the root if there is only one
        around = [
            (len(root.path.parts), root)
            for root in self._by_uri.values()
            if root.path is not None and root.path_below(uri) is not None
        ]
        return max(around, key=itemgetter(0), default=(0, self.outside))[1]

    def link(self, uri: str, linked: tuple[str, PurePath] | None) -> bool:
        """Assign a document to the root that `find_linked_root` has found, if any.

        Returns:
            Whether the document now belongs to that root.
        """
        root = None if linked is None else self._by_uri.get(linked[0])
        if root is None or linked is None:
            return False
        root.linked[uri] = linked[1]
        return True

    def unlink(self, uri: str) -> None:
        """Forget how a closed document is linked."""
        for root in self._by_uri.values():
            root.linked.pop(uri, None)

    @property
    def paths(self) -> dict[str, Path]:
        """The paths of the open roots, by key."""
        return {key: root.path for key, root in self._by_uri.items() if root.path is not None}

    def find(self, workspace: str | None) -> Workspace:
        """Return the workspace with the given URI or path. Defaults to the only root.

        Raises:
            BadParamsError: `workspace` is not in any open root, or it is None and several are open.
        """
        if workspace is None:
            return self._only_root()
        uri = _as_uri(workspace)
        match = self._by_uri.get(uri.rstrip("/"))
        if match is None and path_of(uri) is not None:
            match = self.of_document(uri)
        if match is None or match is self.outside:
            raise BadParamsError("the workspace is not in an open root folder")
        return match

    def _only_root(self) -> Workspace:
        if len(self._by_uri) > 1:
            raise BadParamsError("several root folders are open; set `workspace`")
        return next(iter(self._by_uri.values()), self.outside)
