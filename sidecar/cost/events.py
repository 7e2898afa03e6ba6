"""One model call as the ledger keeps it: counts, ids, a model and a time. Never text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from sidecar.endpoints.usage import Usage

PROTOCOL = "protocol"
"""The `agent` of what a client reported by protocol; a coding agent's events bear its name."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 253_402_300_800_000  # the year 10000
_MOST_TOKENS = 10**12
LONGEST_ID = 512
_STANDARD_TIERS = frozenset({"", "standard", "default", "auto", "on_demand", "standard_only"})


class Buckets(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one call, or of many, in parts that do not overlap."""

    input: int = 0
    """Input that no prompt cache read or wrote."""
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_write: int = 0
    """Cache writes whose time to live the vendor did not say."""
    output: int = 0
    """Output without reasoning."""
    reasoning: int = 0
    web_searches: int = 0
    """Searches, not tokens: vendors bill them apart."""

    @property
    def cache_writes(self) -> int:
        """Cache writes of every time to live."""
        return self.cache_write_5m + self.cache_write_1h + self.cache_write

    @property
    def prompt(self) -> int:
        """All input."""
        return self.input + self.cache_read + self.cache_writes

    @property
    def completion(self) -> int:
        """All output, reasoning included."""
        return self.output + self.reasoning


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call of a model. `reported_cost` is the USD that the vendor itself named."""

    at: datetime
    model: str
    provider: str
    buckets: Buckets
    category: str = "main"
    tier: str = ""
    """Service tier, such as `batch`, `flex` or `priority`; "" is the standard one."""
    workspace: str = ""
    session: str = ""
    agent: str = PROTOCOL
    request_id: str | None = None
    """The vendor's own id: unique for a provider, across sessions and processes."""
    estimated_tokens: int | None = None
    """What the prompt was thought to hold before it was sent."""
    reported_cost: Decimal | None = None


def buckets_of(usage: Usage, raw: object = None) -> Buckets:
    """The disjoint buckets of a normalised usage.

    `raw` is the vendor's own object: only it says which cache writes live five minutes, and how
    many web searches were made.
    """
    hour = usage.cache_write_1h_tokens
    minutes = min(_five_minute_writes(raw), usage.cache_write_tokens - hour)
    return Buckets(
        input=usage.input_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write_5m=minutes,
        cache_write_1h=hour,
        cache_write=usage.cache_write_tokens - hour - minutes,
        output=usage.output_tokens - usage.reasoning_tokens,
        reasoning=usage.reasoning_tokens,
        web_searches=_count(_part(_usage_part(raw), "server_tool_use").get("web_search_requests")),
    )


def service_tier(raw: object) -> str:
    """The service tier that a vendor's usage or reply names; "" for the standard one.

    OpenAI, Anthropic and Groq say `service_tier`, Bedrock `serviceTier.type`; Anthropic's fast
    mode says `speed`.
    """
    if not isinstance(raw, Mapping):
        return ""
    for source in (raw, _usage_part(raw)):
        for name in (source.get("service_tier"), source.get("serviceTier"), source.get("speed")):
            tier = normal_tier(name.get("type") if isinstance(name, Mapping) else name)
            if tier:
                return tier
    return ""


def normal_tier(name: object) -> str:
    """A tier's name in lower case; the standard tier, by any of its names, is ""."""
    tier = name.strip().lower() if isinstance(name, str) else ""
    return "" if tier in _STANDARD_TIERS or len(tier) > LONGEST_ID else tier


def milliseconds(at: datetime) -> int:
    """Milliseconds since 1970, rounded down; a time without a zone is UTC.

    Raises ValueError for a time before 1970 or after 9999.
    """
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    since = aware - _EPOCH
    elapsed = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if not 0 <= elapsed < _LATEST_MS:
        raise ValueError(f"the time {at.isoformat()} is not between 1970 and 9999")
    return elapsed


def checked_numbers(event: Event) -> tuple[int, ...]:
    """The event's buckets, in their order. Raises ValueError where a number cannot be kept."""
    b = event.buckets
    numbers = (
        b.input, b.cache_read, b.cache_write_5m, b.cache_write_1h,
        b.cache_write, b.output, b.reasoning, b.web_searches,
    )  # fmt: skip
    estimated = event.estimated_tokens or 0
    if min(numbers) < 0 or max(numbers) > _MOST_TOKENS or not 0 <= estimated <= _MOST_TOKENS:
        raise ValueError(f"a number of tokens is not between 0 and {_MOST_TOKENS}")
    return numbers


def check_names(**names: str) -> None:
    """Raise ValueError where a name or id is too long to be one, or a model has none."""
    for field, name in names.items():
        if len(name) > LONGEST_ID:
            raise ValueError(f"{field} is longer than {LONGEST_ID} characters")
    if names.get("model") == "":
        raise ValueError("model is empty")


def _five_minute_writes(raw: object) -> int:
    usage = _usage_part(raw)
    tiers = _part(usage, "cache_creation") or _part(
        _part(usage, "prompt_tokens_details"), "cache_creation_token_details"
    )
    listed = usage.get("cacheDetails")  # Bedrock
    entries = listed if isinstance(listed, list) else []
    return _count(tiers.get("ephemeral_5m_input_tokens")) + sum(
        _count(entry.get("inputTokens"))
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("ttl") == "5m"
    )


def _usage_part(raw: object) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        return {}
    inner = _part(raw, "usage")
    return inner or _part(_part(raw, "message"), "usage") or raw


def _part(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
