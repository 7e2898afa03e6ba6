"""When a context passes a threshold that the user set: reported once per crossing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sidecar.counting.count import number_text
from sidecar.text.printable import percent_text, printable

if TYPE_CHECKING:
    from sidecar.context.results import Alternative
    from sidecar.context.usage import ContextUsage

Severity = Literal["ok", "warning", "error"]


def level(tokens: int, usable: int, warn_at: Sequence[float]) -> int:
    """How many of the thresholds `tokens` have reached."""
    return sum(tokens >= usable * share for share in warn_at)


def severity(tokens: int | None, usable: int, warn_at: Sequence[float]) -> Severity:
    """`warning` from the first threshold on, `error` from the last."""
    if tokens is None or not warn_at:
        return "ok"
    if tokens >= usable * max(warn_at):
        return "error"
    return "warning" if tokens >= usable * min(warn_at) else "ok"


def crossed(before: int, usage: ContextUsage, warn_at: Sequence[float]) -> tuple[int, bool]:
    """How many thresholds are reached now, and whether these are more than `before`.

    Falling under a threshold arms it again.
    """
    if usage.tokens is None or usage.usable is None:
        return 0, False
    now = level(usage.tokens, usage.usable, warn_at)
    return now, now > before


def budget_message(
    usage: ContextUsage,
    alternatives: Sequence[Alternative] = (),
    heaviest: Sequence[tuple[str, int]] = (),
) -> str:
    """What a `context/warning` of kind `budget` says; over the window also what could be done."""
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
    """What could be done about a full window, a sentence each."""
    sentences = []
    if alternatives:
        names = ", ".join(f"{one.model} ({one.context_window:,})" for one in alternatives[:3])
        sentences.append(f"It would fit: {names}.")
    if heaviest:
        tools = ", ".join(f"{name} ({tokens:,})" for name, tokens in heaviest)
        sentences.append(f"The heaviest tool schemas: {tools}.")
    return [printable(sentence) for sentence in sentences]
