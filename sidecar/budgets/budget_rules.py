"""Finds the rules and presets that apply to a file, and decides how severe a finding is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from sidecar import typed
from sidecar.config.settings import Budget, Settings
from sidecar.text.globs import PathGlobs

if TYPE_CHECKING:
    from sidecar.counting.open_documents import Snapshot

FindingSeverity = Literal["information", "warning", "error"]

DEFAULT_WARN_AT = 0.9


@cache
def presets() -> tuple[Budget, ...]:
    """Return budgets for well-known prompt files, enabled by `presets = true`."""
    table = typed.read_table("sidecar.budgets", "presets.toml", dict[str, tuple[Budget, ...]])
    return table["budget"]


def severity_of(
    tokens: int, budget: int, warn_at: float = DEFAULT_WARN_AT
) -> FindingSeverity | None:
    """Return a finding's severity, or None if `warn_at` is not reached.

    The severity is `information` up to the budget, `warning` above it, and `error` from twice the
    budget.
    """
    if tokens >= 2 * budget:
        return "error"
    if tokens > budget:
        return "warning"
    # A floating-point product can be slightly too large: 0.07 * 100 is more than 7.
    return "information" if tokens >= math.ceil(warn_at * budget - 1e-9) else None


def percent_of(tokens: int, budget: int) -> int:
    """Return how much of a budget is used, as a whole percentage rounded down."""
    return 100 * tokens // max(1, budget)


class Rule(msgspec.Struct, frozen=True):
    """A budget and its key, such as `budget[0]` or `preset[0]`."""

    key: str
    budget: Budget

    @property
    def for_whole_files(self) -> bool:
        """Whether the rule limits each matching file as a whole."""
        is_shared = self.budget.sum or self.budget.always_loaded is not None
        return self.budget.max_tokens is not None and not is_shared


class Rules:
    """A root folder's rules. Globs work as in .gitignore and are relative to the root.

    `AGENTS.md` matches in any folder, `/AGENTS.md` only in the root folder, and `prompts/` matches
    everything in folders of that name. `!old.md` excludes files that an earlier glob in the list
    matches.
    """

    def __init__(self, settings: Settings) -> None:
        self.written = _make_rules("budget", settings.budgets)
        self._presets = _make_rules("preset", presets() if settings.presets else ())
        self._globs: dict[str, PathGlobs] = {}

    def of(self, path: str) -> list[Rule]:
        """Return the rules that apply to a file, in configuration order.

        Presets are left out if a configured rule limits the whole file.

        Args:
            path: The path relative to the root, with `/` as the separator.
        """
        found = [rule for rule in self.written if self.matches(rule, path)]
        if not any(rule.for_whole_files for rule in found):
            found += [rule for rule in self._presets if self.matches(rule, path)]
        return found

    def matches(self, rule: Rule, path: str) -> bool:
        """Return whether a rule's globs match a file."""
        globs = self._globs.get(rule.key)
        if globs is None:
            globs = self._globs[rule.key] = PathGlobs(rule.budget.files)
        return globs.matches_file(path)

    def may_match_in(self, folder: str) -> bool:
        """Return whether any rule might match files in a folder.

        For example, `prompts/**/*.md` might match files in `prompts` and in `prompts/old`.
        """
        if any(self.matches(rule, f"{folder}/file") for rule in self.all):
            return True
        own = f"{folder}/"
        tops = [_literal_prefix(glob) for rule in self.all for glob in rule.budget.files]
        return any(top and (top.startswith(own) or own.startswith(top)) for top in tops)

    @property
    def all(self) -> list[Rule]:
        """All rules. Presets come last."""
        return [*self.written, *self._presets]

    @property
    def sums(self) -> list[Rule]:
        """The configured rules with a budget that several files share."""
        return [rule for rule in self.written if rule.budget.sum]

    @property
    def always_loaded(self) -> list[Rule]:
        """The configured rules for what an agent sends with every call."""
        return [rule for rule in self.written if rule.budget.always_loaded is not None]

    def __bool__(self) -> bool:
        return bool(self.written or self._presets)


class Subject(NamedTuple):
    """Text, and the budget rules that apply to it."""

    name: str
    snapshot: Snapshot
    rules: tuple[Rule, ...]
    model: str
    version: int | None = None

    @property
    def models(self) -> dict[str, None]:
        """The text's model and the models of its rules, without duplicates."""
        return dict.fromkeys(
            (self.model, *(rule.budget.model or self.model for rule in self.rules))
        )


def _literal_prefix(glob: str) -> str:
    """Return the literal folders at the start of a glob: `prompts/` for `/prompts/*/x.md`."""
    folders = glob.removeprefix("/").split("/")[:-1]
    plain = takewhile(lambda name: not set(name) & set("*?[\\!"), folders)
    return "".join(f"{name}/" for name in plain)


def _make_rules(name: str, budgets: Sequence[Budget]) -> list[Rule]:
    return [Rule(f"{name}[{index}]", budget) for index, budget in enumerate(budgets)]
