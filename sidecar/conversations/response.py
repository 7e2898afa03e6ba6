"""Processes replies, and finds the usable parts of cut-off replies (`context/response`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from sidecar.conversations.context_protocol import CleanCall, Dropped, ResponseResult
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import calibration_info
from sidecar.conversations.pruning import make_plan
from sidecar.conversations.sections import ToolSet
from sidecar.conversations.turn_counts import MARKS, Counter, Sample, Sums, UsageUpdate
from sidecar.counting.calibration import ConversationCalibration
from sidecar.messages.content import ToolSchema, read_tools
from sidecar.messages.replies import Reply, ToolCall
from sidecar.models.window import Window, usable

WarningKind = Literal["exhausted", "droppedToolCalls", "compacted"]


class ReplyOutcome(msgspec.Struct, frozen=True):
    """A reply's usable parts, the warnings to send, and the window that a server reported."""

    result: ResponseResult
    warnings: list[tuple[WarningKind, str]]
    """The kind and the message of each `context/warning` to send."""
    limit: int | None
    """The window size that a server reported when it rejected the prompt, or None."""
    sample: Sample | None
    """The calibration sample in the reply's usage, or None."""


def apply_reply(
    conversation: Conversation,
    reply: Reply,
    window: Window,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    keep_turns: int = 4,
    calibration: ConversationCalibration | None = None,
) -> ReplyOutcome:
    """Apply a reply's usage to its conversation, and return the reply without cut-off tool calls.

    Args:
        conversation: The conversation to update. The reply is not appended to it.
        reply: The reply.
        window: The context window.
        tools: Tool schemas with required parameters; defaults to the conversation's tools.
        keep_turns: The number of user turns that the pruning plan keeps if the window is full.
        calibration: The conversation's calibration. The reply's usage updates it.
    """
    known = conversation.tools.tools if isinstance(conversation.tools, ToolSet) else ()
    schemas = read_tools(tools or known)
    kept, faulty = split_calls(reply, schemas)
    exhausted = exhausted_limit(reply, window)
    update = _anchor(conversation, reply, [call for call, _ in faulty])
    if update.sample is not None and calibration is not None:
        update.sample.apply_to(calibration)
    plan = None
    limit = reply.overflow.limit if reply.overflow else None
    if exhausted == "window" and not conversation.has_turns_without_text and conversation.turns:
        room = min(window.usable, usable(limit or window.limit.tokens, window.reserve))
        plan = make_plan(conversation, room, keep_turns=keep_turns, calibration=calibration)
    result = ResponseResult(
        content=reply.content,
        tool_calls=[
            CleanCall(id=call.id, name=call.name, arguments=call.arguments or {}) for call in kept
        ],
        dropped=[Dropped(name=call.name, reason=fault) for call, fault in faulty],
        unchecked=_calls_without_schema(reply, kept, schemas),
        model=reply.model,
        request_id=reply.request_id,
        stop_reason=reply.stop_reason,
        exhausted=exhausted,
        plan=plan,
        usage=reply.usage,
        calibration=calibration_info(calibration),
    )
    return ReplyOutcome(result, list(_make_warnings(result, update)), limit, update.sample)


def split_calls(
    reply: Reply, schemas: Sequence[ToolSchema]
) -> tuple[list[ToolCall], list[tuple[ToolCall, str]]]:
    """Return the usable tool calls, and the other tool calls with their faults.

    In a complete reply, calls are not checked against their schemas.
    """
    required = {tool.name: tool.required for tool in schemas}
    kept: list[ToolCall] = []
    faulty: list[tuple[ToolCall, str]] = []
    for call in reply.tool_calls:
        fault = _find_fault(call, required.get(call.name, ()), reply.cut_off)
        if fault is None:
            kept.append(call)
        else:
            faulty.append((call, fault))
    return kept, faulty


def _calls_without_schema(
    reply: Reply, calls: Sequence[ToolCall], schemas: Sequence[ToolSchema]
) -> list[str]:
    known = {tool.name for tool in schemas}
    return [call.name for call in calls if call.name not in known] if reply.cut_off else []


def exhausted_limit(reply: Reply, window: Window) -> Literal["output", "window"] | None:
    """Return which limit ended the reply: the output limit or the window.

    Many vendors report both limits in the same way, so the number of tokens decides. A window
    size from the settings may be smaller than the real window. Such a size is therefore treated
    as the limit only if the number of tokens matches it.
    """
    usage = reply.usage
    if reply.exhausted != "output" or usage is None or window.limit.source == "default":
        return reply.exhausted
    over = usage.prompt_tokens + usage.output_tokens - window.limit.tokens
    full = abs(over) <= 1 if window.limit.source == "settings" else over >= -1
    return "window" if full else "output"


def _find_fault(call: ToolCall, required: Sequence[str], cut_off: bool) -> str | None:
    if call.arguments is None:
        return f"its arguments {'were cut off and ' if cut_off else ''}are not valid JSON"
    if not cut_off:
        return None
    if not call.name:
        return "its name was cut off"
    missing = [name for name in required if name not in call.arguments]
    return f"missing required parameters: {', '.join(missing)}" if missing else None


def _anchor(conversation: Conversation, reply: Reply, dropped: Sequence[ToolCall]) -> UsageUpdate:
    if reply.overflow is not None and reply.overflow.prompt_tokens:
        return conversation.apply_overflow(reply.overflow.prompt_tokens)
    usage = reply.usage
    if usage is None or not usage.prompt_tokens:
        return UsageUpdate()
    if not dropped:
        return conversation.apply_reply_usage(usage)
    written = max(0, usage.output_tokens - usage.reasoning_tokens)
    reported, estimated = _kept_output(conversation.counter, reply, dropped, written)
    output = usage.reasoning_tokens + reported
    return conversation.apply_reply_usage(
        msgspec.structs.replace(usage, output_tokens=output), estimated
    )


def _kept_output(
    counter: Counter, reply: Reply, dropped: Sequence[ToolCall], written: int
) -> tuple[int, Sums]:
    """Return the size of the kept output, as a number of reported tokens plus an estimate.

    Vendors do not report token counts for individual calls. The result is either the reported
    output minus the estimated size of the dropped calls, or an estimate of the kept output,
    whichever is more reliable. If the vendor sent less text than it reports, the kept output is
    estimated.

    Args:
        counter: The conversation's counter.
        reply: The whole reply.
        dropped: The calls that were dropped.
        written: The reported output tokens, excluding reasoning.
    """
    calls = [call for call in reply.tool_calls if not any(call is one for one in dropped)]
    kept = _estimate(counter, [reply.content, *map(_call_text, calls)], len(calls))
    gone = _estimate(counter, [_call_text(call) for call in dropped], len(dropped))
    unseen = written - (kept.estimate + kept.error) - (gone.estimate + gone.error)
    if unseen > 0 or (kept.unmeasured, kept.error) <= (gone.unmeasured, gone.error):
        return 0, kept
    gone = gone._replace(estimate=min(gone.estimate, written))
    return written, Sums().minus(gone)._replace(error=gone.error)


def _estimate(counter: Counter, texts: Sequence[str], calls: int) -> Sums:
    measure = counter.text("\n".join(texts))
    margin = measure.tokens * (measure.error_percent or 0.0) / 100 + MARKS * calls
    return Sums(
        estimate=measure.tokens,
        calibrated=measure.tokens if measure.method == "calibrated" else 0,
        error=margin,
        unmeasured=measure.tokens if measure.error_percent is None else 0,
    )


def _call_text(call: ToolCall) -> str:
    return f"{call.name} {call.arguments_text}"


def _make_warnings(
    result: ResponseResult, update: UsageUpdate
) -> Iterator[tuple[WarningKind, str]]:
    if result.exhausted == "output":
        yield "exhausted", "The reply reached its output limit and is incomplete."
    if result.exhausted == "window":
        yield "exhausted", "The context window is full. Remove or summarize turns, then try again."
    if result.unchecked:
        names = ", ".join(sorted(set(result.unchecked)))
        yield (
            "exhausted",
            f"The reply was cut off, and these tool calls could not be checked: {names}.",
        )
    if result.dropped:
        names = ", ".join(sorted({call.name or "(unnamed)" for call in result.dropped}))
        yield "droppedToolCalls", f"Incomplete or invalid tool calls were dropped: {names}."
    if update.compacted:
        yield "compacted", "The conversation was compacted: its prompt is much smaller than before."
