"""The open root folders, and which of them contains a document or path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

from sidecar.errors import BadParamsError
from sidecar.operating_system import IS_WINDOWS, windows_path
from sidecar.workspace.workspace import Workspace


def path_of(uri: str) -> PurePath | None:
    """Return the local path of a `file:` URI, or None for another URI. Does not access the disk."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file":
        return None
    path = unquote(parts.path)
    return windows_path(parts.netloc, path) if IS_WINDOWS else PurePath(path)


_DOCUMENTS_KEPT = 4_096


def _as_uri(workspace: str) -> str:
    try:
        return workspace if "://" in workspace else Path(workspace).as_uri()
    except ValueError:
        raise BadParamsError("a workspace must be a URI or an absolute path") from None


class Workspaces:
    """The workspaces of this process. Documents outside every root share one without a root."""

    def __init__(self) -> None:
        self._by_uri: dict[str, Workspace] = {}
        self.outside = Workspace(uri=None, path=None)
        self._by_document: dict[str, Workspace] = {}
        """Cached because each keystroke asks several times."""

    def __iter__(self) -> Iterator[Workspace]:
        return iter([*self._by_uri.values(), self.outside])

    @property
    def default(self) -> Workspace:
        """The first root, or the workspace without a root if no root is open."""
        return next(iter(self))

    def add(self, uri: str) -> Workspace:
        """Open a root, unless it is open already."""
        self._by_document.clear()
        key = uri.rstrip("/") or uri
        if key not in self._by_uri:
            path = path_of(key)
            self._by_uri[key] = Workspace(uri=uri, path=Path(path) if path else None)
        return self._by_uri[key]

    def remove(self, uri: str) -> Workspace | None:
        """Close a root. Returns it, or None if it was not open."""
        self._by_document.clear()
        return self._by_uri.pop(uri.rstrip("/") or uri, None)

    def of_document(self, uri: str) -> Workspace:
        """Return the innermost root that contains a document, else the workspace without a root."""
        owner = self._by_document.get(uri)
        if owner is None:
            if len(self._by_document) > _DOCUMENTS_KEPT:
                self._by_document.clear()
            owner = self._by_document[uri] = self._innermost_root(uri)
        return owner

    def _innermost_root(self, uri: str) -> Workspace:
        path = path_of(uri)
        best = self.outside
        for workspace in self._by_uri.values():
            if path is None or workspace.path is None or not path.is_relative_to(workspace.path):
                continue
            if best.path is None or len(workspace.path.parts) > len(best.path.parts):
                best = workspace
        if best is self.outside and len(self._by_uri) == 1 and path is None:
            # An unsaved buffer belongs to the only root.
            return next(iter(self._by_uri.values()))
        return best

    def find(self, workspace: str | None) -> Workspace:
        """Return the workspace that a request names by URI or path; by default the only one.

        Raises:
            BadParamsError: The name is missing although several are open, or is in no root.
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
