"""Checks whether a request fits the context window (`context/preflight`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from sidecar.conversations.context_protocol import (
    Alternative,
    PreflightParams,
    PreflightResult,
    Reason,
    Verdict,
)
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import fallback_texts, should_prune
from sidecar.conversations.sections import largest_tools
from sidecar.conversations.turn_counts import Sums, measure_of, sums_of, with_hidden_tokens
from sidecar.counting.calibration import ConversationCalibration
from sidecar.counting.count_result import Measure
from sidecar.messages.turns import Turn, parts
from sidecar.models.catalogue import prompt_limit_of
from sidecar.models.window import Window, usable
from sidecar.text.printable import printable

ALTERNATIVES_SHOWN = 5
_RANKS: tuple[Verdict, ...] = ("ok", "warn", "refuse")


def count_request(
    conversation: Conversation,
    params: PreflightParams,
    calibration: ConversationCalibration | None = None,
) -> Measure:
    """Return the next request's size after adding the turns and the text in the params."""
    counter = conversation.counter
    added = [*(params.turns or ())]
    if params.text:
        added.append(Turn(role="user", content=params.text))
    total = Sums(exact=counter.priming) if conversation.is_empty and added else conversation.total()
    for turn in added:
        total = total.plus(sums_of(counter.message(turn)))
    measure = measure_of(total, counter.tokenizer, calibration)
    return measure if conversation.has_reported_usage else with_hidden_tokens(measure, calibration)


def preflight(
    conversation: Conversation,
    window: Window,
    params: PreflightParams,
    *,
    models: Iterable[Alternative] = (),
    warn_at: tuple[float, ...] = (0.8, 0.95),
    calibration: ConversationCalibration | None = None,
) -> PreflightResult:
    """Return whether a request fits the window.

    Args:
        conversation: The conversation, with a counter for the requested model.
        window: The context window of that model.
        params: The turns and text to add, and the expected output.
        models: The models to suggest if they have enough room.
        warn_at: Thresholds, as fractions of the usable window. The verdict is a warning above the
            highest threshold.
        calibration: The conversation's calibration.
    """
    prompt = count_request(conversation, params, calibration).tokens
    output = params.max_output_tokens or 0
    reasons = _window_reasons(prompt, output, window, warn_at)
    fits = not window.over(prompt) and prompt + output <= window.limit.tokens
    defer = _defer_reason(conversation, params, prompt, window)
    size, needed = window.limit.tokens, prompt + output
    alternatives = (
        [] if fits else models_that_fit(models, needed, conversation.model, window.reserve, size)
    )
    if defer is not None:
        reasons.append(defer)
    if not fits:
        heaviest = largest_tools(conversation.tools, conversation.counter)
        offers = fallback_texts(alternatives, heaviest)
        reasons += [Reason(kind="fallback", message=one) for one in offers]
    return PreflightResult(
        verdict=_judge(prompt, fits, bool(reasons), window),
        prompt_tokens=prompt,
        available=window.available(prompt),
        fits=fits,
        defer_tool=defer is not None,
        estimated_cost_usd=None,
        reasons=reasons,
        alternatives=alternatives,
    )


def combine_verdicts(
    fit: PreflightResult, verdict: Verdict, reasons: Sequence[Reason]
) -> PreflightResult:
    """Return a copy of `fit` with `reasons` added.

    Its verdict is `verdict` or `fit.verdict`, whichever is more severe.
    """
    worse = max(fit.verdict, verdict, key=_RANKS.index)
    return msgspec.structs.replace(fit, verdict=worse, reasons=[*fit.reasons, *reasons])


def models_that_fit(
    models: Iterable[Alternative], tokens: int, model: str, reserve: int, than: int = 0
) -> list[Alternative]:
    """Return other models that have room for `tokens`, smallest window first.

    Args:
        models: The models to choose from.
        tokens: The size that must fit.
        model: The current model, which is left out.
        reserve: The part of each window reserved for the reply, in tokens.
        than: Windows up to this size are left out.
    """
    fit = {
        one.model: one
        for one in models
        if one.model != model
        and one.context_window > than
        and usable(one.context_window, reserve) >= tokens
        and (prompt_limit_of(one.model) or tokens) >= tokens
    }
    return sorted(fit.values(), key=lambda one: (one.context_window, one.model))[
        :ALTERNATIVES_SHOWN
    ]


def largest_tool_result(conversation: Conversation, name: str) -> int:
    """Return the size of the largest result of this tool in the conversation, in tokens."""
    counts = conversation.model_counts().turns
    sizes = [0]
    names: dict[str, str] = {}
    for index, turn in enumerate(conversation.turns):
        found = parts(turn)
        names.update({part.id: part.name for part in found if part.id and part.name})
        given = [part.name or names.get(part.id or "") for part in found if part.kind == "result"]
        if name in given:
            sizes.append(counts[index].tokens)
    return max(sizes)


def _window_reasons(
    prompt: int, output: int, window: Window, warn_at: tuple[float, ...]
) -> list[Reason]:
    limit, size = window.limit.tokens, f"the prompt of {prompt:,} tokens"
    if window.over(prompt):
        exceeded = "prompt limit" if window.usable == window.limit.prompt else "usable window"
        text = f"{size} exceeds the {exceeded} of {window.usable:,} tokens"
        return [Reason(kind="window", message=text)]
    if prompt + output > limit:
        text = f"{size} and {output:,} tokens of output exceed the window of {limit:,} tokens"
        return [Reason(kind="output", message=text)]
    if should_prune(prompt, window, warn_at):
        text = f"{size} is close to the usable window of {window.usable:,} tokens"
        return [Reason(kind="budget", message=text)]
    return []


def _defer_reason(
    conversation: Conversation, params: PreflightParams, prompt: int, window: Window
) -> Reason | None:
    """Return why a pending tool call should be deferred, or None if its result will fit."""
    call = params.pending_tool_call
    if call is None:
        return None
    expected = call.expected_tokens
    if expected is None:
        expected = largest_tool_result(conversation, call.name)
    if not window.over(prompt + expected):
        return None
    result = f"the result of {printable(call.name)} ({expected:,} tokens)"
    text = f"not enough room for {result}; run the tool later"
    return Reason(kind="tool", message=text)


def _judge(prompt: int, fits: bool, warned: bool, window: Window) -> Verdict:
    if not fits and prompt > (window.limit.prompt or window.limit.tokens):
        return "refuse"
    return "warn" if warned else "ok"
