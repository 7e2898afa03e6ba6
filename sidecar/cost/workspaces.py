"""One spelling for a workspace: editors and agents write the same folder in different ways."""

from __future__ import annotations

import os
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from urllib.parse import unquote, urlsplit


def workspace_key(named: str) -> str:
    """The `file:` URI of a folder named by URI or absolute path; anything else as it is.

    `file:///c%3A/work/` and `C:\\work` are the same folder, and so are `/w` and `file:///w/`.
    Looks at the text only: no link is followed.
    """
    path = _local_path(named)
    return named if path is None or not path.is_absolute() else path.as_uri()


def folder_name(workspace: str) -> str:
    """What people call a workspace: its last part; "" stands for none."""
    return unquote(workspace.rstrip("/").rpartition("/")[2])


def _local_path(named: str) -> PurePath | None:
    if "://" not in named:
        return PurePath(named) if named else None
    parts = urlsplit(named)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = unquote(parts.path)
    if os.name == "nt" or (path[2:3] == ":" and path[1:2].isalpha()):
        return PureWindowsPath(path.lstrip("/")[:1].upper() + path.lstrip("/")[1:])
    return PurePosixPath(path)
