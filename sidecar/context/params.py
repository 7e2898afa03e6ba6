"""Params of the `context/*` requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sidecar.config.settings import Truncation
from sidecar.messages.bounds import MOST_TOKENS
from sidecar.messages.reply import ReplyFormat
from sidecar.messages.turns import Turn
from sidecar.text.positions import Range

NaturalTokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
PositiveTokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
TextOrList = str | list[str]
Strategy = Literal["drop", "summarize"]


class SessionParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Which conversation: without `session` the most recently updated one of the workspace."""

    workspace: str | None = None
    """The root folder's URI, any path inside a root, or the URI of an open document."""
    session: str | None = None


class SectionDocument(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An open document whose text is a section."""

    uri: str


class SectionSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A named section: `text`, or `textDocument` with or without `range`."""

    name: str
    text: str | None = None
    text_document: SectionDocument | None = None
    range: Range | None = None
    cap: NaturalTokens | None = None
    """Tokens that the section may take at most."""
    priority: int | None = None
    """Where sections must be shortened together, the lowest goes first (0)."""
    truncation: Truncation | None = None
    """Which part stays when it is cut to its cap: `middle` keeps both ends."""


class SetParams(SessionParams, frozen=True, kw_only=True):
    """Parts of a conversation to set; omitted members stay unchanged, null removes a part."""

    model: str | None = None
    system_prompt: str | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | UnsetType | None = UNSET
    """Schemas in OpenAI, Anthropic or Gemini form."""
    sections: list[SectionSpec] | UnsetType | None = UNSET
    """All of them: this list takes the place of the one before."""
    limit: PositiveTokens | UnsetType | None = UNSET
    """The window in tokens, where the client knows better."""
    reserve: NaturalTokens | UnsetType | None = UNSET
    """Tokens kept free for the reply."""
    persist: bool | None = None
    """Keep counts and ids (never text) across a restart of the server."""

    @property
    def is_choice(self) -> bool:
        """Whether a model is named for what is counted: for no session, and with nothing else."""
        return bool(self.model) and self == SetParams(workspace=self.workspace, model=self.model)


class AppendParams(SessionParams, frozen=True, kw_only=True):
    """Turns to add, in order; `usage` is the vendor's usage object for the last reply."""

    turns: list[Turn]
    usage: dict[str, Any] | None = None
    """Anchors the number; not billed here."""


class UsageParams(SessionParams, frozen=True, kw_only=True):
    """The session to report; the shown one by default."""


class SessionsParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The sessions to list: those of the last 24 hours, or all."""

    workspace: str | None = None
    all: bool = False


class SelectParams(SessionParams, frozen=True, kw_only=True):
    """The session to show until it ends; null selects one automatically again."""


class ResetParams(SessionParams, frozen=True, kw_only=True):
    """The conversation to reset."""


class UndoParams(SessionParams, frozen=True, kw_only=True):
    """The conversation whose last applied plan to undo."""


class FitParams(SessionParams, frozen=True, kw_only=True):
    """Request a pruning plan, or apply one."""

    max_tokens: NaturalTokens | None = None
    """Defaults to the usable window."""
    keep_turns: NaturalTokens | None = None
    """The last user turns that stay, each with its replies (the setting, 4)."""
    strategy: Strategy = "drop"
    apply: bool = False
    plan_id: str | None = None
    """Apply this plan, as it was shown."""


class AssembleParams(SessionParams, frozen=True, kw_only=True):
    """The parts of a request to assemble, and the keys that its cached context depends on."""

    preset: Literal["mind"] | None = None
    """Caps for the context's sections."""
    sensor: str | None = None
    assistant: str | None = None
    identity: str | None = None
    feedback: str | None = None
    tools: str | list[str | dict[str, Any]] | None = None
    context: str | None = None
    logs: str | None = None
    user: str | None = None
    mandates: TextOrList | None = None
    max_tokens: NaturalTokens | None = None
    """Defaults to the usable window."""
    focus: str | None = None
    scope: str | None = None
    memory_version: str | int | float | None = None


class ResponseParams(SessionParams, frozen=True, kw_only=True):
    """A model's unchanged reply: an object, or the events of a stream as an array or text."""

    response: dict[str, Any] | list[Any] | str
    model: str | None = None
    provider: str | None = None
    """Who served it; left out: as in `cost/record`."""
    category: str | None = None
    request_id: str | None = None
    format: ReplyFormat | None = None
    """Left out: recognised."""
    tools: list[dict[str, Any]] | None = None
    """Schemas that say which parameters a call needs; the session's by default."""


class PendingToolCall(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A tool call that the client is about to run."""

    name: str
    expected_tokens: NaturalTokens | None = None


class PreflightParams(SessionParams, frozen=True, kw_only=True):
    """A request to check before it is sent."""

    turns: list[Turn] | None = None
    text: str | None = None
    model: str | None = None
    max_output_tokens: NaturalTokens | None = None
    pending_tool_call: PendingToolCall | None = None
