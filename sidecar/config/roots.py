"""Finds the root folder of a project.

Hooks also use this module. It imports little, because a prompt waits for them.
"""

from __future__ import annotations

import os
from pathlib import Path

from sidecar.config.paths import project_files
from sidecar.config.safe_files import read_file


def find_root(start: Path) -> Path:
    """Return the nearest project folder at or above a path.

    If there is none, return the path itself if it is a folder, or its parent if it is not.
    """
    folder = start if os.path.isdir(start) else start.parent
    return next(filter(is_root, (folder, *folder.parents)), folder)


def is_root(folder: Path) -> bool:
    """Return whether a folder contains a project configuration or `.git`. Never raises."""
    return os.path.exists(folder / ".git") or has_configuration(folder)


def has_configuration(folder: Path) -> bool:
    """Return whether a folder contains a project configuration. Never raises."""
    # Unlike pathlib, os.path does not raise for overlong or inaccessible paths.
    own, pyproject = project_files(folder)
    return os.path.isfile(own) or (os.path.isfile(pyproject) and has_section(pyproject))


def has_section(pyproject: Path) -> bool:
    """Return whether a `pyproject.toml` has a `[tool.token-sidecar]` section.

    Returns True for an invalid file that mentions the section, so that its error is reported.
    """
    try:
        text = read_file(pyproject, pyproject.parent).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return False
    if "token-sidecar" not in text:
        return False
    from sidecar.config.toml import InvalidTomlError, parse

    try:
        tools = parse(text).get("tool")
    except InvalidTomlError:
        return True
    return isinstance(tools, dict) and "token-sidecar" in tools
