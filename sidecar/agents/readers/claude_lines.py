"""The lines of Claude Code's transcripts of which something is read."""

from __future__ import annotations

from sidecar import typed
from sidecar.agents.fields import CamelRecord, Record, TokenCount
from sidecar.agents.values import Reading
from sidecar.messages.billing import normal_tier, place_of
from sidecar.messages.usage import Usage, disjoint

_SYNTHETIC = "<synthetic>"


class _Split(Record):
    ephemeral_5m_input_tokens: TokenCount = None
    ephemeral_1h_input_tokens: TokenCount = None


class _Searches(Record):
    web_search_requests: TokenCount = None


_NO_SPLIT = _Split()


class PartUsage(Record):
    """Tokens of one call: of a message, or of one iteration of it."""

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
        """Web searches that the vendor made, and bills apart."""
        return (self.server_tool_use and self.server_tool_use.web_search_requests) or 0


class ClaudeMessage(Record):
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: MessageUsage | None = None


class TranscriptLine(CamelRecord):
    """A line of a transcript."""

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
    message: ClaudeMessage | None = None

    @property
    def ends_turn(self) -> bool:
        """Whether the agent has nothing more to do after this line of a conversation."""
        if self.type != "assistant" or self.message is None:
            return False
        return self.call is None or self.message.stop_reason == "end_turn"

    @property
    def call(self) -> tuple[ClaudeMessage, MessageUsage] | None:
        """The message and usage of a model's reply; None for all else."""
        message = self.message
        if self.type != "assistant" or message is None or message.usage is None:
            return None
        return None if message.model == _SYNTHETIC else (message, message.usage)


decode = typed.decoder(TranscriptLine)


def reading_of(message: ClaudeMessage, usage: MessageUsage) -> Reading:
    """What the last call of a message sent and got; its numbers are the sums of its calls."""
    calls = [part for part in usage.iterations or () if part.type in (None, "message")]
    last = calls[-1] if len(calls) > 1 else usage
    numbers = usage_of(last)
    return Reading(numbers.prompt_tokens, numbers.output_tokens, message.model)


def usage_of(part: PartUsage) -> Usage:
    split = part.cache_creation or _NO_SPLIT
    hour = split.ephemeral_1h_input_tokens or 0
    written = max(
        part.cache_creation_input_tokens or 0, hour + (split.ephemeral_5m_input_tokens or 0)
    )
    fresh, read, output = part.input_tokens, part.cache_read_input_tokens, part.output_tokens
    return disjoint(fresh or 0, read or 0, written, hour, output or 0, 0)


def sum_of(parts: list[PartUsage]) -> Usage:
    each = [usage_of(part) for part in parts]
    return disjoint(
        sum(one.input_tokens for one in each),
        sum(one.cache_read_tokens for one in each),
        sum(one.cache_write_tokens for one in each),
        sum(one.cache_write_1h_tokens for one in each),
        sum(one.output_tokens for one in each),
        0,
    )


def five_minutes(numbers: Usage, usage: MessageUsage) -> int:
    """Of the cache writes those that live five minutes; the rest's time to live is not given."""
    split = (usage.cache_creation or _NO_SPLIT).ephemeral_5m_input_tokens or 0
    return min(split, numbers.cache_write_tokens - numbers.cache_write_1h_tokens)


def tier_of(usage: MessageUsage) -> str:
    """Fast mode has prices of its own, as a service tier has; so has a place it is confined to."""
    tier = normal_tier(usage.speed) or normal_tier(usage.service_tier)
    return tier + place_of(usage.inference_geo)
