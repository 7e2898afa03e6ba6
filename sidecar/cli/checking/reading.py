"""Files that are new or changed: read, counted and checked on several cores."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cli.checking.cache import (
    Checked,
    Entry,
    digest_of,
    file_stamps,
    is_settled,
    stamp_of,
)
from sidecar.cli.checking.report import FileRange, FileReport, reported
from sidecar.cli.output import with_progress
from sidecar.cli.pool import map_batches
from sidecar.counting.engines import names
from sidecar.text.outline import has_ignore_mark
from sidecar.workspace.budgets import Subject, findings
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.files import Skipped, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.budget.finding import Finding
    from sidecar.budget.rules import Rules
    from sidecar.cli.checking.cache import Contents, FullStamp
    from sidecar.cli.counters import ChooseCounter
    from sidecar.config.settings import Settings
    from sidecar.counting.count import Measure
    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.workspace.counter_choice import CounterChoice
    from sidecar.workspace.targets import Target

_AT_ONCE = 8
"""Requests that an endpoint is sent at the same time."""


class Read(NamedTuple):
    """A file's text, and what it was when it was read."""

    target: Target
    text: str
    stamp: FullStamp = (0, 0, 0, 0)
    read_at: int = 0
    digest: bytes = b""


class FileReader:
    """Reads and counts for one run; counts by content go to and come from `contents`."""

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        model: str,
        contents: Contents,
        choose: ChooseCounter,
        asking: bool,
    ) -> None:
        """`asking`: whether `choose` waits for an endpoint."""
        self._asking = asking
        self._rules, self._model, self._choose = rules, model, choose
        self._keys = [rule.key for rule in rules.all]
        self._contents = contents
        self._stamps = file_stamps(settings)
        self.corrected = False
        """Whether a count was corrected by what was learned, or could be."""

    def read_all(self, targets: Sequence[Target], size: int) -> list[Checked]:
        """Check every target, in order; `size` is about how many bytes they have together."""
        threads = _AT_ONCE if self._asking else 0
        checked = map_batches(self._read_batch, targets, threads)
        return list(with_progress(checked, len(targets), size))

    def measure(self, text: str, model: str, digest: bytes = b"") -> Measure:
        """Tokens of a text, remembered by its digest where one is given."""
        choice = self._chosen_counter(Snapshot(text=text), model, digest)
        return choice.measure(text)

    def measure_of(self, made: Checked, model: str) -> Measure:
        """The tokens of a file that was checked, by another model than the run's."""
        try:
            with open(made.target.path, "rb") as file:
                text = text_of(file.read()) or ""
        except OSError:
            text = ""
        return self.measure(text, model, made.entry.digest)

    def checked(self, read: Read) -> Checked:
        """One text by the rules of its path; rules over several files are left for later."""
        target, text = read.target, read.text
        rules, taken = self._rules.of(target.relative), Snapshot(text=text)
        own = tuple(rule for rule in rules if not rule.budget.sum)
        subject = Subject(target.relative, taken, own, self._model)
        choices = {
            model: self._chosen_counter(taken, model, read.digest) for model in subject.models
        }
        whole = choices[self._model].measure(text)
        made = [(one.kind, reported(one, _place(text, one))) for one in findings(subject, choices)]
        entry = Entry(
            stamp=read.stamp,
            settled=is_settled(read.stamp, read.read_at),
            digest=read.digest,
            tokens=whole.tokens,
            method=whole.method,
            error_percent=whole.error_percent,
            ignored=has_ignore_mark(text),
            sums=tuple(self._keys.index(rule.key) for rule in rules if rule.budget.sum),
            found=tuple(one for kind, one in made if kind == "file"),
            parts=any(kind != "file" for kind, _ in made),
        )
        every = tuple(one for _, one in made)
        return Checked(target, entry, FileReport(target.path, whole.tokens, whole.method, every))

    def _read_batch(self, targets: Sequence[Target]) -> list[Checked]:
        """Counts many texts in one go, so that threads seldom wait for each other."""
        read = [_read(target) for target in targets]
        if not self._asking:
            self._count_new([one for one in read if isinstance(one, Read)])
        return [self.checked(one) if isinstance(one, Read) else one for one in read]

    def _count_new(self, texts: Sequence[Read]) -> None:
        """Whole texts by the run's model, where their content is not known yet."""
        base = self._choose(Snapshot(text=""), self._model).tokenizer.base
        identity = self._identity(base)
        new = [one for one in texts if identity not in self._contents.get(one.digest, ())]
        for one, tokens in zip(new, base.count_many([one.text for one in new]), strict=True):
            self._contents.setdefault(one.digest, {})[identity] = tokens

    def _chosen_counter(self, taken: Snapshot, model: str, digest: bytes) -> CounterChoice:
        """What counts a text, which knows the count of the whole from memory or by counting."""
        choice = self._choose(taken, model)
        if choice.whole is not None:
            return choice
        tokenizer, base = choice.tokenizer, choice.tokenizer.base
        self.corrected = self.corrected or tokenizer.method != "exact"
        counts = self._contents.setdefault(digest, {}) if digest else {}
        identity = self._identity(base)
        if identity not in counts:
            counts[identity] = base.count(taken.text)
        return choice._replace(whole=tokenizer.measure_base(counts[identity], taken.sample))

    def _identity(self, base: Tokenizer) -> str:
        """What the counts of a tokenizer are kept by: with a file of the user's, as it was."""
        return base.name if base.name in names() else f"{base.name}{self._stamps}"


def _read(target: Target) -> Read | Checked:
    read_at = time.time_ns()
    try:
        with open(target.path, "rb") as file:
            stamp = stamp_of(os.fstat(file.fileno()))
            data = file.read()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        skipped = Skipped(target.path, reason, failed=True)
        return Checked(target, Entry((0, 0, 0, 0), settled=False), None, skipped)
    text = text_of(data)
    if text is None:
        return Checked(target, Entry(stamp, is_settled(stamp, read_at)), None, binary(target))
    return Read(target, text, stamp, read_at, digest_of(data))


def text_of(data: bytes) -> str | None:
    """The text as an editor has it; None for what is no text."""
    found = decode(data)
    return found.text if found else None


def binary(target: Target) -> Skipped:
    """How a file that is no text is reported."""
    return Skipped(target.path, "binary file", failed=False)


def _place(text: str, finding: Finding) -> FileRange:
    return FileRange(*_at(text, finding.start), *_at(text, finding.end))


def _at(text: str, offset: int) -> tuple[int, int]:
    r"""The 1-based line and column of an offset. Lines end on `\n`, `\r\n` or `\r`."""
    alone = text.count("\r", 0, offset) - text.count("\r\n", 0, offset + 1)
    line = text.count("\n", 0, offset) + alone
    start = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset) if alone else -1) + 1
    return line + 1, offset - start + 1
