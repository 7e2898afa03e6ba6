"""Finds what coding agents send of a root's files, and lose of those that are open.

The text of an open document counts as if it was saved, also for the findings of other files. All
other files count as they are on disk.
"""

from __future__ import annotations

import codecs
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from sidecar.config.safe_files import read_regular
from sidecar.counting.open_documents import Documents, Snapshot
from sidecar.errors import WorkStoppedError, log_defect
from sidecar.tasks import SharedTasks, Workers
from sidecar.workspace.workspace import Event, Workspace, Workspaces, path_of

if TYPE_CHECKING:
    from sidecar.budgets.instruction_findings import InstructionFinding
    from sidecar.config.settings import Settings
    from sidecar.project.footprint import Footprint


class LocatedFindings(NamedTuple):
    """A document's findings, and the text that they refer to."""

    snapshot: Snapshot
    findings: tuple[InstructionFinding, ...]


class RootFindings(NamedTuple):
    """What agents send in a root, and the findings in its open documents."""

    footprints: tuple[Footprint, ...] = ()
    """The footprint of each agent."""
    used: tuple[str, ...] = ()
    """The agents that are used here, or that the settings name."""
    files: frozenset[str] = frozenset()
    """The files that decide the rest. They may not exist."""
    folders: frozenset[str] = frozenset()
    """The folders of which all files may decide the rest."""
    watched: frozenset[str] = frozenset()
    """The files and folders to watch for changes on disk."""
    by_path: Mapping[str, LocatedFindings] = {}
    """The findings of each open document that has any."""

    def depends_on(self, path: str) -> bool:
        """Return whether a file may decide what agents send."""
        above = PurePath(path).parents
        return path in self.files or any(str(folder) in self.folders for folder in above)


_NOTHING = RootFindings()
MAX_WATCHED = 1_000
"""Maximum number of paths that are watched for each root, and of files in a watched folder."""


class InstructionChecks:
    """Keeps what agents send in each root, and the findings of open documents."""

    def __init__(
        self,
        workers: Workers,
        documents: Documents,
        roots: Workspaces,
        publish: Callable[[Event], None],
        windows_of: Callable[[Workspace], dict[str, int]],
    ) -> None:
        self._workers, self._documents, self._roots = workers, documents, roots
        self._publish, self._windows_of = publish, windows_of
        self._found: dict[Workspace, RootFindings] = {}
        self._changes = Counter[Workspace]()
        self._checked: dict[Workspace, int] = {}
        """The number of changes that the latest check of each root has seen."""
        self._running = SharedTasks[Workspace, None]("instructions", outlives_waiters=True)

    def watched(self, root: Workspace) -> frozenset[str]:
        """Return the files and folders to watch for changes of a root's findings."""
        return self._found.get(root, _NOTHING).watched

    def is_stale(self, root: Workspace) -> bool:
        """Return whether a root must be checked, because it has changed or is new."""
        return self._checked.get(root) != self._changes[root]

    def mark_stale(self, root: Workspace) -> None:
        self._changes[root] += 1

    def document_changed(self, uri: str) -> None:
        """Mark the roots whose findings depend on a document as stale."""
        self._changes.update(root for root, _ in self._concerned(uri))
        # The files below a root's folder are looked for only among the open documents.
        root, path = self._roots.of_document(uri), self._path_of(uri)
        if root in self._found and not self._found[root].depends_on(path):
            from sidecar.project.loading_rules import prompt_file_names

            self._changes[root] += os.path.basename(path) in prompt_file_names()

    async def findings(self, uri: str) -> list[InstructionFinding]:
        """Return the findings for the current text of an open document."""
        for root, _ in self._concerned(uri):
            await self.check_if_stale(root)
        found: dict[InstructionFinding, None] = {}
        for root, path in self._concerned(uri):
            located = self._found[root].by_path.get(path)
            if located is not None and self._documents.is_newest(located.snapshot):
                found |= dict.fromkeys(located.findings)
        return list(found)

    async def read_root(self, root: Workspace) -> RootFindings:
        """Return what agents send in a root, with open documents as they are in the editor."""
        await self.check_if_stale(root)
        return self._found.get(root, _NOTHING)

    async def read_document(self, uri: str) -> list[tuple[Workspace, str, RootFindings]]:
        """Return the roots whose agents may send a document, and its path there.

        The root that contains the document is first.
        """
        own = self._roots.of_document(uri)
        likely = list(self._roots) if own.path is None else [own]
        for root in dict.fromkeys((*likely, *(root for root, _ in self._concerned(uri)))):
            await self.check_if_stale(root)
        concerned = sorted(self._concerned(uri), key=lambda pair: pair[0] is not own)
        return [(root, path, self._found[root]) for root, path in concerned]

    async def check_if_stale(self, root: Workspace) -> None:
        """Check a root, and publish the root and the documents whose findings have changed."""
        while self.is_stale(root) and root in self._roots:
            await self._running.run(root, partial(self._check, root))

    async def _check(self, root: Workspace) -> None:
        changes, found, snapshots = self._changes[root], _NOTHING, self.open_files()
        if root.path is not None:
            work = partial(
                find_in_root, root.path, root.settings, snapshots, self._windows_of(root)
            )
            try:
                found = await self._workers.run(work)
            except WorkStoppedError:
                raise
            except Exception as exc:  # budgets must be shown even if this fails
                log_defect(exc, "instructions")
        if root not in self._roots:
            return
        before = self._found.get(root, _NOTHING).by_path
        self._found[root], self._checked[root] = found, changes
        self._publish(Event("instructions", root))
        for path, snapshot in snapshots.items():
            if before.get(path) != found.by_path.get(path):
                self._publish(Event("instructions", root, snapshot.uri))

    def open_files(self) -> dict[str, Snapshot]:
        """Return the open documents that are files, by path."""
        return {
            self._path_of(uri): self._documents.snapshot(uri)
            for uri, document in self._documents.items()
            if document.is_synced and path_of(uri) is not None
        }

    def forget(self, root: Workspace) -> None:
        """Forget the findings of a closed root."""
        self._found.pop(root, None)
        self._checked.pop(root, None)
        self._changes.pop(root, None)

    def _concerned(self, uri: str) -> list[tuple[Workspace, str]]:
        """Return the roots whose findings depend on a document, and its path."""
        path = self._path_of(uri)
        return [(root, path) for root, found in self._found.items() if found.depends_on(path)]

    def _path_of(self, uri: str) -> str:
        """Return a document's path, below the root's own path if a link leads into the root."""
        root = self._roots.of_document(uri)
        below = root.path_below(uri)
        if root.path is not None and below is not None:
            return str(root.path / below)
        return str(path_of(uri) or "")


def find_in_root(
    root: Path, settings: Settings, snapshots: Mapping[str, Snapshot], windows: Mapping[str, int]
) -> RootFindings:
    """Return what agents send of a root's files, and lose of open ones. This function blocks.

    Args:
        root: The root folder.
        settings: The root's settings.
        snapshots: The open documents, by path.
        windows: The context windows of agents in tokens, as far as they are known.
    """
    from sidecar.agents.folders import Places
    from sidecar.budgets.instruction_findings import find_used_agents, locate, problems_by_path
    from sidecar.project.footprint import find_all_footprints
    from sidecar.project.source_files import SourceFiles

    places = Places.of(settings.agents, projects=[root])
    used = find_used_agents(root, settings, places)
    real = {path: os.path.realpath(path) for path in snapshots}
    texts = BufferTexts.of(snapshots)
    files = SourceFiles(texts, below=snapshots)
    own = places if settings.agents.enabled else None
    footprints = find_all_footprints(root, own, files, windows=windows)
    checked = [one for one in footprints if one.agent in used and settings.footprint.diagnostics]
    problems = problems_by_path(checked, settings.footprint)
    small = (folder for folder, files_in_it in files.folders.items() if files_in_it <= MAX_WATCHED)
    watched = [path for path in sorted({*files.looked_up, *small}) if _is_watched(path, root)]
    return RootFindings(
        footprints=tuple(footprints),
        used=used,
        files=files.looked_up,
        folders=frozenset(files.folders),
        watched=frozenset(watched[:MAX_WATCHED]),
        by_path={
            path: LocatedFindings(snapshots[path], tuple(locate(rows, texts[real[path]])))
            for path, rows in problems.items()
            if path in snapshots and texts.snapshot(real[path]) is snapshots[path]
        },
    )


def _is_watched(path: str, root: Path) -> bool:
    """Return whether a change of a file or folder can be noticed without much work.

    Files that may appear above the root are left out: all changes in these folders, such as the
    home folder or /tmp, would be reported. So is a folder around the root.
    """
    if root.is_relative_to(path):
        return False
    if Path(path).is_relative_to(root) or os.path.exists(path):
        return True
    parent = os.path.dirname(path)
    return os.path.isdir(parent) and not root.is_relative_to(parent)


class BufferTexts(Mapping[str, bytes]):
    """The contents that open documents would have as files. Only those that are read are encoded.

    A byte order mark is kept, because it counts for an agent's limits. Editors do not send it.
    """

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._snapshots = snapshots
        self._known: dict[str, bytes] = {}

    @classmethod
    def of(cls, open_files: Mapping[str, Snapshot]) -> BufferTexts:
        """Return the contents by the path with all links resolved. This function blocks."""
        return cls({os.path.realpath(path): snapshot for path, snapshot in open_files.items()})

    def __getitem__(self, path: str) -> bytes:
        if path not in self._known:
            text = self._snapshots[path].text
            self._known[path] = _byte_order_mark(path) + text.encode("utf-8", "replace")
        return self._known[path]

    def snapshot(self, path: str) -> Snapshot:
        """Return the document that stands for a file. It may be open under two names."""
        return self._snapshots[path]

    def __contains__(self, path: object) -> bool:
        return path in self._snapshots

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshots)

    def __len__(self) -> int:
        return len(self._snapshots)


def _byte_order_mark(path: str) -> bytes:
    try:
        data = read_regular(path)[:3]
    except OSError:
        return b""
    return data if data == codecs.BOM_UTF8 else b""
