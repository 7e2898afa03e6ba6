"""Warns when a context crosses a threshold (`context.warn-at`), once per crossing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidecar.context.window import level
from sidecar.counting.count import number_text
from sidecar.text.printable import percent_text, printable

if TYPE_CHECKING:
    from sidecar.context.results import Alternative
    from sidecar.context.usage import ContextUsage


def crossed(before: int, usage: ContextUsage, warn_at: Sequence[float]) -> tuple[int, bool]:
    """Return how many thresholds are reached, and whether these are more than `before`."""
    if usage.tokens is None or usage.usable is None:
        return 0, False
    now = level(usage.tokens, usage.usable, warn_at)
    return now, now > before


def budget_message(
    usage: ContextUsage,
    alternatives: Sequence[Alternative] = (),
    heaviest: Sequence[tuple[str, int]] = (),
) -> str:
    """Return the text of a `budget` warning. Over the window, it suggests what to do."""
    tokens = number_text(usage.tokens or 0, usage.method or "estimate")
    room = f"{usage.usable or 0:,} tokens"
    model = "" if usage.model is None else f", {usage.model}"
    text = f"Context {percent_text(usage.percent or 0)} full: {tokens} of {room}{model}."
    if not usage.over:
        return text
    return " ".join([text, *fallbacks(alternatives, heaviest)])


def fallbacks(
    alternatives: Sequence[Alternative], heaviest: Sequence[tuple[str, int]]
) -> list[str]:
    """Return what the user can do about a full window, one sentence each."""
    sentences = []
    if alternatives:
        names = ", ".join(f"{one.model} ({one.context_window:,})" for one in alternatives[:3])
        sentences.append(f"It would fit: {names}.")
    if heaviest:
        tools = ", ".join(f"{name} ({tokens:,})" for name, tokens in heaviest)
        sentences.append(f"The heaviest tool schemas: {tools}.")
    return [printable(sentence) for sentence in sentences]
