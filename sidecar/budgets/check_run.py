"""Checks the budgets of files. Unchanged files are not read again."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.budgets.budget_rules import Rules
from sidecar.budgets.check_cache import (
    CheckCache,
    Checked,
    Entry,
    calibration_stamp,
    decode_counts,
    digest_of,
    drop_unused,
    file_stamps,
)
from sidecar.budgets.check_report import (
    START,
    FileReport,
    Growth,
    Report,
    Unchecked,
    find_distinct,
    report_finding,
)
from sidecar.budgets.findings import evaluate_always_loaded, evaluate_sum
from sidecar.config.safe_files import stamp_of
from sidecar.counting.count_result import Measure
from sidecar.project.files import SkippedPath, Target, Targets, drop_duplicate_links

if TYPE_CHECKING:
    from sidecar.budgets.budget_rules import Rule
    from sidecar.budgets.check_cache import ContentCounts
    from sidecar.budgets.check_report import ReportedFinding
    from sidecar.budgets.file_reader import FileReader, Progress
    from sidecar.budgets.findings import Finding
    from sidecar.config.settings import Settings
    from sidecar.counting.tokenizer_choice import ChooseCounter
    from sidecar.project.source_files import Contents

MAX_MATCHES = 100_000
"""Maximum number of times to test whether a rule matches a path. This many tests take 0.1 s."""
_NO_STAMP = (0, 0, 0, 0)


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
        self._reader: FileReader | None = None
        self.old_texts: dict[str, str] = {}
        """What the changed files contained in the revision that they are compared with."""
        self.unsent_rules: list[str] = []
        """The keys of `always-loaded` rules whose agent sends no file of the project."""
        self._has_sent_files = False
        self._unread_files: list[Unchecked] = []
        self.has_changed = False
        """Whether the cache has changed and must be saved."""
        fingerprint = self._settings_fingerprint()
        calibration = cache.calibration
        is_calibration_changed = calibration is not None and calibration != calibration_stamp()
        if cache.fingerprint != fingerprint or is_calibration_changed:
            cache.fingerprint, cache.entries, cache.calibration = fingerprint, {}, None

    def reader(self) -> FileReader:
        """Return the file reader, creating it on the first call."""
        if self._reader is None:
            from sidecar.budgets.file_reader import FileReader
            from sidecar.counting.tokenizer_choice import local_counters

            self._contents = decode_counts(self._cache)
            self._reader = FileReader(
                self._settings,
                self._rules,
                self._model,
                self._contents,
                self._choose or local_counters(self._settings)[1],
                uses_endpoint=self._choose is not None,
                progress=self._progress,
            )
        return self._reader

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
            counts = [(file.name, self.reader().measure(file.text, model)) for file in files]
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
        from sidecar.budgets.file_reader import LoadedFile

        return self.reader().check_file(LoadedFile(target, text))

    def measure(self, text: str) -> Measure:
        """Count text for the default model."""
        return self.reader().measure(text, self._model)

    def count_tokens(self, text: str, model: str | None = None) -> int:
        """Count the text's tokens for a model, or for the default model."""
        return self.reader().measure(text, model or self._model).tokens if text else 0

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
        if self._reader is not None and self._reader.uses_calibration:
            self._cache.calibration = calibration_stamp() or _NO_STAMP
        drop_unused(self._cache, self._contents, {target.relative for target in targets})

    def _check(self, targets: Sequence[Target]) -> list[Checked]:
        results = {target.relative: unreadable(target) for target in targets if target.fault}
        readable = [target for target in targets if not target.fault]
        pending: list[Target] = []
        size = 0
        entries = self._cache.entries
        for target in readable:
            current = stamp_of(target.path)
            entry = entries.get(target.relative)
            if (
                entry
                and entry.stamp == current
                and entry.is_stamp_reliable
                and not entry.has_part_findings
            ):
                results[target.relative] = _cached_result(target, entry)
            else:
                pending.append(target)
                size += current[0] if current else 0
        if pending:
            self.has_changed = True
            for result in self.reader().check_all(pending, size):
                results[result.target.relative] = result
                entries[result.target.relative] = result.entry
        return [results[target.relative] for target in targets]

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
        return self.reader().measure_for(checked, model)

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


def unreadable(target: Target) -> Checked:
    return Checked(target, Entry(_NO_STAMP, is_stamp_reliable=False), None, target.fault)


def _cached_result(target: Target, entry: Entry) -> Checked:
    if not entry.digest:
        return Checked(target, entry, None, SkippedPath(target.path, "binary file", failed=False))
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
