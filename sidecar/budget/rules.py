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
        self.written = _compiled("budget", settings.budgets)
        self._presets = _compiled("preset", PRESETS if settings.presets else ())

    def of(self, path: str) -> list[Rule]:
        """The rules of a file, in the order they were written; `path` is relative, with `/`.

        A preset stands back where a written rule says how much the whole file may hold.
        """
        found = [rule for rule, spec in self.written if spec.match_file(path)]
        if not any(rule.for_whole_files for rule in found):
            found += [rule for rule, spec in self._presets if spec.match_file(path)]
        return found

    @property
    def sums(self) -> list[Rule]:
        """The rules that hold for several files together."""
        return [rule for rule, _ in self.written if rule.budget.sum]

    def sum_files(self, rule: Rule, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that a rule of `sums` counts together."""
        spec = next(spec for other, spec in self.written if other.key == rule.key)
        return [path for path in paths if spec.match_file(path)]

    def __bool__(self) -> bool:
        return bool(self.written or self._presets)


def _compiled(name: str, budgets: Sequence[Budget]) -> list[tuple[Rule, GitIgnoreSpec]]:
    if not budgets:
        return []
    from pathspec import GitIgnoreSpec

    return [
        (Rule(f"{name}[{index}]", budget), GitIgnoreSpec.from_lines(budget.files))
        for index, budget in enumerate(budgets)
    ]
