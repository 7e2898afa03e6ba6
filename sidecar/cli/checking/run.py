"""A run of `check` over the files of one root: cache, reading and sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.budget.evaluate import evaluate_sum
from sidecar.budget.rules import Rule, Rules
from sidecar.cli.checking.cache import (
    Checked,
    Contents,
    Entry,
    Memory,
    digest_of,
    factors_stamp,
    file_stamps,
    forget_old,
    stamps,
    unpacked,
)
from sidecar.cli.checking.report import (
    START,
    FileReport,
    Growth,
    Report,
    ReportedFinding,
    Unchecked,
    reported,
)
from sidecar.counting.count import Measure
from sidecar.workspace.files import Skipped
from sidecar.workspace.targets import Target, each_once

if TYPE_CHECKING:
    from sidecar.cli.checking.reading import FileReader
    from sidecar.cli.counters import ChooseCounter
    from sidecar.config.settings import Settings
    from sidecar.counting.engines import Purpose

BULK_BYTES = 4_000_000
"""From this size on, the bulk engine makes up for the half second it takes to load."""
MANY_LOOKS = 100_000
"""Maximum checks of a rule against a file for this note: a tenth of a second."""
_NOTHING = (0, 0, 0, 0)


class Checker:
    """Checks files of one root by its settings; counts are cached in `memory`.

    Heavy imports (tokenizers, globs) happen when a file has to be read.
    """

    def __init__(
        self,
        settings: Settings,
        model: str,
        memory: Memory,
        choose: ChooseCounter | None = None,
    ) -> None:
        """`choose` counts with an endpoint; without it a local counter is created when needed."""
        self._settings = settings
        self._rules = Rules(settings)
        self._all = self._rules.all
        self._model = model
        self._memory = memory
        self._choose = choose
        self._contents: Contents | None = None
        self._reader: FileReader | None = None
        self.changed = False
        """Whether the cache has to be saved."""
        fingerprint = self._fingerprint()
        learned = memory.learned is not None and memory.learned != factors_stamp()
        if memory.fingerprint != fingerprint or learned:
            memory.fingerprint, memory.entries, memory.learned = fingerprint, {}, None

    def reader(self, size: int = 0) -> FileReader:
        """Return the reader, created at first use for about `size` bytes."""
        if self._reader is None:
            from sidecar.cli.checking.reading import FileReader as Made
            from sidecar.cli.counters import local_counters

            self._contents = unpacked(self._memory)
            purpose: Purpose = "bulk" if size >= BULK_BYTES else "interactive"
            choose, asking = self._choose, self._choose is not None
            choose = choose or local_counters(self._settings, purpose)[1]
            self._reader = Made(
                self._settings, self._rules, self._model, self._contents, choose, asking
            )
        return self._reader

    def run(self, targets: Sequence[Target], others: Iterable[Target]) -> list[Checked]:
        """Check every target in order, except links without a budget.

        `others` are the root's other files, needed only for rules over several files. Those of them
        that cannot be read come last.
        """
        checked = self._check([one for one in targets if not one.link or self.budgeted(one)])
        return self._with_sums(checked, others) if self._rules.sums else checked

    def budgeted(self, target: Target) -> bool:
        """Return whether a rule applies to the file, or may apply below an unread folder."""
        if not target.relative.endswith("/"):
            return bool(self._rules.of(target.relative))
        return self._rules.reach(target.relative[:-1]) if target.link else bool(self._rules)

    def unmatched_rules(self, targets: Sequence[Target]) -> list[str]:
        """Return the keys of rules that match no file; empty if checking takes too long."""
        left, looks = self._rules.written, 0
        for target in targets:
            looks += len(left)
            if not left or looks > MANY_LOOKS:
                return []
            left = [rule for rule in left if not self._rules.means(rule, target.relative)]
        return [rule.key for rule in left]

    def text(self, target: Target, text: str) -> Checked:
        """Check a text that is not a file (standard input) by the rules for its path."""
        from sidecar.cli.checking.reading import Read

        return self.reader().checked(Read(target, text))

    def tokens(self, text: str) -> int:
        """Count a text for the run's model."""
        return self.reader().measure(text, self._model).tokens

    def report(
        self,
        checked: Sequence[Checked],
        growth: tuple[Growth, ...] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Report:
        """Return the report of all targets."""
        passed = [(made.skipped, self.budgeted(made.target)) for made in checked if made.skipped]
        return Report(
            files=tuple(made.report for made in checked if made.report),
            growth=growth,
            skipped=tuple(Unchecked(one.path, one.reason, budget) for one, budget in passed),
            budgets=len(self._all),
            budgeted=any(self.budgeted(made.target) for made in checked),
            failed=any(one.failed and not budget for one, budget in passed),
            notes=notes,
        )

    def finish(self, targets: Sequence[Target]) -> None:
        """Update the cache at the end of a run."""
        if self._reader is not None and self._reader.corrected:
            self._memory.learned = factors_stamp() or _NOTHING
        forget_old(self._memory, self._contents, {target.relative for target in targets})

    def _check(self, every: Sequence[Target]) -> list[Checked]:
        done = {one.relative: unread(one) for one in every if one.fault is not None}
        targets = [target for target in every if target.fault is None]
        pending: list[Target] = []
        size = 0
        entries = self._memory.entries
        for target, now in zip(targets, stamps([target.path for target in targets]), strict=True):
            entry = entries.get(target.relative)
            if entry and entry.stamp == now and entry.settled and not entry.parts:
                done[target.relative] = self._remembered(target, entry)
            else:
                pending.append(target)
                size += now[0] if now else 0
        self.changed = self.changed or bool(pending)
        for made in self.reader(size).read_all(pending, size) if pending else ():
            done[made.target.relative] = made
            self._memory.entries[made.target.relative] = made.entry
        return [done[target.relative] for target in every]

    def _remembered(self, target: Target, entry: Entry) -> Checked:
        """Return the result of an unchanged file."""
        if not entry.digest:
            skipped = Skipped(target.path, "binary file", failed=False)
            return Checked(target, entry, None, skipped)
        report = FileReport(target.path, entry.tokens, entry.method, entry.found)
        return Checked(target, entry, report)

    def _with_sums(self, checked: list[Checked], others: Iterable[Target]) -> list[Checked]:
        """Add the findings of rules over several files to each of these files."""
        known = {made.target.relative for made in checked}
        wanted = [
            target
            for target in others
            if target.relative not in known
            and any(self._rules.means(rule, target.relative) for rule in self._rules.sums)
        ]
        added: dict[str, list[ReportedFinding]] = {}
        everything = [*checked, *self._check(wanted)]
        for index, rule in enumerate(self._all):
            if rule.budget.sum and rule.budget.max_tokens:
                members = [made for made in everything if index in made.entry.sums]
                self._add_sum(rule, members, added)
        unread = [made for made in everything[len(checked) :] if made.report is None]
        return [*(_with(made, added.get(made.target.relative, [])) for made in checked), *unread]

    def _add_sum(
        self, rule: Rule, members: list[Checked], added: dict[str, list[ReportedFinding]]
    ) -> None:
        members = [made for made in members if not made.entry.ignored]
        once = set(each_once(made.target for made in members))
        counted = [
            (made.target.relative, self._own(made, rule)) for made in members if made.target in once
        ]
        for name, finding in evaluate_sum(rule, counted, self._model):
            added.setdefault(name, []).append(reported(finding, START))

    def _own(self, made: Checked, rule: Rule) -> Measure:
        """Return a file's tokens by the model of a rule."""
        model, entry = rule.budget.model, made.entry
        if model is None or model == self._model:
            return Measure(entry.tokens, entry.method, "", entry.error_percent)
        return self.reader().measure_of(made, model)

    def _fingerprint(self) -> str:
        written = msgspec.json.encode(
            (self._model, self._all, self._settings.tokenize.estimator, file_stamps(self._settings))
        )
        return digest_of(written).hex()


def unread(target: Target) -> Checked:
    """Return the result of a target that cannot be read."""
    return Checked(target, Entry((0, 0, 0, 0), settled=False), None, target.fault)


def _with(made: Checked, more: list[ReportedFinding]) -> Checked:
    if made.report is None or not more:
        return made
    findings = (*made.report.findings, *more)
    return made._replace(report=msgspec.structs.replace(made.report, findings=findings))
