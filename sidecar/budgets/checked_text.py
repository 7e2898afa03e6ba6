"""A text with its budget rules, and the findings in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from sidecar.budgets.budget_rules import Rule
from sidecar.counting.open_documents import Snapshot

if TYPE_CHECKING:
    from sidecar.budgets.findings import Finding, RestOfGroup, TextCounter
    from sidecar.counting.tokenizer_choice import CounterChoice


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


def findings(
    subject: Subject,
    choices: Mapping[str, CounterChoice],
    rest_of_group: Mapping[str, RestOfGroup] | None = None,
) -> list[Finding]:
    """Check text against its budget rules. This function blocks."""
    # Imported on a worker thread to keep server startup fast.
    from sidecar.budgets.findings import evaluate

    counter = make_text_counter(subject, choices)
    return evaluate(
        subject.name, subject.snapshot.text, subject.rules, counter, subject.model, rest_of_group
    )


def make_text_counter(subject: Subject, choices: Mapping[str, CounterChoice]) -> TextCounter:
    from sidecar.budgets.findings import TextCounter

    whole = {model: choice.whole for model, choice in choices.items() if choice.whole is not None}
    snapshot = subject.snapshot
    pieces = snapshot.pieces if snapshot.is_cut else None
    return TextCounter(snapshot.text, lambda model: choices[model].tokenizer, pieces, whole)
