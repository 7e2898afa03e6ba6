"""Finds the project that each folder in VS Code's `workspaceStorage` belongs to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from sidecar import typed
from sidecar.agents.file_reading import CamelRecord, Record, cached_until_changed, open_quietly
from sidecar.agents.stores import list_folder
from sidecar.known_agents import editor_servers

_MOST = 1 << 20
_PATHS = re.compile(rb'"(?:path|uri)"\s*:\s*("(?:[^"\\]|\\.)*")')


class Uri(Record):
    """A URI as VS Code serializes it."""

    scheme: str = "file"
    path: str = ""


class Storage(msgspec.Struct, frozen=True):
    """A folder in `workspaceStorage`, which contains the data of one project."""

    path: str
    folders: tuple[str, ...]
    """The project's folders on this machine, or an empty tuple if unknown."""
    name: str | None = None
    """The name of the project's folder, if the project is on another machine."""

    @property
    def named_folders(self) -> tuple[str, ...]:
        """The project's folders or remote folder name, in the format that `Roots.contains` uses."""
        return self.folders or ((f"name:{self.name}",) if self.name else ())


def storages(user: Path) -> Iterator[Storage]:
    """Yield a user's storage folders. Several may belong to the same project."""
    for entry in list_folder(user / "workspaceStorage"):
        yield storage(entry.path)


def storage(path: str) -> Storage:
    """Determine the project that a folder in `workspaceStorage` belongs to."""
    for name in ("workspace.json", "meta.json"):
        try:
            at = os.stat(os.path.join(path, name))
        except OSError:
            continue
        return _read_storage(path, name, at.st_mtime_ns)
    return Storage(path, ())


def local_path(uri: str | Uri | None, *, on_server: bool = False) -> str | None:
    """Return the local path of a URI, or None if the URI refers to another machine.

    Args:
        uri: The URI.
        on_server: Whether the URI comes from the user data of a VS Code server. In this case,
            remote URIs refer to this machine.
    """
    if isinstance(uri, Uri):
        scheme, path = uri.scheme, uri.path
    else:
        try:
            parts = urlsplit(uri or "")
        except ValueError:
            return None
        scheme, path = parts.scheme, unquote(parts.path)
    if scheme != "file" and not (on_server and scheme == "vscode-remote"):
        return None
    drive = re.match(r"/[A-Za-z]:", path)
    return path[1:].replace("/", "\\") if drive else path or None


class _OwnModel(CamelRecord):
    id: str | None = None
    max_input_tokens: float | None = None
    max_output_tokens: float | None = None


class _Group(Record):
    models: list[_OwnModel] | None = None


def own_window(user: Path, model: str) -> int | None:
    """Return the context window, in tokens, of a model that the user added to VS Code.

    Returns None for any other model.

    Args:
        user: VS Code's user data folder.
        model: The last segment of the model's id.
    """
    groups = _read_groups(user / "chatLanguageModels.json") or ()
    for one in (one for group in groups for one in group.models or ()):
        if one.id and one.id.rpartition("/")[2] == model and one.max_input_tokens:
            return int(one.max_input_tokens + (one.max_output_tokens or 0))
    return None


@cached_until_changed
def _read_groups(path: str) -> list[_Group]:
    try:
        return typed.decode_leniently(_read_bytes(path), list[_Group])
    except msgspec.DecodeError:
        return []


class _Workspace(Record):
    folder: str | None = None
    workspace: str | None = None
    configuration: str | None = None
    name: str | None = None


@lru_cache(maxsize=4096)
def _read_storage(path: str, name: str, _mtime_ns: int) -> Storage:
    try:
        found = typed.decode_leniently(_read_bytes(os.path.join(path, name)), _Workspace)
    except (OSError, msgspec.DecodeError):
        return Storage(path, ())
    served = is_server(path)
    folder = local_path(found.folder, on_server=served)
    if folder is not None:
        return Storage(path, (folder,))
    of_several = local_path(found.workspace or found.configuration, on_server=served)
    if of_several is not None:
        return Storage(path, _read_folders(of_several))
    return Storage(path, (), found.name if served else None)


def is_server(path: str) -> bool:
    """Return whether a path belongs to a VS Code server, which runs on the project's machine."""
    return any(
        f"{os.sep}{name}{os.sep}" in path
        for name in (*editor_servers(), "code-server", "serve-web")
    )


def _read_folders(path: str) -> tuple[str, ...]:
    try:
        named = _PATHS.findall(_read_bytes(path))
    except OSError:
        return ()
    found = []
    for text in named:
        try:
            name = typed.decode(text, str)
        except msgspec.DecodeError:
            continue
        name = local_path(name) or name if "://" in name else name
        found.append(os.path.normpath(os.path.join(os.path.dirname(path), name)))
    return tuple(found)


def _read_bytes(path: str) -> bytes:
    with open_quietly(path) as file:
        return file.read(_MOST)
