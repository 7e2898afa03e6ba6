"""The token map, which shows a folder's tokens by subfolder and file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import msgspec

from sidecar.counting.count_result import Method, method_mark, number_text


class MapEntry(msgspec.Struct, rename="camel", kw_only=True):
    """A file or folder and its token count. A folder's count includes all of its contents."""

    path: str
    """The path relative to the top folder, with `/` as the separator. Folder paths end in `/`."""
    tokens: int = 0
    files: int = 0
    estimated: bool = False
    """Whether any of the tokens are estimated."""
    children: list[MapEntry] = []
    """A folder's contents, largest entry first. Empty below the requested depth."""

    @property
    def number(self) -> str:
        """The number of tokens as text."""
        return number_text(self.tokens, "estimate" if self.estimated else "exact")


def build_token_map(counts: Iterable[tuple[str, int, Method]], depth: int) -> MapEntry:
    """Return a folder's token map.

    Args:
        counts: Each file's path relative to the folder, its token count and its method.
        depth: Maximum number of levels.
    """
    top = MapEntry(path="")
    listed: dict[str, MapEntry] = {"": top}
    for path, tokens, method in counts:
        parts = path.replace(os.sep, "/").split("/")
        for level in range(min(depth, len(parts)) + 1):
            name = "/".join(parts[:level]) + ("/" if 0 < level < len(parts) else "")
            entry = listed.get(name)
            if entry is None:
                entry = listed[name] = MapEntry(path=name)
                listed[parent_of(name)].children.append(entry)
            entry.tokens += tokens
            entry.files += 1
            entry.estimated |= bool(method_mark(method))
    for entry in listed.values():
        entry.children.sort(key=lambda child: (-child.tokens, child.path))
    return top


def parent_of(name: str) -> str:
    """Return the parent folder's path, or "" at the top level."""
    folder = name.rstrip("/").rpartition("/")[0]
    return f"{folder}/" if folder else ""


def flatten(entry: MapEntry) -> Iterator[tuple[int, MapEntry]]:
    """Yield each entry below `entry` with its level. Folders come before their contents."""
    rest = [(0, child) for child in reversed(entry.children)]
    while rest:
        level, child = rest.pop()
        yield level, child
        rest += [(level + 1, inner) for inner in reversed(child.children)]
