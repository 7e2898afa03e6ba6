"""The fields of opencode's messages."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.events import CallFinished
from sidecar.agents.fields import Number, Record, parse_usd, time_from_ms, token_count
from sidecar.messages.usage import Usage, usage_from_parts

if TYPE_CHECKING:
    from sidecar.agents.contents import ContextContents


class _Cache(Record):
    read: Number = None
    write: Number = None


class _Tokens(Record):
    input: Number = None
    output: Number = None
    reasoning: Number = None
    """Reasoning tokens, which the output does not include. Nor does the input include cached
    tokens."""
    cache: _Cache | None = None

    @property
    def usage(self) -> Usage:
        cache, reasoning = self.cache or _Cache(), token_count(self.reasoning)
        output = token_count(self.output) + reasoning
        read, write = token_count(cache.read), token_count(cache.write)
        return usage_from_parts(token_count(self.input), read, write, 0, output, reasoning)


class _Time(Record):
    created: Number = None
    completed: Number = None


class _Model(Record):
    id: str | None = None
    provider_id: str | None = msgspec.field(default=None, name="providerID")


class MessagePath(Record):
    cwd: str | None = None


class OpenCodeMessage(Record):
    """The `data` of a message. `summary` is only decoded as true or false."""

    role: str | None = None
    session_id: str | None = msgspec.field(default=None, name="sessionID")
    model_id: str | None = msgspec.field(default=None, name="modelID")
    provider_id: str | None = msgspec.field(default=None, name="providerID")
    model: _Model | str | None = None
    tokens: _Tokens | None = None
    time: _Time | None = None
    path: MessagePath | None = None
    cost: Number = None
    """Cost from opencode's own price list, or 0 for a model without a price."""
    finish: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    summary: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def ends_turn(self) -> bool:
        """Whether the agent is idle after this message."""
        if self.role != "assistant" or bytes(self.error) != b"null":
            return self.role == "assistant"
        return bool(self.time and self.time.completed) and self.finish != "tool-calls"

    @property
    def is_summary(self) -> bool:
        return bytes(self.summary) == b"true"

    @property
    def named(self) -> tuple[str, str]:
        model = self.model if isinstance(self.model, _Model) else _Model()
        return self.model_id or model.id or "unknown", self.provider_id or model.provider_id or ""

    def call(self, agent: str, session: str, folder: str, child: bool) -> CallFinished | None:
        """Return the call of a finished message."""
        time = self.time or _Time()
        at = time_from_ms(time.created)
        if self.tokens is None or at is None or not time.completed:
            return None
        usage = self.tokens.usage
        model, provider = self.named
        kept = f"{int(time.created or 0)} {model} {msgspec.structs.astuple(usage)}"
        return CallFinished(
            at=at,
            agent=agent,
            session=session,
            model=model,
            provider=provider,
            usage=usage,
            request=blake2b(kept.encode(), digest_size=12).hexdigest(),
            workspace=folder,
            agent_cost_usd=parse_usd(self.cost),
            category="subagent" if child else "summary" if self.is_summary else "main",
        )


decode = typed.decoder(OpenCodeMessage)
"""Decode a message. Raises msgspec.DecodeError."""


class _ToolState(Record):
    input: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")


class _Part(Record):
    type: str | None = None
    tool: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"")
    state: _ToolState | None = None


_decode_part = typed.decoder(_Part)


def add_part(role: str | None, data: bytes, contents: ContextContents) -> None:
    """Add a part of a message. Raises msgspec.DecodeError."""
    part = _decode_part(data)
    if part.type == "compaction":
        contents.compact()
    elif part.type == "tool" and part.state is not None:
        contents.add("call", len(part.state.input), part.tool or "")
        contents.add("result", len(part.state.output), part.tool or "")
    elif part.type == "file":
        contents.add("attachment", 0)
    elif part.type in ("text", "reasoning"):
        contents.add("assistant" if role == "assistant" else "user", len(part.text))
