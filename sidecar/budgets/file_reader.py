"""Reads new and changed files, and checks them on several threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import NamedTuple

from sidecar.budgets.budget_rules import Rules
from sidecar.budgets.check_cache import Checked, ContentCounts, Entry, digest_of, is_stamp_reliable
from sidecar.budgets.check_report import FileRange, FileReport, report_finding
from sidecar.budgets.checked_text import Subject, findings
from sidecar.budgets.content_counts import ContentCounter
from sidecar.config.safe_files import FileStamp, stamp_of_status
from sidecar.config.settings import Settings
from sidecar.counting.count_result import Measure
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_choice import ChooseCounter, map_batches
from sidecar.project.files import SkippedPath, Target, decode
from sidecar.text.outline import has_ignore_mark

_PARALLEL_REQUESTS = 8
"""Maximum number of simultaneous requests to an endpoint."""


class LoadedFile(NamedTuple):
    """A file's text and stamp, and when it was read."""

    target: Target
    text: str
    stamp: FileStamp = (0, 0, 0, 0)
    read_at: int = 0
    digest: bytes = b""


Progress = Callable[[Iterable[Checked], int, int], Iterable[Checked]]
"""Shows progress. Takes the files, their number and their total size in bytes."""


class FileReader:
    """Reads and checks files, caching counts by content."""

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        model: str,
        contents: ContentCounts,
        choose: ChooseCounter,
        uses_endpoint: bool,
        progress: Progress | None,
    ) -> None:
        self._uses_endpoint, self._progress = uses_endpoint, progress
        self._rules, self._model = rules, model
        self._keys = [rule.key for rule in rules.all]
        self._counter = ContentCounter(settings, contents, choose)
        self._reading = Lock()

    @property
    def uses_calibration(self) -> bool:
        """Whether any count depends on the calibration."""
        return self._counter.uses_calibration

    def check_all(self, targets: Sequence[Target], size: int) -> list[Checked]:
        """Check files, and return the results in order.

        Args:
            targets: The files.
            size: The files' total size in bytes.
        """
        threads = _PARALLEL_REQUESTS if self._uses_endpoint else 0
        checked: Iterable[Checked] = map_batches(self._check_batch, targets, threads)
        if self._progress is not None:
            checked = self._progress(checked, len(targets), size)
        return list(checked)

    def measure(self, text: str, model: str, digest: bytes = b"") -> Measure:
        """Count text. The count is cached if a digest is given."""
        return self._counter.measure(text, model, digest)

    def measure_for(self, checked: Checked, model: str) -> Measure:
        """Read a checked file again, and count its tokens for another model."""
        try:
            with open(checked.target.path, "rb") as file:
                text = decode_text(file.read()) or ""
        except OSError:
            text = ""
        return self.measure(text, model, checked.entry.digest)

    def check_file(self, file: LoadedFile) -> Checked:
        """Check text against the rules for its path, except for group rules."""
        target, text = file.target, file.text
        rules, snapshot = self._rules.of(target.relative), Snapshot(text=text)
        file_rules = tuple(rule for rule in rules if not rule.budget.sum)
        subject = Subject(target.relative, snapshot, file_rules, self._model)
        choices = {
            model: self._counter.choose_counter(snapshot, model, file.digest)
            for model in subject.models
        }
        whole = choices[self._model].measure(text)
        found = [
            (finding.kind, report_finding(finding, range_of(text, finding.start, finding.end)))
            for finding in findings(subject, choices)
        ]
        entry = Entry(
            stamp=file.stamp,
            is_stamp_reliable=is_stamp_reliable(file.stamp, file.read_at),
            digest=file.digest,
            tokens=whole.tokens,
            method=whole.method,
            error_percent=whole.error_percent,
            is_ignored=has_ignore_mark(text, target.relative),
            sum_rules=tuple(self._keys.index(rule.key) for rule in rules if rule.budget.sum),
            findings=tuple(finding for kind, finding in found if kind == "file"),
            has_part_findings=any(kind != "file" for kind, _ in found),
        )
        report = FileReport(
            target.path, whole.tokens, whole.method, tuple(finding for _, finding in found)
        )
        return Checked(target, entry, report)

    def _check_batch(self, targets: Sequence[Target]) -> list[Checked]:
        # Only one thread reads files at a time. Otherwise, the GIL would change hands at each file
        # access.
        with self._reading:
            files = [_load_target(target) for target in targets]
        if not self._uses_endpoint:
            loaded = (file for file in files if isinstance(file, LoadedFile))
            self._counter.count_new([(file.digest, file.text) for file in loaded], self._model)
        return [self.check_file(file) if isinstance(file, LoadedFile) else file for file in files]


def _load_target(target: Target) -> LoadedFile | Checked:
    read_at = time.time_ns()
    try:
        with open(target.path, "rb") as file:
            stamp = stamp_of_status(os.fstat(file.fileno()))
            data = file.read()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        skipped = SkippedPath(target.path, reason, failed=True)
        return Checked(target, Entry((0, 0, 0, 0), is_stamp_reliable=False), None, skipped)
    text = decode_text(data)
    if text is None:
        entry = Entry(stamp, is_stamp_reliable(stamp, read_at))
        return Checked(target, entry, None, report_binary(target))
    return LoadedFile(target, text, stamp, read_at, digest_of(data))


def decode_text(data: bytes) -> str | None:
    """Decode text as editors do, or return None for binary data."""
    decoded = decode(data)
    return decoded.text if decoded else None


def report_binary(target: Target) -> SkippedPath:
    return SkippedPath(target.path, "binary file", failed=False)


def range_of(text: str, start: int, end: int) -> FileRange:
    """Return the range between two character offsets."""
    return FileRange(*_line_and_column(text, start), *_line_and_column(text, end))


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Return the line and column of a character offset, both starting at 1."""
    lone_cr = text.count("\r", 0, offset) - text.count("\r\n", 0, offset + 1)
    line = text.count("\n", 0, offset) + lone_cr
    start = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset) if lone_cr else -1) + 1
    return line + 1, offset - start + 1
