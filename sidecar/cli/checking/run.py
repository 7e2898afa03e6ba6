"""One run of `check` over the files of one root: what is remembered, what is read, and the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.budget.finding import sentence, severity_of
from sidecar.budget.rules import Rule, Rules
from sidecar.cli.checking.cache import (
    Memory,
    digest_of,
    file_stamps,
    forget_old,
    stamps,
    unpacked,
)
from sidecar.cli.checking.report import Checked, FileReport, Found, Place, Target
from sidecar.workspace.files import Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sidecar.cli.checking.cache import Contents, Entry
    from sidecar.cli.checking.reading import Reader
    from sidecar.config.settings import Settings

_START = Place(1, 1, 1, 1)


class Checker:
    """Checks files of one root by its settings; counts go to and come from `memory`.

    What is heavy to load (tokenizers, globs) is loaded when a file has to be read.
    """

    def __init__(self, settings: Settings, model: str, memory: Memory) -> None:
        self._settings = settings
        self._rules = Rules(settings)
        self._all = self._rules.all
        self._model = model
        self._memory = memory
        self._contents: Contents | None = None
        self._reader: Reader | None = None
        self.changed = False
        """Whether anything is to be remembered that was not."""
        fingerprint = self._fingerprint()
        self._fresh = memory.fingerprint == fingerprint and model in memory.ways
        memory.fingerprint = fingerprint

    @property
    def reader(self) -> Reader:
        """What reads and counts, made when it is first wanted."""
        if self._reader is None:
            from sidecar.cli.checking.reading import Reader as Made

            self._contents = unpacked(self._memory)
            ways = self._memory.ways
            self._reader = Made(self._settings, self._rules, self._model, ways, self._contents)
        return self._reader

    def run(self, targets: Sequence[Target], others: Iterable[Target]) -> list[Checked]:
        """Every target, in order. `others` are the root's other files, asked for only when a rule
        is for several files together."""
        checked = self._check(targets)
        return self._with_sums(checked, others) if self._rules.sums else checked

    def text(self, target: Target, text: str) -> Checked:
        """A text that is no file (standard input), by the rules for its path."""
        digest = digest_of(text.encode("utf-8", "surrogatepass"))
        return self.reader.checked(target, text, (0, 0, 0, 0), 0, digest)

    def tokens(self, text: str) -> int:
        """Tokens of a text by the run's model."""
        return self.reader.count(text, self._model)

    def finish(self, targets: Sequence[Target]) -> None:
        """Bring the memory up to date, when all is done."""
        forget_old(self._memory, self._contents, {target.relative for target in targets})

    def _check(self, targets: Sequence[Target]) -> list[Checked]:
        done: dict[str, Checked] = {}
        pending: list[Target] = []
        size = 0
        entries = self._memory.entries if self._fresh else {}
        for target, now in zip(targets, stamps([target.path for target in targets]), strict=True):
            entry = entries.get(target.relative)
            if entry and entry.stamp == now and entry.settled and not entry.parts:
                done[target.relative] = self._remembered(target, entry)
            else:
                pending.append(target)
                size += now[0] if now else 0
        if not pending:
            return list(done.values())
        self.changed = True
        for made in self.reader.read_all(pending, size):
            done[made.target.relative] = made
            self._memory.entries[made.target.relative] = made.entry
        return [done[target.relative] for target in targets]

    def _remembered(self, target: Target, entry: Entry) -> Checked:
        """The result of an unchanged file."""
        if not entry.digest:
            skipped = Skipped(target.path, "binary file", failed=False)
            return Checked(target, entry, None, skipped)
        found = tuple(
            self._said(target, self._all[note.rule], note.tokens, (0, 1), note.place)
            for note in entry.noted
        )
        method = self._memory.ways[self._model].method if entry.tokens else "exact"
        return Checked(target, entry, FileReport(target.path, entry.tokens, method, found))

    def _said(
        self, target: Target, rule: Rule, own: int, others: tuple[int, int], place: Place
    ) -> Found:
        """A whole file's finding; `others`: the other files' tokens, and how many files in all."""
        model = rule.budget.model or self._model
        budget = rule.budget.max_tokens or 0
        more, files = others
        measure = self._memory.ways[model].measure(own + more)
        severity = severity_of(measure.tokens, budget, rule.budget.warn_at)
        return Found(
            severity=severity or "information",
            budget=budget,
            tokens=measure.tokens,
            over=max(0, measure.tokens - budget),
            section=None,
            code="budget-exceeded" if measure.tokens > budget else "budget-near",
            message=sentence(target.relative, None, files, measure, budget, model),
            rule=rule.key,
            model=model,
            method=measure.method,
            **msgspec.structs.asdict(place),
            files=files,
        )

    def _with_sums(self, checked: list[Checked], others: Iterable[Target]) -> list[Checked]:
        """With the findings of rules that are for several files together, at each of them."""
        known = {made.target.relative for made in checked}
        wanted = [
            target
            for target in others
            if target.relative not in known
            and any(self._rules.means(rule, target.relative) for rule in self._rules.sums)
        ]
        added: dict[str, list[Found]] = {}
        everything = [*checked, *self._check(wanted)]
        for index, rule in enumerate(self._all):
            if rule.budget.sum and rule.budget.max_tokens:
                members = [made for made in everything if index in made.entry.sums]
                self._add_sum(rule, members, added)
        return [_with(made, added.get(made.target.relative, [])) for made in checked]

    def _add_sum(self, rule: Rule, members: list[Checked], added: dict[str, list[Found]]) -> None:
        counted = [made for made in members if not made.entry.ignored]
        tokens = [self._own(made, rule) for made in counted]
        total, limit = sum(tokens), rule.budget.max_tokens or 0
        if not total or severity_of(total, limit, rule.budget.warn_at) is None:
            return
        for made, own in zip(counted, tokens, strict=True):
            found = self._said(made.target, rule, own, (total - own, len(counted)), _START)
            added.setdefault(made.target.relative, []).append(found)

    def _own(self, made: Checked, rule: Rule) -> int:
        """A file's tokens by the model of a rule."""
        model = rule.budget.model
        if model is None or model == self._model:
            return made.entry.tokens
        return self.reader.tokens_of(made, model)

    def _fingerprint(self) -> str:
        written = msgspec.json.encode(
            (self._model, self._all, self._settings.tokenize.estimator, file_stamps(self._settings))
        )
        return digest_of(written).hex()


def _with(made: Checked, found: list[Found]) -> Checked:
    if made.report is None or not found:
        return made
    findings = (*made.report.findings, *found)
    return made._replace(report=msgspec.structs.replace(made.report, findings=findings))
