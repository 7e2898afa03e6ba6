"""A home folder with a project, to see what agents send of their files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sidecar.agents.folders import Places
from sidecar.project.footprint import Footprint, Part, Problem, find_footprint
from sidecar.project.source_files import SourceFiles

Contents = Mapping[str, str | bytes]


class FootprintWorld:
    """A home folder. Names that start with `~/` are in it, and the others in the repository."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.root = self.home / "above" / "root"
        (self.root / ".git").mkdir(parents=True)
        self.files = SourceFiles()
        self.places = Places(self.home, {})

    def path(self, name: str) -> Path:
        """Return the path of a name."""
        return (
            self.home / name[2:]
            if name.startswith("~/")
            else Path(os.path.normpath(self.root / name))
        )

    def write(self, contents: Contents) -> None:
        """Write files."""
        for name, text in contents.items():
            path = self.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)

    def footprint(self, agent: str, start: str = ".") -> Footprint:
        """Return what an agent that starts in a folder of the repository sends."""
        (self.root / start).mkdir(parents=True, exist_ok=True)
        self.files = SourceFiles()
        return find_footprint(agent, self.path(start), self.places, files=self.files)

    def name(self, path: str) -> str:
        """Return the name of a path."""
        if Path(path).is_relative_to(self.root):
            return Path(path).relative_to(self.root).as_posix()
        if Path(path).parent == self.root.parent:
            return f"../{Path(path).name}"
        return f"~/{Path(path).relative_to(self.home).as_posix()}"

    def parts(self, found: Footprint, *states: str) -> list[Part]:
        """Return the parts in some states, or those that are sent."""
        return [one for one in found.parts if one.state in (states or ("sent", "cut"))]

    def sent(self, agent: str, start: str = ".") -> list[str]:
        """Return the names of the files of which at least a part is sent."""
        return [self.name(one.path) for one in self.parts(self.footprint(agent, start)) if one.text]

    def problems(self, agent: str, code: str, start: str = ".") -> list[Problem]:
        """Return the problems with a code."""
        return [one for one in self.footprint(agent, start).problems if one.code == code]
