"""The lines of Claude Code's transcripts."""

from __future__ import annotations

import msgspec

from sidecar import typed
from sidecar.agents.contents import Block, ContentKind, ContextContents
from sidecar.agents.fields import CamelRecord, Number, Record, TokenCount
from sidecar.agents.values import CallSize
from sidecar.messages.billing import normal_tier, region_suffix
from sidecar.messages.usage import Usage, usage_from_parts

_SYNTHETIC = "<synthetic>"
_MARKED_SINCE = (2, 1, 300)
_UNFINISHED = (None, "tool_use", "pause_turn")
"""Stop reasons after which the agent continues."""
TITLES = ("custom_title", "ai_title", "summary")
"""Fields with a title, in order of preference: the user's, the agent's, a summary."""


class _Split(Record):
    ephemeral_5m_input_tokens: TokenCount = None
    ephemeral_1h_input_tokens: TokenCount = None


class _Searches(Record):
    web_search_requests: TokenCount = None


_NO_SPLIT = _Split()


class PartUsage(Record):
    """Tokens of a call: of a message or of one of its iterations."""

    type: str | None = None
    model: str | None = None
    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cache_creation_input_tokens: TokenCount = None
    cache_read_input_tokens: TokenCount = None
    cache_creation: _Split | None = None


class MessageUsage(PartUsage):
    service_tier: str | None = None
    speed: str | None = None
    inference_geo: str | None = None
    server_tool_use: _Searches | None = None
    iterations: list[PartUsage] | None = None

    @property
    def searches(self) -> int:
        """Number of web searches, which are billed separately."""
        return (self.server_tool_use and self.server_tool_use.web_search_requests) or 0


class ClaudeMessage(Record):
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: MessageUsage | None = None


class _CompactMetadata(CamelRecord):
    post_tokens: TokenCount = None
    """Claude Code's estimate of the context size after a compaction."""


class ModelUsage(CamelRecord):
    """A model's usage in a session, including sub-agents and compactions."""

    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cache_read_input_tokens: TokenCount = None
    cache_creation_input_tokens: TokenCount = None
    cache_creation_ephemeral_1h_input_tokens: TokenCount = msgspec.field(
        default=None, name="cacheCreationEphemeral1hInputTokens"
    )
    cost_usd: Number = msgspec.field(default=None, name="costUSD")

    @property
    def parts(self) -> ModelParts:
        return (
            self.input_tokens or 0,
            self.cache_read_input_tokens or 0,
            self.cache_creation_input_tokens or 0,
            self.cache_creation_ephemeral_1h_input_tokens or 0,
            self.output_tokens or 0,
        )


ModelParts = tuple[int, int, int, int, int]
"""Uncached input, cache reads, cache writes, one-hour cache writes among them, and output."""


class TranscriptLine(CamelRecord):
    type: str | None = None
    subtype: str | None = None
    uuid: str | None = None
    timestamp: str | None = None
    session_id: str | None = None
    session_kind: str | None = None
    request_id: str | None = None
    cwd: str | None = None
    is_sidechain: bool | None = None
    is_compact_summary: bool | None = None
    is_api_error_message: bool | None = None
    custom_title: str | None = None
    ai_title: str | None = None
    summary: str | None = None
    version: str | None = None
    is_meta: bool | None = None
    prompt_source: msgspec.Raw = msgspec.Raw(b"")
    turn_position: msgspec.Raw = msgspec.Raw(b"")
    tool_use_result: msgspec.Raw = msgspec.Raw(b"")
    compact_metadata: _CompactMetadata | None = None
    model_usage: dict[str, ModelUsage] | None = None
    """Usage by model, in a `cost-state` line."""
    message: ClaudeMessage | None = None

    @property
    def starts_turn(self) -> bool:
        """Whether this is a prompt or a tool result."""
        if self.is_meta:
            return False
        marks = (self.prompt_source, self.turn_position, self.tool_use_result)
        return any(map(bytes, marks)) or not _marks_prompts(self.version)

    @property
    def ends_turn(self) -> bool:
        """Whether the agent is idle after this line."""
        if self.type != "assistant" or self.message is None:
            return self.type == "user" and not self.starts_turn
        return self.call is None or self.message.stop_reason not in _UNFINISHED

    @property
    def title_kind(self) -> str | None:
        """The field in `TITLES` that the line sets, if any."""
        if self.custom_title:
            return "custom_title"
        return "ai_title" if self.ai_title else "summary" if self.summary else None

    @property
    def title(self) -> str | None:
        return self.custom_title or self.ai_title or self.summary

    @property
    def call(self) -> tuple[ClaudeMessage, MessageUsage] | None:
        """The message and usage of a model's reply, or None for other lines."""
        message = self.message
        if self.type != "assistant" or message is None or message.usage is None:
            return None
        return None if message.model == _SYNTHETIC else (message, message.usage)


decode = typed.decoder(TranscriptLine)


def _marks_prompts(version: str | None) -> bool:
    try:
        numbers = tuple(map(int, (version or "").split(".")))
    except ValueError:
        return False
    return numbers >= _MARKED_SINCE


def reading_of(message: ClaudeMessage, usage: MessageUsage) -> CallSize:
    """Return the size of a message's last call. The message itself contains sums of calls."""
    calls = [part for part in usage.iterations or () if part.type in (None, "message")]
    last = calls[-1] if len(calls) > 1 else usage
    numbers = usage_of(last)
    return CallSize(numbers.prompt_tokens, numbers.output_tokens, message.model)


def usage_of(part: PartUsage) -> Usage:
    split = part.cache_creation or _NO_SPLIT
    hour = split.ephemeral_1h_input_tokens or 0
    written = max(
        part.cache_creation_input_tokens or 0, hour + (split.ephemeral_5m_input_tokens or 0)
    )
    fresh, read, output = part.input_tokens, part.cache_read_input_tokens, part.output_tokens
    return usage_from_parts(fresh or 0, read or 0, written, hour, output or 0, 0)


def sum_of(parts: list[PartUsage]) -> Usage:
    each = [usage_of(part) for part in parts]
    return usage_from_parts(
        sum(one.input_tokens for one in each),
        sum(one.cache_read_tokens for one in each),
        sum(one.cache_write_tokens for one in each),
        sum(one.cache_write_1h_tokens for one in each),
        sum(one.output_tokens for one in each),
        0,
    )


def five_minutes(numbers: Usage, usage: MessageUsage) -> int:
    """Return the cache writes that live for five minutes."""
    split = (usage.cache_creation or _NO_SPLIT).ephemeral_5m_input_tokens or 0
    return min(split, numbers.cache_write_tokens - numbers.cache_write_1h_tokens)


def tier_of(usage: MessageUsage) -> str:
    """Return the service tier. Fast mode and regional inference have their own prices."""
    tier = normal_tier(usage.speed) or normal_tier(usage.service_tier)
    return tier + region_suffix(usage.inference_geo)


class _ContentMessage(ClaudeMessage):
    content: msgspec.Raw = msgspec.Raw(b"")


class _ContentLine(CamelRecord):
    type: str | None = None
    subtype: str | None = None
    is_sidechain: bool | None = None
    is_compact_summary: bool | None = None
    is_meta: bool | None = None
    attachment: msgspec.Raw = msgspec.Raw(b"")
    message: _ContentMessage | None = None


decode_content_line = typed.decoder(_ContentLine)
_decode_blocks = typed.decoder(list[Block])


def add_content_line(line: _ContentLine, contents: ContextContents, tools: dict[str, str]) -> None:
    """Add the parts of a line. `tools` collects the names of called tools by the call's id."""
    if line.is_sidechain:
        return
    if line.subtype == "compact_boundary" or line.is_compact_summary:
        contents.compact()
    if line.type == "attachment":
        contents.add("instructions", len(line.attachment))
    if line.message is None or line.type not in ("user", "assistant"):
        return
    if line.type == "assistant" and line.message.usage is not None:
        contents.add_call(reading_of(line.message, line.message.usage).prompt)
    own: ContentKind = "instructions" if line.is_meta else "user"
    text: ContentKind = "assistant" if line.type == "assistant" else own
    raw = bytes(line.message.content)
    if not raw.startswith(b"["):
        contents.add(text, len(raw))
        return
    for block in _decode_blocks(raw):
        _add_block(block, text, contents, tools)


def _add_block(
    block: Block, text: ContentKind, contents: ContextContents, tools: dict[str, str]
) -> None:
    if block.type == "tool_use":
        tools[block.id or ""] = block.name or ""
        contents.add("call", len(block.input), block.name or "")
    elif block.type == "tool_result":
        contents.add("result", len(block.content), tools.get(block.tool_use_id or "", ""))
    elif block.type in ("image", "document"):
        contents.add("attachment", 0)
    else:
        contents.add(text, len(block.text) + len(block.thinking))
