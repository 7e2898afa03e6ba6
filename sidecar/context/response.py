"""A reply that ran out of tokens: what of it can be used, and what ran out (`context/response`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sidecar.context.occupancy import calibration_info
from sidecar.context.results import CleanCall, Dropped, ResponseResult
from sidecar.context.sections import ToolSet
from sidecar.context.session import Anchored, Sample, Session
from sidecar.context.window import usable

if TYPE_CHECKING:
    from sidecar.context.counter import Calibration
    from sidecar.context.plans import Plans
    from sidecar.context.window import Window
    from sidecar.endpoints.reply import Reply, ToolCall

WarningKind = Literal["exhausted", "droppedToolCalls", "compacted"]


class Handled(msgspec.Struct, frozen=True):
    """A reply as it is answered, and what it told beside."""

    result: ResponseResult
    anchored: Anchored
    warnings: list[tuple[WarningKind, str]]
    """Kind and message of each `context/warning` to send."""
    limit: int | None
    """The window that a server named when it refused the prompt."""


def handle(
    session: Session,
    plans: Plans,
    reply: Reply,
    window: Window,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    keep_turns: int = 4,
    calibration: Calibration | None = None,
    learn: Callable[[Sample], None] = lambda _: None,
) -> Handled:
    """Anchor the session by the reply, and give the reply back without what was cut off.

    Args:
        session: of which this is the reply; nothing is appended to it.
        plans: the session's.
        reply: as `endpoints.replies.read_reply` gives it.
        window: the session's.
        tools: the schemas that say which parameters a call needs; the session's by default.
        keep_turns: for the plan, where the window is full.
        calibration: of the session's estimates.
        learn: teaches that calibration what was reported, before anything is planned by it.
    """
    known = session.tools.tools if isinstance(session.tools, ToolSet) else ()
    calls, dropped = usable_calls(reply, tools or known)
    exhausted = what_ran_out(reply, window)
    anchored = _anchor(session, reply)
    if anchored.sample is not None:
        learn(anchored.sample)
    plan = None
    limit = reply.overflow.limit if reply.overflow else None
    if exhausted == "window" and not session.known_by_counts and session.turns:
        room = usable(min(limit or window.limit.tokens, window.limit.tokens), window.reserve)
        plan = plans.make(room, keep_turns=keep_turns, calibration=calibration)
    result = ResponseResult(
        content=reply.content,
        tool_calls=calls,
        dropped=dropped,
        stop_reason=reply.stop_reason,
        exhausted=exhausted,
        plan=plan,
        usage=reply.usage,
        calibration=calibration_info(calibration),
    )
    return Handled(result, anchored, list(_warnings(result, anchored)), limit)


def usable_calls(
    reply: Reply, tools: Sequence[Mapping[str, Any]]
) -> tuple[list[CleanCall], list[Dropped]]:
    """The tool calls that can be run, and those that were cut off, with what they lack.

    A call in a reply that ended by itself is not held against its schema.
    """
    required = dict(required_parameters(tools))
    good: list[CleanCall] = []
    bad: list[Dropped] = []
    for call in reply.tool_calls:
        fault = _fault(call, required.get(call.name, ()), reply.cut_off)
        if fault is None:
            good.append(CleanCall(id=call.id, name=call.name, arguments=call.arguments or {}))
        else:
            bad.append(Dropped(name=call.name, reason=fault))
    return good, bad


def what_ran_out(reply: Reply, window: Window) -> Literal["output", "window"] | None:
    """Whether the output limit ended the reply, or the window was full.

    Many vendors have one word for both: a prompt and output that fill the window tell them apart.
    A limit that the user set may be smaller than the window: then only the exact number tells.
    """
    usage = reply.usage
    if reply.exhausted != "output" or usage is None or window.limit.source == "default":
        return reply.exhausted
    over = usage.prompt_tokens + usage.output_tokens - window.limit.tokens
    full = abs(over) <= 1 if window.limit.source == "settings" else over >= -1
    return "window" if full else "output"


def required_parameters(
    tools: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, names of the required parameters) of schemas in any vendor's form."""
    for tool in tools:
        nested = tool.get("functionDeclarations") or tool.get("function_declarations")
        if isinstance(nested, list):
            yield from required_parameters([one for one in nested if isinstance(one, Mapping)])
            continue
        body = next((tool[key] for key in ("function", "toolSpec") if key in tool), tool)
        if isinstance(body, Mapping) and isinstance(body.get("name"), str):
            yield body["name"], _required(body)


def _required(body: Mapping[str, Any]) -> tuple[str, ...]:
    schemas = (body[key] for key in _SCHEMA_KEYS if isinstance(body.get(key), Mapping))
    schema: Mapping[str, Any] = next(schemas, {})
    wrapped = schema.get("json")  # Bedrock
    names = (wrapped if isinstance(wrapped, Mapping) else schema).get("required")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


_SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema")


def _fault(call: ToolCall, required: Sequence[str], cut_off: bool) -> str | None:
    """What is wrong with a call; quotes nothing of its arguments."""
    if call.arguments is None:
        return "its arguments are not valid JSON" + (": they were cut off" if cut_off else "")
    if not cut_off:
        return None
    if not call.name:
        return "its name was cut off"
    missing = [name for name in required if name not in call.arguments]
    return f"required parameter missing: {', '.join(missing)}" if missing else None


def _anchor(session: Session, reply: Reply) -> Anchored:
    if reply.overflow is not None and reply.overflow.prompt_tokens:
        return session.overflow_reported(reply.overflow.prompt_tokens)
    if reply.usage is not None and reply.usage.prompt_tokens:
        return session.reply_reported(reply.usage)
    return Anchored()


def _warnings(result: ResponseResult, anchored: Anchored) -> Iterator[tuple[WarningKind, str]]:
    if result.exhausted == "output":
        yield "exhausted", "The reply reached its output limit and is incomplete."
    if result.exhausted == "window":
        yield "exhausted", "The context window is full: prune or summarise before trying again."
    if result.dropped:
        names = ", ".join(sorted({call.name or "(unnamed)" for call in result.dropped}))
        yield "droppedToolCalls", f"Tool calls were cut off and dropped: {names}."
    if anchored.compacted:
        yield "compacted", "The conversation was compacted: the prompt is much smaller than before."
