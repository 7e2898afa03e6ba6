"""Computes a context's size and parts (`context/usage`), and warns when thresholds are reached.

The status, `context/usage`, pruning, preflight and reports all use this size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.conversations.context_protocol import (
    Alternative,
    Breakdown,
    CalibrationInfo,
    ContextPart,
    ContextUsage,
    SessionInfo,
)
from sidecar.conversations.context_rows import own_share_text, share_text
from sidecar.conversations.turn_counts import (
    factor_of,
    has_samples,
    measure_of,
    sums_of,
    with_hidden_tokens,
    with_reply_markup,
)
from sidecar.counting.calibration import ConversationCalibration
from sidecar.counting.count_result import Measure, number_text
from sidecar.messages.messages import is_assistant, parts
from sidecar.models.window import Window, level, severity
from sidecar.text.printable import printable

if TYPE_CHECKING:
    from sidecar.conversations.conversation import Conversation


LARGEST_SHOWN = 5
_TYPICAL = "The quick brown fox jumps over the lazy dog, and then takes a nap. " * 20
"""Sample text. Its error band is used for assembled requests, whose own text is not kept."""
UNSEEN = "the client's system prompt and tools are not included until usage is reported"
_APART = ("logs", "config", "time")


def occupancy(
    conversation: Conversation, calibration: ConversationCalibration | None = None
) -> Measure:
    """Return the size of the next request, excluding the user's next message.

    This is the size of the last reported prompt, its reply and all later turns, excluding reasoning
    that is not sent back. Without reported usage, everything is counted.
    """
    measure = measure_of(conversation.total(), conversation.counter.tokenizer, calibration)
    return (
        with_reply_markup(measure)
        if conversation.has_reported_usage
        else with_hidden_tokens(measure, calibration)
    )


def estimated_prompt(
    conversation: Conversation,
    calibration: ConversationCalibration | None = None,
    upto: int | None = None,
) -> Measure:
    """Return an estimate of the next request's size that ignores reported usage.

    If `upto` is given, later turns are ignored.
    """
    sums, tokenizer = conversation.count_without_reports(upto), conversation.counter.tokenizer
    return with_hidden_tokens(measure_of(sums, tokenizer, calibration), calibration)


def sent_estimate(
    conversation: Conversation, calibration: ConversationCalibration | None = None
) -> int | None:
    """Return the last prompt's estimated size, or None if there are no turns."""
    if conversation.is_empty or not conversation.turns:
        return None
    last = len(conversation.turns) - 1
    upto = last if is_assistant(conversation.turns[last]) else None
    return estimated_prompt(conversation, calibration, upto).tokens


def context_usage(
    conversation: Conversation,
    window: Window,
    *,
    warn_at: tuple[float, ...] = (0.8, 0.95),
    calibration: ConversationCalibration | None = None,
    cost_usd: float | None = None,
) -> ContextUsage:
    """Return how full a context is. The numbers are None for an empty conversation."""
    if conversation.is_empty and conversation.assembled:
        return _assembled_usage(conversation, window, warn_at)
    known = not conversation.is_empty
    at = max(conversation.updated_at, conversation.assembled_at)
    measure = occupancy(conversation, calibration) if known else None
    tokens = measure.tokens if measure else None
    found = ContextUsage(
        tokens=tokens,
        method=measure.method if measure else None,
        error_percent=measure.error_percent if measure else None,
        model=conversation.model,
        session=SessionInfo.of(conversation.id, conversation.source, at),
        breakdown=None if tokens is None else breakdown(conversation, tokens, calibration),
        largest=[] if tokens is None else largest(conversation, tokens, calibration),
        turns=len(conversation.turns),
        compacted=conversation.compacted,
        calibration=calibration_info(calibration),
        cost_usd=cost_usd,
        note=UNSEEN if known and _has_unseen(conversation, measure, calibration) else None,
    )
    return in_window(found, window, warn_at, conversation.reported_tokens)


def _has_unseen(
    conversation: Conversation, measure: Measure | None, calibration: ConversationCalibration | None
) -> bool:
    """Return whether the client may send a system prompt or tools that it has not reported."""
    if (
        conversation.has_reported_usage
        or not conversation.turns
        or conversation.system
        or conversation.tools
    ):
        return False
    is_guess = measure is not None and measure.method in ("calibrated", "estimate")
    return is_guess and (calibration is None or calibration.hidden is None)


def _assembled_usage(
    conversation: Conversation, window: Window, warn_at: tuple[float, ...]
) -> ContextUsage:
    parts, counted = conversation.assembled, conversation.counter.text(_TYPICAL)
    found = ContextUsage(
        tokens=sum(parts.values()),
        method=counted.method,
        error_percent=counted.error_percent,
        model=conversation.model,
        session=SessionInfo.of(conversation.id, conversation.source, conversation.assembled_at),
        breakdown=Breakdown(
            system=parts["prefix"] + parts["mandates"],
            tools=0,
            sections=parts["context"],
            turns=parts["user"],
            overhead=0,
            logs=parts["logs"],
        ),
        largest=[ContextPart(label=name, tokens=size) for name, size in parts.items() if size],
        turns=0,
        compacted=False,
    )
    return in_window(found, window, warn_at)


def calibration_info(calibration: ConversationCalibration | None) -> CalibrationInfo | None:
    """Return the calibration data to send to clients, or None before the first report."""
    if not has_samples(calibration):
        return None
    return CalibrationInfo(
        factor=calibration.factor,
        samples=calibration.samples,
        error_percent=calibration.error_percent,
    )


def breakdown(
    conversation: Conversation, tokens: int, calibration: ConversationCalibration | None
) -> Breakdown:
    """Return the context's size by category, in tokens.

    If the reported size exceeds the sum of all parts, the difference is overhead. If it is smaller,
    the client no longer sends all turns, and the categories are reduced, last category first, until
    they add up to the reported size.
    """
    factor, counter = factor_of(calibration), conversation.counter
    apart = {name: _tokens_of_part(conversation, name, factor) for name in _APART}
    system, tools = conversation.system, conversation.tools
    parts = {
        "system": _tokens(system.measure(counter), factor) if system else 0,
        "tools": _tokens(tools.measure(counter), factor) if tools else 0,
        "sections": conversation.section_sums().tokens(factor) - sum(apart.values()),
        "turns": conversation.model_counts().turns.between(0).tokens(factor),
        **apart,
    }
    left = tokens
    shares: dict[str, int] = {}
    for name, part in parts.items():
        shares[name] = min(part, left)
        left -= shares[name]
    return Breakdown(overhead=left, **shares)


def _tokens_of_part(conversation: Conversation, name: str, factor: float) -> int:
    found = [one for one in conversation.sections if one.name.lower() == name]
    return sum(one.sums(conversation.counter).tokens(factor) for one in found)


def largest(
    conversation: Conversation, tokens: int, calibration: ConversationCalibration | None
) -> list[ContextPart]:
    """Return a context's largest parts, largest first. Turns are numbered from 0."""
    factor = factor_of(calibration)
    counter = conversation.counter
    found = [
        ContextPart(label=label, tokens=_tokens(part.measure(counter), factor))
        for label, part in (("system prompt", conversation.system), ("tools", conversation.tools))
        if part is not None
    ]
    found += [
        ContextPart(label=f"section {section.name}", tokens=section.sums(counter).tokens(factor))
        for section in conversation.sections
    ]
    counts = conversation.model_counts().turns
    found += [
        ContextPart(label=_turn_label(conversation, index), tokens=_tokens(counts[index], factor))
        for index, _ in counts.largest()
    ]
    fitting = [part for part in found if 0 < part.tokens <= tokens]
    return sorted(fitting, key=lambda part: -part.tokens)[:LARGEST_SHOWN]


def _turn_label(conversation: Conversation, index: int) -> str:
    turn = conversation.turns[index]
    names = [part.name for part in parts(turn) if part.name]
    return f"turn {index} ({turn.role}{': ' + ', '.join(names[:3]) if names else ''})"


def _tokens(measure: Measure, factor: float) -> int:
    return sums_of(measure).tokens(factor)


def in_window(
    found: ContextUsage, window: Window, warn_at: tuple[float, ...], reported: int | None = None
) -> ContextUsage:
    """Return a copy in which the fields that depend on the window are filled in.

    Args:
        found: The usage without these fields.
        window: The context window.
        warn_at: The thresholds, as shares of the usable window.
        reported: The last size that a vendor or agent reported, in tokens. If a merely assumed
            window is smaller, the assumption is wrong, and the fields remain empty.
    """
    if window.limit.source == "default" and (reported or 0) > window.limit.tokens:
        return found
    tokens = found.tokens
    return msgspec.structs.replace(
        found,
        limit=window.limit.tokens,
        limit_source=window.limit.source,
        reserve=window.reserve,
        usable=window.usable,
        available=None if tokens is None else window.available(tokens),
        percent=None if tokens is None else window.percent(tokens),
        over=None if tokens is None else window.over(tokens),
        should_prune=None if tokens is None else should_prune(tokens, window, warn_at),
        severity=severity(tokens, window.usable, warn_at),
    )


def should_prune(tokens: int, window: Window, warn_at: tuple[float, ...]) -> bool:
    """Return whether `tokens` exceeds the highest threshold (by default, the usable window)."""
    return tokens > window.usable * max(warn_at, default=1.0)


def crossed(before: int, usage: ContextUsage, warn_at: Sequence[float]) -> tuple[int, bool]:
    """Return the number of thresholds reached, and whether it is greater than `before`."""
    usable = usage.agent_usable or usage.usable
    if usage.tokens is None or usable is None:
        return 0, False
    now = level(usage.tokens, usable, warn_at)
    return now, now > before


def budget_message(
    usage: ContextUsage,
    alternatives: Sequence[Alternative] = (),
    heaviest: Sequence[tuple[str, int]] = (),
) -> str:
    """Return the text of a `budget` warning. It suggests remedies if the window is exceeded."""
    tokens = number_text(usage.tokens or 0, usage.method or "estimate")
    room = f"{usage.usable or 0:,} tokens"
    model = "" if usage.model is None else f", {usage.model}"
    text = f"Context {share_text(usage)} full{own_share_text(usage)}: {tokens} of {room}{model}."
    if not usage.over:
        return text
    return " ".join([text, *fallback_texts(alternatives, heaviest)])


def fallback_texts(
    alternatives: Sequence[Alternative], heaviest: Sequence[tuple[str, int]]
) -> list[str]:
    """Return remedies for a full context: other models with enough room, and the largest tool
    schemas.
    """
    sentences = []
    if alternatives:
        names = ", ".join(f"{one.model} ({one.context_window:,})" for one in alternatives[:3])
        sentences.append(f"Models with enough room: {names}.")
    if heaviest:
        tools = ", ".join(f"{name} ({tokens:,})" for name, tokens in heaviest)
        sentences.append(f"Largest tool schemas: {tools}.")
    return [printable(sentence) for sentence in sentences]
