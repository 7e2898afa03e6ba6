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
    """Names a conversation. Without `session`, the workspace's most recently updated one."""

    workspace: str | None = None
    """The root folder's URI, any path inside a root, or the URI of an open document."""
    session: str | None = None


class SectionDocument(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An open document whose text a section follows."""

    uri: str


class SectionSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A named section: `text`, or `textDocument` with an optional `range`."""

    name: str
    text: str | None = None
    text_document: SectionDocument | None = None
    range: Range | None = None
    cap: NaturalTokens | None = None
    """Maximum tokens of the section."""
    priority: int | None = None
    """If sections must be shortened together, the lowest goes first (default 0)."""
    truncation: Truncation | None = None
    """The part to keep when shortening; `middle` keeps both ends."""


class SetParams(SessionParams, frozen=True, kw_only=True):
    """The parts of a conversation besides its turns. Omitted parts are kept; null removes one."""

    model: str | None = None
    system_prompt: str | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | UnsetType | None = UNSET
    """Schemas in OpenAI, Anthropic or Gemini form."""
    sections: list[SectionSpec] | UnsetType | None = UNSET
    """Replaces all sections."""
    limit: PositiveTokens | UnsetType | None = UNSET
    """Context window in tokens, if the client knows better."""
    reserve: NaturalTokens | UnsetType | None = UNSET
    """Tokens kept free for the reply."""
    persist: bool | None = None
    """Save counts and ids (never text) across restarts of the server."""

    @property
    def is_choice(self) -> bool:
        """Whether only a model is given, to choose what documents are counted for."""
        return bool(self.model) and self == SetParams(workspace=self.workspace, model=self.model)


class AppendParams(SessionParams, frozen=True, kw_only=True):
    """Turns to add, in order, with the usage that the vendor reported for the reply."""

    turns: list[Turn]
    usage: dict[str, Any] | None = None
    """Improves the count; it is not billed."""


class UsageParams(SessionParams, frozen=True, kw_only=True):
    """Asks how full the context is."""

    contents: bool = False
    """Also return what fills an agent's context, which reads its session file."""


class SessionsParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Lists the sessions of the last 24 hours, or all."""

    workspace: str | None = None
    all: bool = False


class SelectParams(SessionParams, frozen=True, kw_only=True):
    """Shows a session until it ends; null selects automatically again."""


class ResetParams(SessionParams, frozen=True, kw_only=True):
    """Removes everything but the conversation's model."""


class UndoParams(SessionParams, frozen=True, kw_only=True):
    """Reverts the last applied plan."""


class FitParams(SessionParams, frozen=True, kw_only=True):
    """Asks for a plan that makes the conversation fit, or applies one."""

    max_tokens: NaturalTokens | None = None
    """Target size; the usable window by default."""
    keep_turns: NaturalTokens | None = None
    """How many of the last user turns to keep with their replies (default: the setting)."""
    strategy: Strategy = "drop"
    apply: bool = False
    plan_id: str | None = None
    """Id of a plan to apply."""


class AssembleParams(SessionParams, frozen=True, kw_only=True):
    """The parts of a request, and the keys that its context depends on."""

    preset: Literal["mind"] | None = None
    """Token limits for the context's sections."""
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
    """Size to fit; the usable window by default."""
    focus: str | None = None
    scope: str | None = None
    memory_version: str | int | float | None = None


class ResponseParams(SessionParams, frozen=True, kw_only=True):
    """A model's reply as sent by its vendor: an object, or the array or text of its stream."""

    response: dict[str, Any] | list[Any] | str
    model: str | None = None
    provider: str | None = None
    """The provider; default as in `cost/record`."""
    category: str | None = None
    request_id: str | None = None
    format: ReplyFormat | None = None
    """The reply's format; detected by default."""
    tools: list[dict[str, Any]] | None = None
    """Schemas that list required parameters; the session's by default."""


class PendingToolCall(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A tool call that is about to run."""

    name: str
    expected_tokens: NaturalTokens | None = None


class PreflightParams(SessionParams, frozen=True, kw_only=True):
    """A request that is about to be sent."""

    turns: list[Turn] | None = None
    text: str | None = None
    model: str | None = None
    max_output_tokens: NaturalTokens | None = None
    pending_tool_call: PendingToolCall | None = None
