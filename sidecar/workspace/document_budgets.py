"""Checks token budgets of documents and files, for editors and for the `check` command."""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cachetools import LRUCache, TTLCache

from sidecar.budgets.budget_rules import Rule, Subject
from sidecar.config.safe_files import FileStamp, stamp_of
from sidecar.config.settings import Budget
from sidecar.counting.open_documents import Documents, Snapshot
from sidecar.counting.tokenizer_choice import digest_of_text
from sidecar.endpoints.outcome import LARGEST_CHARACTERS
from sidecar.project.files import File, Targets, Text, drop_duplicate_links, read
from sidecar.text.outline import HEAD_CHARACTERS, MARK_START, has_ignore_mark
from sidecar.workspace.workspace import Workspaces, path_of

if TYPE_CHECKING:
    from sidecar.budgets.budget_rules import Rules
    from sidecar.budgets.check_run import AlwaysLoadedFile
    from sidecar.budgets.findings import Finding, RestOfGroup
    from sidecar.config.settings import Settings
    from sidecar.counting.count_result import Measure
    from sidecar.counting.counts import Counts
    from sidecar.counting.tokenizer_choice import CounterChoice
    from sidecar.project.files import Target
    from sidecar.workspace.instruction_checks import InstructionChecks
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

FILES_KEPT = 100_000
"""Maximum number of files whose token counts are cached. If a group contains more files, each edit
recounts the group.
"""
SENT_KEPT = 10_000
"""Maximum number of texts that agents send whose token counts are cached."""
LISTING_SECONDS = 10.0
"""How long the list of files in a folder is cached, in seconds."""

WATCHED_FILES = 1_000
"""Maximum number of files with a shared budget that are watched for changes on disk."""


class SentFiles(NamedTuple):
    """A rule for what an agent sends with every call, and what the agent sends."""

    rule: Rule
    files: list[AlwaysLoadedFile]


class Budgets:
    """Checks the budgets of open documents, and caches the token counts of other files."""

    def __init__(self, counts: Counts, documents: Documents, roots: Workspaces) -> None:
        self._counts, self._documents, self._roots = counts, documents, roots
        self._listings: TTLCache[str, list[Target]] = TTLCache(16, LISTING_SECONDS)
        self._files: LRUCache[tuple[str, FileStamp, Hashable], int | None] = LRUCache(FILES_KEPT)
        self._sent: LRUCache[tuple[bytes, Hashable], Measure] = LRUCache(SENT_KEPT)

    async def find_sent(
        self, uri: str, workspace: Workspace, instructions: InstructionChecks
    ) -> list[SentFiles]:
        """Return the `always-loaded` rules whose agents send a document, and what they send."""
        rules = workspace.rules.always_loaded if workspace.rules else ()
        if not rules or workspace.path is None:
            return []
        name = relative_name(workspace, uri)
        known = await instructions.read_root(workspace)
        if not known.depends_on(str(workspace.path / name)):
            return []
        listed = {target.relative for target in await self._list_targets(workspace.path)}
        work = partial(
            _find_sent, rules, workspace.path, workspace.settings, listed, instructions.open_files()
        )
        found = await self._counts.workers.run(work)
        return [sent for sent in found if any(file.name == name for file in sent.files)]

    def subject(
        self, snapshot: Snapshot, workspace: Workspace, sent: Iterable[SentFiles] = ()
    ) -> Subject:
        """Return text together with the budget rules that apply to its URI.

        Args:
            snapshot: The text.
            workspace: Its workspace.
            sent: What agents send together with it, from `find_sent`.
        """
        name = relative_name(workspace, snapshot.uri)
        rules = tuple(workspace.rules.of(name)) if workspace.rules else ()
        rules += (*_window_rule(snapshot.uri, workspace, name), *(one.rule for one in sent))
        return Subject(name, snapshot, rules, workspace.budget_model, snapshot.version)

    async def choose_counters(
        self, subject: Subject, workspace: Workspace
    ) -> dict[str, CounterChoice]:
        """Choose how to count the text for each of `Subject.models`."""
        return {
            model: await self._counts.choose_counter(subject.snapshot, model, workspace.settings)
            for model in subject.models
        }

    async def findings(
        self, subject: Subject, workspace: Workspace, sent: Sequence[SentFiles] = ()
    ) -> list[Finding]:
        """Return a finding for each rule whose `warn-at` threshold is reached."""
        run = self._counts.workers.run
        if not subject.rules and not await run(partial(_is_marked, subject.snapshot)):
            return []
        choices = await self.choose_counters(subject, workspace)
        rest_of_group = await self._count_other_files(subject, workspace)
        found = await run(partial(_find_in_text, subject, choices, rest_of_group))
        for one in sent:
            found += await self._find_in_sent(subject, workspace, one)
        return found

    async def _find_in_sent(
        self, subject: Subject, workspace: Workspace, sent: SentFiles
    ) -> list[Finding]:
        """Return the finding of a text for what an agent sends with every call, if any."""
        from sidecar.budgets.findings import evaluate_always_loaded, whole_file_finding

        settings = workspace.settings
        counts: list[tuple[str, Measure]] = []
        model = sent.rule.budget.model or subject.model
        for file in sent.files:
            part = Snapshot(text=file.text)
            base = self._counts.count_cache_key(
                model, settings, sent=len(file.text) <= LARGEST_CHARACTERS
            )
            key = digest_of_text(file.text), base
            if key not in self._sent:
                choice = await self._counts.choose_counter(part, model, settings)
                self._sent[key] = await self._counts.measure(part, choice)
            counts.append((file.name, self._sent[key]))
        found = dict(evaluate_always_loaded(sent.rule, counts, subject.model)).get(subject.name)
        return [] if found is None else [whole_file_finding(found, subject.snapshot.text)]

    async def _count_other_files(
        self, subject: Subject, workspace: Workspace
    ) -> dict[str, RestOfGroup]:
        totals: dict[str, RestOfGroup] = {}
        sums = [rule for rule in subject.rules if rule.budget.sum]
        if not sums or workspace.path is None:
            return totals
        from sidecar.budgets.findings import GroupMember, RestOfGroup, members_to_name

        listed, own = await self._list_targets(workspace.path), str(workspace.path / subject.name)
        for rule in sums:
            model = rule.budget.model or subject.model
            # Matching 20,000 files takes 0.2 s.
            find_others = partial(_other_members, workspace.rules, rule, listed, own)
            targets = await self._counts.workers.run(find_others)
            counts = await self._count_targets(targets, model, workspace)
            members = [GroupMember(name, tokens) for name, tokens in counts]
            totals[rule.key] = RestOfGroup(
                sum([tokens for _, tokens in counts]), len(counts) + 1, members_to_name(members)
            )
        return totals

    def files_changed(self, workspace: Workspace) -> None:
        """List a root's files again when a group's other files are next counted."""
        self._listings.pop(str(workspace.path), None)

    async def _list_targets(self, root: Path) -> list[Target]:
        key = str(root)
        if key not in self._listings:
            self._listings[key] = await self._counts.workers.run(partial(_find_targets, key))
        return self._listings[key]

    async def _count_targets(
        self, targets: list[Target], model: str, workspace: Workspace
    ) -> list[tuple[str, int]]:
        buffers = {
            relative_name(workspace, uri): uri
            for uri, document in self._documents.items()
            if document.is_synced and self._roots.of_document(uri) is workspace
        }
        names = [one.relative for one in targets if one.relative in buffers]
        counts = [
            (
                name,
                await self._count_unless_ignored(
                    self._documents.snapshot(buffers[name]), name, model, workspace
                ),
            )
            for name in names
        ]
        paths = {one.path: one.relative for one in targets if one.relative not in buffers}
        bases = [
            self._counts.count_cache_key(model, workspace.settings, sent=sent)
            for sent in (False, True)
        ]
        stamps = await self._counts.workers.run(partial(_stamps_of, paths)) if paths else {}
        for path, stamp in stamps.items():
            key = path, stamp, bases[stamp[0] <= LARGEST_CHARACTERS]
            if key not in self._files:
                text = await self._counts.workers.run(partial(_read_text, path, stamp))
                part = None if text is None else Snapshot(text=text)
                self._files[key] = (
                    None
                    if part is None
                    else await self._count_unless_ignored(part, path, model, workspace)
                )
            counts.append((paths[path], self._files[key]))
        return [(name, tokens) for name, tokens in counts if tokens is not None]

    async def _count_unless_ignored(
        self, snapshot: Snapshot, name: str, model: str, workspace: Workspace
    ) -> int | None:
        if is_ignored(snapshot, name):
            return None
        choice = await self._counts.choose_counter(snapshot, model, workspace.settings)
        return (await self._counts.measure(snapshot, choice)).tokens


def _find_in_text(
    subject: Subject, choices: Mapping[str, CounterChoice], others: Mapping[str, RestOfGroup]
) -> list[Finding]:
    # Imported on a worker thread to keep server startup fast.
    from sidecar.budgets.findings import find_in_text

    return find_in_text(subject, choices, others)


def _find_sent(
    rules: Iterable[Rule],
    root: Path,
    settings: Settings,
    listed: Container[str],
    open_files: Mapping[str, Snapshot],
) -> list[SentFiles]:
    """Return what the agents of rules send, with open documents as they are in the editor."""
    from sidecar.budgets.check_run import find_always_loaded
    from sidecar.workspace.instruction_checks import BufferTexts

    texts = BufferTexts.of(open_files)
    find = partial(find_always_loaded, root, settings, listed, None, texts)
    return [SentFiles(rule, find(rule.budget.always_loaded or "")) for rule in rules]


def relative_name(workspace: Workspace, uri: str) -> str:
    """Return the document's path relative to its root folder, with `/` as the separator."""
    path = path_of(uri)
    if path is None:
        return uri.rsplit("/", 1)[-1]
    below = workspace.path_below(uri)
    return path.name if below is None else below.as_posix()


def model_of(uri: str, workspace: Workspace) -> str:
    """Return the model used to count a document.

    The budget's model takes precedence over the model of the conversation.
    """
    rules = workspace.rules.of(relative_name(workspace, uri)) if workspace.rules else []
    if not rules:
        return workspace.model
    tightest = _tightest_rule(rules, workspace)
    if tightest is not None:
        return tightest.budget.model or workspace.budget_model
    models = [rule.budget.model or workspace.budget_model for rule in rules]
    return workspace.budget_model if workspace.budget_model in models else models[0]


def find_lowest_budget(snapshot: Snapshot, workspace: Workspace) -> int | None:
    """Return the document's lowest budget, or None if it has no budget.

    The budget is a number of tokens for the model that `model_of` returns.
    """
    rules = workspace.rules.of(relative_name(workspace, snapshot.uri)) if workspace.rules else []
    tightest = _tightest_rule(rules, workspace)
    return (
        None
        if tightest is None or is_ignored(snapshot, snapshot.uri)
        else tightest.budget.max_tokens
    )


def _tightest_rule(rules: Sequence[Rule], workspace: Workspace) -> Rule | None:
    def key(rule: Rule) -> tuple[int, bool]:
        own_model = rule.budget.model not in (None, workspace.budget_model)
        return rule.budget.max_tokens or 0, own_model

    return min((rule for rule in rules if rule.for_whole_files), key=key, default=None)


def is_ignored(snapshot: Snapshot, name: str) -> bool:
    return has_ignore_mark(snapshot.head(HEAD_CHARACTERS), name)


def _window_rule(uri: str, workspace: Workspace, name: str) -> tuple[Rule, ...]:
    usage = workspace.context.usage
    if not workspace.settings.diagnostics.prompt_buffers or usage is None:
        return ()
    if usage.tokens is None or usage.usable is None:
        return ()
    sections = [
        section for section in workspace.context.followed if section.shown and section.uri == uri
    ]
    if not sections:
        return ()
    others = usage.tokens - sum(section.tokens for section in sections)
    available = max(1, usage.usable - max(0, others))
    warn_at = max(workspace.settings.context.warn_at, default=1.0)
    budget = Budget(files=(name,), max_tokens=available, warn_at=warn_at, model=workspace.model)
    return (Rule("window", budget),)


def _is_marked(snapshot: Snapshot) -> bool:
    return MARK_START in "".join([piece.text for piece in snapshot.pieces])


def group_paths(root: str, rules: Rules) -> list[str]:
    """Return the files to watch for changes to the files that share a budget. This call blocks.

    If there are more than `WATCHED_FILES`, only git's own files are watched.
    """
    from sidecar.project.git import index_files

    members = [
        target.path
        for target in _find_targets(root)
        if any(rules.matches(rule, target.relative) for rule in rules.sums)
    ]
    return [*index_files(root), *(members if len(members) <= WATCHED_FILES else ())]


def _find_targets(root: str) -> list[Target]:
    targets = list(Targets(Path(root)).of([root]))
    for target in targets:
        if target.fault is not None and target.fault.failed:
            logger.warning("shared budgets: %s: %s", target.path, target.fault.reason)
    return [target for target in targets if target.fault is None]


def _other_members(rules: Rules, rule: Rule, listed: list[Target], own: str) -> list[Target]:
    """Return the other files that share a budget, without duplicate links. This call blocks."""
    every = drop_duplicate_links(one for one in listed if rules.matches(rule, one.relative))
    if not os.path.islink(own):
        return [one for one in every if one.path != own]
    real = os.path.realpath(own)
    return [one for one in every if os.path.realpath(one.path) != real]


def _stamps_of(paths: Iterable[str]) -> dict[str, FileStamp]:
    stamps = {path: stamp_of(path) for path in paths}
    return {path: stamp for path, stamp in stamps.items() if stamp is not None}


def _read_text(path: str, stamp: FileStamp) -> str | None:
    text = read(File(path, stamp[0], named=False))
    return text.text if isinstance(text, Text) else None
