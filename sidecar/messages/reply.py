"""A reply in one form for all vendors, and the draft that readers in `vendors/` fill."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, TypeVar

import msgspec

from sidecar import typed
from sidecar.errors import VendorFormatError
from sidecar.messages.usage import Usage, normalise_usage

ReplyFormat = Literal[
    "openai-chat",
    "openai-responses",
    "anthropic",
    "gemini",
    "bedrock",
    "ollama",
    "lmstudio",
    "mistral",
    "cohere",
    "deepseek",
    "xai",
]
Exhausted = Literal["output", "window"]
Loose = dict[str, Any]
"""A part of a reply with unknown further fields."""

T = TypeVar("T")


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in a reply, complete or cut off."""

    id: str
    name: str
    arguments_text: str
    """The arguments received so far, as JSON."""
    arguments: dict[str, Any] | None
    """The decoded arguments, or None if the text is not a JSON object."""


class CalledFunction(msgspec.Struct):
    """A function and its arguments, in the form that several vendors use."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Overflow(msgspec.Struct, frozen=True):
    """A prompt that did not fit, with the server's numbers."""

    prompt_tokens: int | None
    limit: int | None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply of any vendor."""

    format: ReplyFormat
    content: str = ""
    """The text, without reasoning."""
    tool_calls: list[ToolCall] = []
    stop_reason: str | None = None
    """The vendor's own word, or None if the stream ended without one."""
    exhausted: Exhausted | None = None
    cut_off: bool = False
    """Whether it ran out of tokens, or the stream ended without a reason."""
    usage: Usage | None = None
    usage_problem: str | None = None
    """Why the usage cannot be read."""
    request_id: str | None = None
    model: str | None = None
    cost: Decimal | None = None
    """USD, if the reply reports it."""
    overflow: Overflow | None = None


class CallDraft:
    """A tool call whose pieces are still arriving."""

    def __init__(self, call_id: str, name: str) -> None:
        self.id, self.name = call_id, name
        self.closed, self.broken = False, False
        self.texts: list[str] = []
        self.decoded: dict[str, Any] | None = None

    def add_arguments(self, arguments: object) -> None:
        """Add arguments: a piece of their JSON, or the whole object."""
        if isinstance(arguments, Mapping):
            self.decoded, self.closed = dict(arguments), True
        elif isinstance(arguments, str):
            self.texts.append(arguments)

    def finish(self, cut_off: bool) -> ToolCall:
        text, arguments = "".join(self.texts), self.decoded
        if arguments is None:
            arguments = self._decode(text, cut_off)
        elif not text:
            text = msgspec.json.encode(arguments).decode()
        return ToolCall(
            id=self.id,
            name=self.name,
            arguments_text=text,
            arguments=arguments,
        )

    def _decode(self, text: str, cut_off: bool) -> dict[str, Any] | None:
        if not text.strip():
            # No text: a tool without parameters, or a call cut off before its first brace.
            return {} if (self.closed or not cut_off) and not self.broken else None
        try:
            return typed.decode(text, dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
            return None


class ReplyDraft:
    """A reply whose parts are still arriving, in a stream or as a whole object."""

    def __init__(self, format: ReplyFormat) -> None:
        self.format = format
        self.texts: list[str] = []
        self.calls: dict[object, CallDraft] = {}
        self.usage: dict[str, Any] = {}
        self.usage_problem: str | None = None
        self.stop_reason: str | None = None
        self.ended = False  # the vendor closed the reply, with or without a reason
        self.request_id: str | None = None
        self.model: str | None = None
        self.cost: Decimal | None = None
        self.overflow: Overflow | None = None

    def add_text(self, text: str | None) -> None:
        if text:
            self.texts.append(text)

    def call(self, key: object, call_id: str | None = None, name: str | None = None) -> CallDraft:
        """Return the tool call with this key. The first use of a key creates it."""
        draft = self.calls.get(key)
        if draft is None:
            draft = self.calls[key] = CallDraft(call_id or "", name or "")
        draft.id, draft.name = draft.id or call_id or "", draft.name or name or ""
        return draft

    def add_usage(self, usage: object) -> None:
        """Add usage fields. Streams repeat them; the last value that is not null counts."""
        if isinstance(usage, Mapping):
            self.usage.update({key: value for key, value in usage.items() if value is not None})
        elif usage is not None:
            self.usage_problem = "the reply's usage is no object"

    def set_origin(self, request_id: str | None = None, model: str | None = None) -> None:
        """Set the reply's id and model, unless they are already set."""
        self.request_id = self.request_id or request_id or None
        self.model = self.model or model or None

    def set_stop_reason(self, reason: str | None) -> None:
        """Set the stop reason. Streams send null until the end, which is ignored."""
        self.stop_reason = reason or self.stop_reason

    def finish(self, exhausted: Mapping[str, Exhausted]) -> Reply:
        """Return the reply. `exhausted` lists the stop reasons that mean out of tokens."""
        why = "window" if self.overflow else exhausted.get(self.stop_reason or "")
        cut_off = why is not None or not (self.stop_reason or self.ended)
        usage = self._usage()
        return Reply(
            format=self.format,
            content="".join(self.texts),
            tool_calls=[call.finish(cut_off) for call in self.calls.values()],
            stop_reason=self.stop_reason,
            exhausted=why,
            cut_off=cut_off,
            usage=usage,
            usage_problem=self.usage_problem,
            request_id=self.request_id,
            model=self.model,
            cost=self.cost,
            overflow=self.overflow,
        )

    def _usage(self) -> Usage | None:
        """Return the usage, or None if it cannot be read. The rest of the reply stays useful."""
        if self.usage_problem is not None:
            return None
        try:
            return normalise_usage(self.usage, self.format)
        except VendorFormatError as error:
            self.usage_problem = str(error)
        return None


def read_as(obj: object, type: type[T]) -> T:
    """Convert an object to a Struct of the known fields.

    Raises:
        VendorFormatError: It does not fit. The message names the field.
    """
    try:
        return typed.convert(obj, type, strict=True)
    except msgspec.ValidationError as error:
        raise VendorFormatError(f"the reply has an unexpected form: {error}") from None
    except RecursionError:
        raise VendorFormatError("the reply is nested too deeply") from None
