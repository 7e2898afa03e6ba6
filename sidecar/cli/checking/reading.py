"""Files that are new or changed: read, counted and checked on several threads."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.budget.counter import TextCounter
from sidecar.budget.evaluate import evaluate
from sidecar.cli.checking.cache import Entry, Noted, digest_of, settled, stamp_of
from sidecar.cli.checking.report import Checked, FileReport, Found, Place, Target
from sidecar.cli.checking.ways import Ways, count_many
from sidecar.text.outline_marks import WORD, ignores_file
from sidecar.workspace.files import Skipped, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.budget.finding import Finding
    from sidecar.budget.rules import Rules
    from sidecar.cli.checking.cache import Contents, Stamp, Way
    from sidecar.config.settings import Settings

_BATCH = 50


class Read(NamedTuple):
    """A file's text, and what it was when it was read."""

    target: Target
    text: str
    stamp: Stamp
    read_at: int
    digest: bytes


class Reader:
    """Reads and counts for one run; counts by content go to and come from `contents`."""

    def __init__(
        self, settings: Settings, rules: Rules, model: str, ways: dict[str, Way], contents: Contents
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._keys = [rule.key for rule in rules.all]
        self._model = model
        self._remembered_ways = ways
        self._contents = contents
        self._ways = Ways(settings, ways, 0)

    def read_all(self, targets: Sequence[Target], size: int) -> list[Checked]:
        """Every target, in order; `size` is their bytes together, or about that."""
        self._ways = Ways(self._settings, self._remembered_ways, size)
        self._ways.tokenizer(self._model)  # loaded before several threads want it
        batches = [targets[at : at + _BATCH] for at in range(0, len(targets), _BATCH)]
        if len(batches) == 1:
            return self._read_batch(targets)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [made for batch in pool.map(self._read_batch, batches) for made in batch]

    def count(self, text: str, model: str, digest: bytes = b"") -> int:
        """Tokens of a text, remembered by its digest where one is given."""
        tokenizer = self._ways.tokenizer(model)
        counts = self._contents.setdefault(digest, {}) if digest else {}
        identity = self._remembered_ways[model].identity
        if identity not in counts:
            counts[identity] = tokenizer.count(text)
        return counts[identity]

    def tokens_of(self, made: Checked, model: str) -> int:
        """The tokens of a file that was checked, by another model than the run's."""
        try:
            with open(made.target.path, "rb") as file:
                text = text_of(file.read()) or ""
        except OSError:
            return 0
        return self.count(text, model, made.entry.digest)

    def checked(
        self, target: Target, text: str, stamp: Stamp, read_at: int, digest: bytes
    ) -> Checked:
        """One text by the rules of its path; rules over several files are left for later."""
        rules = self._rules.of(target.relative)
        counter = self._counter(text, digest, {rule.budget.model or self._model for rule in rules})
        findings: list[Finding] = []
        if rules or WORD in text:
            own = [rule for rule in rules if not rule.budget.sum]
            findings = evaluate(target.relative, text, own, counter, self._model)
        whole = counter.measure(self._model, 0, len(text))
        placed = [(finding, _place(text, finding)) for finding in findings]
        entry = Entry(
            stamp=stamp,
            settled=settled(stamp, read_at),
            digest=digest,
            tokens=whole.tokens,
            ignored=ignores_file(text),
            sums=tuple(self._keys.index(rule.key) for rule in rules if rule.budget.sum),
            noted=tuple(
                Noted(self._keys.index(finding.rule), finding.tokens, place)
                for finding, place in placed
                if finding.kind == "file"
            ),
            parts=any(finding.kind != "file" for finding in findings),
        )
        found = tuple(_found(finding, place) for finding, place in placed)
        return Checked(target, entry, FileReport(target.path, whole.tokens, whole.method, found))

    def _read_batch(self, targets: Sequence[Target]) -> list[Checked]:
        """Counts many texts in one go, so that threads seldom wait for each other."""
        read = [_read(target) for target in targets]
        self._count_new([one for one in read if isinstance(one, Read)])
        return [self._checked(one) if isinstance(one, Read) else one for one in read]

    def _checked(self, read: Read) -> Checked:
        return self.checked(read.target, read.text, read.stamp, read.read_at, read.digest)

    def _count_new(self, texts: Sequence[Read]) -> None:
        """Whole texts by the run's model, where their content is not known yet."""
        tokenizer = self._ways.tokenizer(self._model)
        identity = self._remembered_ways[self._model].identity
        new = [one for one in texts if identity not in self._contents.get(one.digest, ())]
        for one, tokens in zip(new, count_many([one.text for one in new], tokenizer), strict=True):
            self._contents.setdefault(one.digest, {})[identity] = tokens

    def _counter(self, text: str, digest: bytes, models: set[str]) -> TextCounter:
        """A counter that knows the whole text's tokens, from memory or else from its own count."""
        counts = self._contents.setdefault(digest, {})
        whole = {}
        for model in models | {self._model}:
            self._ways.tokenizer(model)
            way = self._remembered_ways[model]
            if way.identity in counts:
                whole[model] = way.measure(counts[way.identity])
        counter = TextCounter(text, self._ways.tokenizer, whole=whole)
        for model in (models | {self._model}) - whole.keys():
            identity = self._remembered_ways[model].identity
            counts[identity] = counter.measure(model, 0, len(text)).tokens
        return counter


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
        return Checked(target, Entry(stamp, settled(stamp, read_at)), None, binary(target))
    return Read(target, text, stamp, read_at, digest_of(data))


def text_of(data: bytes) -> str | None:
    """The text as an editor has it, without a byte order mark; None for what is no text."""
    found = decode(data)
    return found.text.removeprefix("\ufeff") if found else None


def binary(target: Target) -> Skipped:
    """What is said of a file that is no text."""
    return Skipped(target.path, "binary file", failed=False)


def _place(text: str, finding: Finding) -> Place:
    return Place(*_at(text, finding.start), *_at(text, finding.end))


def _at(text: str, offset: int) -> tuple[int, int]:
    r"""The 1-based line and column of an offset. Lines end on `\n`, `\r\n` or `\r`."""
    alone = text.count("\r", 0, offset) - text.count("\r\n", 0, offset + 1)
    line = text.count("\n", 0, offset) + alone
    start = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset) if alone else -1) + 1
    return line + 1, offset - start + 1


def _found(finding: Finding, place: Place) -> Found:
    return Found(
        severity=finding.severity,
        budget=finding.budget,
        tokens=finding.tokens,
        over=finding.over,
        section=finding.section,
        code=finding.code,
        message=finding.message,
        rule=finding.rule,
        model=finding.model,
        method=finding.method,
        **msgspec.structs.asdict(place),
        files=finding.files,
    )
