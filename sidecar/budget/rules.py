"""Which budgets a file has: the globs of the rules that someone wrote, and the presets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.budget.presets import PRESETS
from sidecar.config.settings import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pathspec import GitIgnoreSpec

    from sidecar.config.settings import Settings

DEFAULT_WARN_AT = 0.9


class Rule(msgspec.Struct, frozen=True):
    """One budget and its `key`, which `Loaded.origins` knows: `budget[0]`, or `preset[0]`."""

    key: str
    budget: Budget

    @property
    def for_whole_files(self) -> bool:
        """Whether it says how much one file may hold."""
        return self.budget.max_tokens is not None and not self.budget.sum


class Rules:
    """The rules of one workspace root. Globs are those of .gitignore, relative to the root.

    So `AGENTS.md` means one in any folder, `/AGENTS.md` the root's alone, `prompts/` all below it,
    and in a list `!old.md` takes out what the patterns before it took in; the last match decides.
    """

    def __init__(self, settings: Settings) -> None:
        self._written = _rules("budget", settings.budgets)
        self._presets = _rules("preset", PRESETS if settings.presets else ())
        self._specs: dict[str, GitIgnoreSpec] = {}

    def of(self, path: str) -> list[Rule]:
        """The rules of a file, in the order they were written; `path` is relative, with `/`.

        A preset stands back where a written rule says how much the whole file may hold.
        """
        found = [rule for rule in self._written if self.means(rule, path)]
        if not any(rule.for_whole_files for rule in found):
            found += [rule for rule in self._presets if self.means(rule, path)]
        return found

    def means(self, rule: Rule, path: str) -> bool:
        """Whether a rule's globs mean a file."""
        spec = self._specs.get(rule.key)
        if spec is None:
            from pathspec import GitIgnoreSpec

            spec = self._specs[rule.key] = GitIgnoreSpec.from_lines(rule.budget.files)
        return spec.match_file(path)

    @property
    def all(self) -> list[Rule]:
        """Every rule: the written ones, then the presets."""
        return [*self._written, *self._presets]

    @property
    def sums(self) -> list[Rule]:
        """The rules that hold for several files together."""
        return [rule for rule in self._written if rule.budget.sum]

    def __bool__(self) -> bool:
        return bool(self._written or self._presets)


def _rules(name: str, budgets: Sequence[Budget]) -> list[Rule]:
    return [Rule(f"{name}[{index}]", budget) for index, budget in enumerate(budgets)]
