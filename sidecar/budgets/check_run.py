"""Checks the budgets of files. Unchanged files are not read again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.budgets.budget_rules import Rule, Rules, Subject
from sidecar.budgets.check_cache import (
    CheckCache,
    Checked,
    Entry,
    calibration_stamp,
    decode_counts,
    digest_of,
    drop_unused,
    file_stamps,
    is_stamp_reliable,
)
from sidecar.budgets.check_report import (
    START,
    FileRange,
    FileReport,
    Growth,
    Report,
    ReportedFinding,
    Unchecked,
    find_distinct,
    report_finding,
)
from sidecar.budgets.findings import (
    Finding,
    evaluate_always_loaded,
    evaluate_sum,
    find_in_text,
)
from sidecar.config.safe_files import FileStamp, stamp_of
from sidecar.config.settings import Settings
from sidecar.counting.count_result import ContentCounts, Measure
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_choice import (
    ChooseCounter,
    ContentCounter,
    CounterChoice,
    digest_of_text,
    local_counters,
    map_batches,
)
from sidecar.project.files import (
    File,
    SkippedPath,
    Target,
    Targets,
    drop_duplicate_links,
    read,
    report_binary,
)
from sidecar.text.outline import has_ignore_mark

if TYPE_CHECKING:
    from sidecar.project.source_files import Contents

MAX_MATCHES = 100_000
"""Maximum number of times to test whether a rule matches a path. This many tests take 0.1 s."""
_NO_STAMP: FileStamp = (0, 0, 0, 0)
_PARALLEL_REQUESTS = 8
"""Maximum number of simultaneous requests to an endpoint."""
_UNREAD = Entry(_NO_STAMP, is_stamp_reliable=False)

Progress = Callable[[Iterable[Checked], int, int], Iterable[Checked]]
"""Shows progress. Takes the files, their number and their total size in bytes."""


class LoadedFile(NamedTuple):
    """A file's text, its stamp, and the time of the stamp, which was taken before it was read."""

    target: Target
    snapshot: Snapshot
    stamp: FileStamp = _NO_STAMP
    stamped_at: int = 0
    digest: bytes = b""


class AlwaysLoadedFile(NamedTuple):
    """What an agent sends of a file with every call."""

    path: str
    """The path relative to the current folder."""
    name: str
    """The path relative to the root folder."""
    text: str
    old_text: str | None = None
    """What it sent in the revision to compare with, or None without a revision."""
    problem: str = ""
    """Why the file could not be read, so that its text is unknown."""


class Checker:
    """Checks a project's files. Tokenizers are loaded on first use."""

    def __init__(
        self,
        settings: Settings,
        model: str,
        cache: CheckCache,
        choose: ChooseCounter | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Create a checker.

        Args:
            settings: The project's settings.
            model: The default model.
            cache: The project's cache, which is updated.
            choose: Chooses the counter for a text. By default, local counters are used.
            progress: Shows the progress of reading files, and returns them.
        """
        self._settings = settings
        self._rules = Rules(settings)
        self._all_rules = self._rules.all
        self._model = model
        self._cache = cache
        self._choose, self._progress = choose, progress
        self._contents: ContentCounts | None = None
        self._counter: ContentCounter | None = None
        self._reading = Lock()
        self.old_texts: dict[str, str] = {}
        """What the changed files contained in the revision that they are compared with."""
        self.unsent_rules: list[str] = []
        """The keys of `always-loaded` rules whose agent sends no file of the project."""
        self._has_sent_files = False
        self._unread_files: list[Unchecked] = []
        self._has_changed = False
        fingerprint = self._settings_fingerprint()
        calibration = cache.calibration
        is_calibration_changed = calibration is not None and calibration != calibration_stamp()
        if cache.fingerprint != fingerprint or is_calibration_changed:
            cache.fingerprint, cache.entries, cache.calibration = fingerprint, {}, None

    @property
    def counter(self) -> ContentCounter:
        """The counter of texts, which is created on first use."""
        if self._counter is None:
            self._contents = decode_counts(self._cache)
            choose = self._choose or local_counters(self._settings)[1]
            self._counter = ContentCounter(choose, self._contents, file_stamps(self._settings))
        return self._counter

    @property
    def has_changed(self) -> bool:
        """Whether the cache has changed and must be saved."""
        return self._has_changed or (self._counter is not None and self._counter.has_new)

    def run(
        self,
        targets: Sequence[Target],
        others: Iterable[Target],
        find_old_texts: Callable[[Collection[str]], dict[str, str]] | None = None,
        base: str = "",
    ) -> list[Checked]:
        """Check files, and return the results in order. Links without a budget are skipped.

        Args:
            targets: The files to check.
            others: The project's other files, which group rules can include.
            find_old_texts: Returns what the given files contained in the revision to compare with.
            base: The revision.
        """
        checked = self._check(
            [target for target in targets if not target.link or self.has_budget(target)]
        )
        paths = {result.target.relative for result in checked}
        other_results = self._check(
            [
                target
                for target in (others if self._rules.sums else ())
                if target.relative not in paths and self._may_be_in_sum(target)
            ]
        )
        if find_old_texts is not None:
            known = [result.target.relative for result in (*checked, *other_results)]
            self.old_texts = find_old_texts(frozenset(known))
        if not self._rules.sums:
            return checked
        return self._add_sum_findings(checked, other_results, base)

    def has_budget(self, target: Target) -> bool:
        """Return whether a rule applies to a file, or might apply to files in a folder."""
        if not target.relative.endswith("/"):
            return bool(self._rules.of(target.relative))
        if target.link:
            return self._rules.may_match_in(target.relative[:-1])
        is_unlisted = target.fault is not None and target.fault.failed
        return is_unlisted or bool(self._rules)

    def unmatched_rules(self, targets: Sequence[Target]) -> list[str]:
        """Return the keys of rules that match no file.

        Returns an empty list if testing all rules would take too long.
        """
        unmatched, tests = [rule for rule in self._rules.written if rule.budget.files], 0
        for target in targets:
            tests += len(unmatched)
            if not unmatched or tests > MAX_MATCHES:
                return []
            unmatched = [
                rule for rule in unmatched if not self._rules.matches(rule, target.relative)
            ]
        return [rule.key for rule in unmatched]

    def add_always_loaded(
        self,
        checked: Sequence[Checked],
        root: Path,
        old: Mapping[str, Contents] | None = None,
        base: str = "",
        texts: Mapping[str, bytes] | None = None,
    ) -> list[Checked]:
        """Check what agents send with every call, and return the results with the findings.

        If none of the sent files was checked, the result of one of them is added: of the one that
        grew most, or the first one.

        Args:
            checked: The results.
            root: The root folder.
            old: What the changed files contained in a revision, or None without a revision.
            base: The revision.
            texts: What files contain instead of their contents on disk, by path.
        """
        if not self._rules.always_loaded:
            return list(checked)
        listed = {target.relative for target in Targets(root).of([str(root)])}
        if texts is not None:
            listed.update(result.target.relative for result in checked)
        new_findings: dict[str, list[ReportedFinding]] = {}
        checked_names = {result.target.relative for result in checked if result.report}
        unchecked: dict[str, AlwaysLoadedFile] = {}
        for rule in self._rules.always_loaded:
            agent = rule.budget.always_loaded or ""
            files = find_always_loaded(root, self._settings, listed, old, texts, agent)
            model = rule.budget.model or self._model
            if not files:
                self.unsent_rules.append(rule.key)
                continue
            self._has_sent_files = True
            unread = [file for file in files if file.problem]
            self._unread_files += [Unchecked(file.path, file.problem, True) for file in unread]
            counts = [(file.name, self.counter.measure(file.text, model)) for file in files]
            added = {
                file.name: own.tokens - self.count_tokens(file.old_text, model)
                for file, (_, own) in zip(files, counts, strict=True)
                if file.old_text is not None
            }
            found = dict(evaluate_always_loaded(rule, counts, self._model, added, base))
            if found and checked_names.isdisjoint(found):
                chosen = max(files, key=lambda file: added.get(file.name, 0))
                unchecked[chosen.name] = chosen
                found = {chosen.name: found[chosen.name]}
            for name, finding in found.items():
                new_findings.setdefault(name, []).append(report_finding(finding, START))
        return [
            _add_findings(result, new_findings.get(result.target.relative, ()))
            for result in (*checked, *map(self._check_sent_file, unchecked.values()))
        ]

    def _check_sent_file(self, file: AlwaysLoadedFile) -> Checked:
        """Return the result of a file without findings, which is not one of those to check."""
        target = Target(file.path, file.name)
        (result,) = self._check([target])
        report = FileReport(file.path, result.entry.tokens, result.entry.method)
        return Checked(target, result.entry, report)

    def check_text(self, target: Target, text: str) -> Checked:
        """Check text from standard input against the rules for a path."""
        file = LoadedFile(target, Snapshot(text=text), digest=digest_of_text(text))
        (result,) = self._check_loaded([file], self.counter)
        return result

    def measure(self, text: str) -> Measure:
        """Count text for the default model."""
        return self.counter.measure(text, self._model)

    def count_tokens(self, text: str, model: str | None = None) -> int:
        """Count the text's tokens for a model, or for the default model."""
        return self.counter.measure(text, model or self._model).tokens if text else 0

    def report(
        self,
        checked: Sequence[Checked],
        growth: tuple[Growth, ...] | None = None,
        notes: tuple[str, ...] = (),
        deleted: Iterable[Target] = (),
    ) -> Report:
        """Combine results into a report.

        Args:
            checked: The results.
            growth: How files have grown, or None without `--diff`.
            notes: Notes to print on standard error.
            deleted: The files that no longer exist, but did in the revision of `--diff`.
        """
        skipped = [
            (result.skipped, self.has_budget(result.target)) for result in checked if result.skipped
        ]
        files = tuple(result.report for result in checked if result.report)
        targets = (*(result.target for result in checked), *deleted)
        return Report(
            files=files,
            distinct_findings=find_distinct(files),
            growth=growth,
            skipped=(
                *(Unchecked(file.path, file.reason, budget) for file, budget in skipped),
                *self._unread_files,
            ),
            budgets=len(self._all_rules),
            has_matching_budget=self._has_sent_files or any(map(self.has_budget, targets)),
            has_unreadable=any(file.failed and not budget for file, budget in skipped),
            notes=notes,
        )

    def update_cache(self, targets: Sequence[Target]) -> None:
        """Update the cache at the end of a run."""
        if self._counter is not None and self._counter.uses_calibration:
            self._cache.calibration = calibration_stamp() or _NO_STAMP
        drop_unused(self._cache, self._contents, {target.relative for target in targets})

    def _check(self, targets: Sequence[Target]) -> list[Checked]:
        results = {target.relative: unreadable(target) for target in targets if target.fault}
        entries, stamps = self._cache.entries, dict[Target, FileStamp]()
        stamped_at = time.time_ns()
        for target in (target for target in targets if not target.fault):
            stamp, entry = stamp_of(target.path), entries.get(target.relative)
            if (
                entry
                and entry.stamp == stamp
                and entry.is_stamp_reliable
                and not entry.has_part_findings
            ):
                results[target.relative] = _cached_result(target, entry)
            else:
                stamps[target] = stamp or _NO_STAMP
        if stamps:
            self._has_changed = True
            for result in self._check_new(stamps, stamped_at):
                results[result.target.relative] = result
                entries[result.target.relative] = result.entry
        return [results[target.relative] for target in targets]

    def _check_new(self, stamps: Mapping[Target, FileStamp], stamped_at: int) -> list[Checked]:
        """Read and check files on several threads, and return the results in order.

        Args:
            stamps: The files and their stamps.
            stamped_at: The time before the stamps were taken, in nanoseconds since 1970.
        """
        counter = self.counter  # created before the threads start, because they share it

        def check_batch(batch: Sequence[tuple[Target, FileStamp]]) -> list[Checked]:
            # Only one thread reads files at a time. Otherwise, the GIL would change hands at each
            # file access.
            with self._reading:
                files = [_load_target(target, stamp, stamped_at) for target, stamp in batch]
            loaded = [one for one in files if isinstance(one, LoadedFile)]
            checked = iter(self._check_loaded(loaded, counter))
            return [next(checked) if isinstance(one, LoadedFile) else one for one in files]

        threads = 0 if self._choose is None else _PARALLEL_REQUESTS
        checked: Iterable[Checked] = map_batches(check_batch, [*stamps.items()], threads)
        if self._progress is not None:
            size = sum(stamp[0] for stamp in stamps.values())
            checked = self._progress(checked, len(stamps), size)
        return list(checked)

    def _check_loaded(self, files: Sequence[LoadedFile], counter: ContentCounter) -> list[Checked]:
        """Check texts against the rules for their paths, except for group rules."""
        snapshots, digests = [one.snapshot for one in files], [one.digest for one in files]
        choices = counter.choose_counters(snapshots, self._model, digests)
        return [self._check_file(file, choice) for file, choice in zip(files, choices, strict=True)]

    def _check_file(self, file: LoadedFile, choice: CounterChoice) -> Checked:
        target, text = file.target, file.snapshot.text
        rules = self._rules.of(target.relative)
        file_rules = tuple(rule for rule in rules if not rule.budget.sum)
        subject = Subject(target.relative, file.snapshot, file_rules, self._model)
        choices = {self._model: choice}
        for model in subject.models:
            if model not in choices:
                (choices[model],) = self.counter.choose_counters(
                    [file.snapshot], model, [file.digest]
                )
        whole = choice.measure(text)
        found = [
            (finding.kind, report_finding(finding, range_of(text, finding.start, finding.end)))
            for finding in find_in_text(subject, choices)
        ]
        entry = Entry(
            stamp=file.stamp,
            is_stamp_reliable=is_stamp_reliable(file.stamp, file.stamped_at),
            digest=file.digest,
            tokens=whole.tokens,
            method=whole.method,
            error_percent=whole.error_percent,
            is_ignored=has_ignore_mark(text, target.relative),
            sum_rules=tuple(self._all_rules.index(rule) for rule in rules if rule.budget.sum),
            findings=tuple(finding for kind, finding in found if kind == "file"),
            has_part_findings=any(kind != "file" for kind, _ in found),
        )
        report = FileReport(
            target.path, whole.tokens, whole.method, tuple(finding for _, finding in found)
        )
        return Checked(target, entry, report)

    def _add_sum_findings(
        self, checked: list[Checked], other_results: list[Checked], base: str
    ) -> list[Checked]:
        new_findings: dict[str, list[ReportedFinding]] = {}
        for index, rule in enumerate(self._all_rules):
            if rule.budget.sum and rule.budget.max_tokens:
                members = [
                    result
                    for result in (*checked, *other_results)
                    if index in result.entry.sum_rules and not result.entry.is_ignored
                ]
                for path, finding in self._evaluate_sum(rule, members, base):
                    new_findings.setdefault(path, []).append(report_finding(finding, START))
        return [
            *(_add_findings(file, new_findings.get(file.target.relative, ())) for file in checked),
            *(result for result in other_results if result.report is None),
        ]

    def _may_be_in_sum(self, target: Target) -> bool:
        if target.fault is not None and target.fault.failed:  # a folder that cannot be listed
            return True
        return any(self._rules.matches(rule, target.relative) for rule in self._rules.sums)

    def _evaluate_sum(
        self, rule: Rule, members: list[Checked], base: str
    ) -> Iterable[tuple[str, Finding]]:
        distinct = set(drop_duplicate_links(member.target for member in members))
        counts = [
            (member.target.relative, self._measure_for_rule(member, rule))
            for member in members
            if member.target in distinct
        ]
        model = rule.budget.model or self._model
        added = {
            name: own.tokens - self.count_tokens(self.old_texts[name], model)
            for name, own in counts
            if name in self.old_texts
        }
        return evaluate_sum(rule, counts, self._model, added, base)

    def _measure_for_rule(self, checked: Checked, rule: Rule) -> Measure:
        model, entry = rule.budget.model, checked.entry
        if model is None or model == self._model:
            return Measure(entry.tokens, entry.method, "", entry.error_percent)
        content = read(File(checked.target.path, 0, named=True))
        text = "" if isinstance(content, SkippedPath) else content.text
        return self.counter.measure(text, model)

    def _settings_fingerprint(self) -> str:
        written = msgspec.json.encode(
            (
                self._model,
                self._all_rules,
                self._settings.tokenize.estimator,
                file_stamps(self._settings),
            )
        )
        return digest_of(written).hex()


def find_always_loaded(
    root: Path,
    settings: Settings,
    listed: Container[str],
    old: Mapping[str, Contents] | None,
    texts: Mapping[str, bytes] | None,
    agent: str,
) -> list[AlwaysLoadedFile]:
    """Return what an agent sends of a repository's files with every call.

    Args:
        root: The folder where the agent starts.
        settings: The project's settings.
        listed: The project's files, relative to the root folder. Others, which git ignores, are
            left out, and so are the user's files.
        old: What the changed files contained in a revision, or None without a revision.
        texts: What files contain instead of their contents on disk, by path.
        agent: The agent.
    """
    from sidecar.agents.folders import Places
    from sidecar.project.footprint import find_for_model
    from sidecar.project.git import find_top
    from sidecar.project.source_files import SourceFiles

    places = Places.of(settings.agents)
    top = str(find_top(root) or root)
    footprints = [
        find_for_model(agent, root, places, SourceFiles(replaced), settings.model)
        for replaced in (texts, *([] if old is None else [old]))
    ]
    sent = [
        [one for one in footprint.parts if (one.is_sent or one.is_unread) and not one.is_own]
        for footprint in footprints
    ]
    old_texts = {part.path: part.text for parts in sent[1:] for part in parts}
    found = [
        AlwaysLoadedFile(os.path.relpath(root), ".", "", "", limit.rstrip("."))
        for limit in footprints[0].limits
    ]
    for part in sent[0]:
        name = Path(os.path.relpath(part.path, root)).as_posix()
        is_above = name.startswith("../") and part.path.startswith(os.path.join(top, ""))
        is_linked_folder = part.is_unread and os.path.isdir(part.path)  # git lists no such links
        if name in listed or is_above or is_linked_folder:
            old_text = None if old is None else old_texts.get(part.path, "")
            problem = part.reason.removeprefix("not read: ") if part.is_unread else ""
            path = os.path.relpath(part.path)
            found.append(AlwaysLoadedFile(path, name, part.text, old_text, problem))
    return found


def _load_target(target: Target, stamp: FileStamp, stamped_at: int) -> LoadedFile | Checked:
    content = read(File(target.path, stamp[0], named=True))
    if isinstance(content, SkippedPath):
        is_binary = not content.failed
        entry = Entry(stamp, is_stamp_reliable(stamp, stamped_at)) if is_binary else _UNREAD
        return Checked(target, entry, None, content)
    digest = digest_of_text(content.text)
    return LoadedFile(target, Snapshot(text=content.text), stamp, stamped_at, digest)


def range_of(text: str, start: int, end: int) -> FileRange:
    """Return the range between two character offsets."""
    return FileRange(*_line_and_column(text, start), *_line_and_column(text, end))


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Return the line and column of a character offset, both starting at 1."""
    lone_cr = text.count("\r", 0, offset) - text.count("\r\n", 0, offset + 1)
    line = text.count("\n", 0, offset) + lone_cr
    start = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset) if lone_cr else -1) + 1
    return line + 1, offset - start + 1


def unreadable(target: Target) -> Checked:
    return Checked(target, _UNREAD, None, target.fault)


def _cached_result(target: Target, entry: Entry) -> Checked:
    if not entry.digest:
        return Checked(target, entry, None, report_binary(target.path))
    report = FileReport(target.path, entry.tokens, entry.method, entry.findings)
    return Checked(target, entry, report)


def _add_findings(checked: Checked, findings: Sequence[ReportedFinding]) -> Checked:
    if checked.report is None or not findings:
        return checked
    all_findings = (*checked.report.findings, *findings)
    return checked._replace(report=msgspec.structs.replace(checked.report, findings=all_findings))


def find_growth(
    checker: Checker,
    old_texts: Mapping[str, str],
    base: str,
    reports: Mapping[str, FileReport],
    deleted: Iterable[Target] = (),
) -> Iterator[Growth]:
    """Yield the growth of each file whose token count has changed since a revision.

    Args:
        checker: Counts the old texts.
        old_texts: What the changed files contained, by path relative to the root folder.
        base: The revision.
        reports: The current reports, by path relative to the root folder.
        deleted: The files that no longer exist.
    """
    for path, report in reports.items():
        if path in old_texts and (before := checker.count_tokens(old_texts[path])) != report.tokens:
            yield Growth(report.path, before, report.tokens, report.method, base)
    for target in deleted:
        old = checker.measure(old_texts[target.relative])
        if old.tokens:
            yield Growth(target.path, old.tokens, 0, old.method, base)
