"""Model calls as stored in the ledger: counts, ids, models and times, but no text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from operator import add, sub
from typing import Literal, NamedTuple

import msgspec

from sidecar.cost.cache_losses import CacheLoss
from sidecar.errors import BadParamsError
from sidecar.messages.vendor_usage import (
    FIRST_YEAR,
    LAST_YEAR,
    LONGEST_ID,
    MOST_TOKENS,
    MOST_USD,
    Modalities,
    Usage,
    count_searches,
    five_minute_writes,
    read_modality_tokens,
)
from sidecar.models.names import counts_as_gemini_3, parse

PROTOCOL = "protocol"
"""The `agent` of calls that were reported by a client."""

_SURROGATES = re.compile("[\ud800-\udfff]")


LOST_FROM = ("cache_write_1h", "cache_write_5m", "cache_write", "input")
"""The buckets in which the tokens of a lost cache are billed, in the order of a prompt."""


class Buckets(msgspec.Struct, frozen=True, gc=False):
    """The tokens of one or more calls by category. Tokens in media fields are also included in
    other fields.
    """

    input: int = 0
    """Uncached input tokens."""
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_write: int = 0
    """Tokens written to a cache with an unknown lifetime."""
    output: int = 0
    """Output tokens, excluding reasoning."""
    reasoning: int = 0
    web_searches: int = 0
    """Number of web searches, which are billed separately."""
    file_searches: int = 0
    """Number of searches in stored files, which are billed separately."""
    audio_input: int = 0
    """The audio tokens in `input`. Likewise, `audio_cache_read` counts the audio tokens in
    `cache_read`, and so on for each media field.
    """
    audio_cache_read: int = 0
    audio_output: int = 0
    image_input: int = 0
    image_cache_read: int = 0
    image_output: int = 0
    video_input: int = 0
    other_tools: int = 0
    """Number of calls of vendor tools that have no list price, such as the code interpreter."""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Buckets:
        """Return buckets with the given numbers, in field order."""
        return cls(*numbers)

    def __add__(self, other: Buckets) -> Buckets:
        return Buckets.of(map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def __sub__(self, other: Buckets) -> Buckets:
        return Buckets.of(map(sub, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def with_cached(self, tokens: int) -> Buckets:
        """Return buckets in which this many more tokens were read from the cache.

        They are taken from the buckets `LOST_FROM`, in order.
        """
        numbers = {"cache_read": self.cache_read + tokens}
        for name in LOST_FROM:
            taken = min(tokens, getattr(self, name))
            numbers[name] = getattr(self, name) - taken
            tokens -= taken
        numbers["cache_read"] -= tokens
        return msgspec.structs.replace(self, **numbers)

    @property
    def cache_writes(self) -> int:
        return self.cache_write_5m + self.cache_write_1h + self.cache_write

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_writes

    @property
    def completion(self) -> int:
        """All output tokens, including reasoning."""
        return self.output + self.reasoning


Basis = Literal["reported", "agent", "list", "own", "derived"]
"""Where a cost comes from: the vendor, the agent, the price list or the user's `[[price]]`.

`derived` is a list price of a service tier that was derived from the standard price.
"""


class Cost(NamedTuple):
    """The cost of calls, and how much of their usage has no price."""

    usd: Decimal | None
    """The cost in USD of everything with a price, or None if nothing has a price."""
    unpriced_tokens: int = 0
    whole: bool = True
    """Whether all tokens and searches have a price."""
    basis: Basis | None = None
    """None if nothing has a price, and for the sum of several costs."""
    listed: Decimal | None = None
    """The list price of a call with a reported cost, or None if unknown."""
    lost: Decimal | None = None
    """What the tokens that a lost cache made the agent send again cost more than a cache read, in
    USD at list prices. None if no cache was lost, or if the price is unknown.
    """


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A model call.

    `reported_cost` is the cost in USD that the vendor reported. `agent_cost` is the cost in USD
    that the agent computed from its price list. The agent's cost is used only if the vendor
    reported no cost and the model has no known price.
    """

    at: datetime
    model: str
    provider: str
    buckets: Buckets
    category: str = "main"
    tier: str = ""
    """The service tier, such as `batch`, `flex` or `priority`; empty for the standard tier."""
    workspace: str = ""
    branch: str = ""
    """The git branch that was checked out in the workspace, or an empty string if unknown."""
    session: str = ""
    agent: str = PROTOCOL
    request_id: str | None = None
    """The id that the vendor gave to the call.

    If an agent made the call, the id is unique among this agent's calls. Otherwise, it is unique
    among the calls to the provider.
    """
    telemetry_id: str | None = None
    """The call's id in the agent's OpenTelemetry export, if known."""
    estimated_tokens: int | None = None
    """The prompt size that was estimated before the call was sent."""
    reported_cost: Decimal | None = None
    agent_cost: Decimal | None = None
    rank: int | None = None
    """Decides which of several sessions with this call owns it: the one with the lowest rank.

    None if a client reported the call.
    """
    loss: CacheLoss | None = None
    """Whether the call lost its cache, or None if that is unknown."""
    cost: Cost | None = None
    """The call's cost, or None if the call has not been priced yet. The ledger sets it."""


def buckets_of(usage: Usage, raw: object = None, model: str = "") -> Buckets:
    """Split a call's usage into buckets.

    Args:
        usage: The normalized usage.
        raw: The vendor's usage object. It contains cache lifetimes, searches and media tokens.
        model: The model that generated the reply.
    """
    found = count_searches(raw, by_query=counts_as_gemini_3(parse(model).bare))
    output = usage.output_tokens - usage.reasoning_tokens
    return split(
        usage,
        five_minute_writes(raw),
        web_searches=found.web,
        file_searches=found.files,
        other_tools=found.others,
        **_media_buckets(
            read_modality_tokens(raw), usage.input_tokens, usage.cache_read_tokens, output
        ),
    )


def split(usage: Usage, five_minutes: int = 0, **others: int) -> Buckets:
    """Split a normalized usage into buckets.

    Args:
        usage: The normalized usage.
        five_minutes: Tokens written to a cache that expires after five minutes.
        **others: Buckets that a normalized usage does not contain.
    """
    hour = usage.cache_write_1h_tokens
    minutes = min(five_minutes, usage.cache_write_tokens - hour)
    return Buckets(
        input=usage.input_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write_5m=minutes,
        cache_write_1h=hour,
        cache_write=usage.cache_write_tokens - hour - minutes,
        output=usage.output_tokens - usage.reasoning_tokens,
        reasoning=usage.reasoning_tokens,
        **others,
    )


def _media_buckets(found: Modalities, fresh: int, read: int, output: int) -> dict[str, int]:
    """Return the media buckets, limited to the size of the buckets that contain them.

    Media input tokens that exceed the uncached input are assumed to be cached.
    """
    audio, image = min(found.audio_input, fresh), min(found.image_input, fresh)
    audio_read = found.audio_cache_read + found.audio_input - audio
    image = min(image, fresh - audio)
    image_read = found.image_cache_read + found.image_input - image
    audio_read = min(audio_read, read)
    audio_output = min(found.audio_output, output)
    return {
        "audio_input": audio,
        "audio_cache_read": audio_read,
        "audio_output": audio_output,
        "image_input": image,
        "image_cache_read": min(image_read, read - audio_read),
        "image_output": min(found.image_output, output - audio_output),
        "video_input": min(found.video_input, fresh - audio - image),
    }


def checked_numbers(event: LedgerEvent) -> tuple[int, ...]:
    """Check the token counts, costs and time of an event, and return its buckets as a tuple.

    Raises:
        BadParamsError: A value is out of range.
    """
    numbers: tuple[int, ...] = msgspec.structs.astuple(event.buckets)
    estimated = event.estimated_tokens or 0
    if min(numbers) < 0 or max(numbers) > MOST_TOKENS or not 0 <= estimated <= MOST_TOKENS:
        raise BadParamsError(f"a token count is not between 0 and {MOST_TOKENS:,}")
    for cost in (event.reported_cost, event.agent_cost):
        if cost is not None and not (cost.is_finite() and 0 <= cost <= MOST_USD):
            raise BadParamsError(f"a cost is not between 0 and {MOST_USD:,} USD")
    if not FIRST_YEAR <= event.at.year <= LAST_YEAR:
        raise BadParamsError(
            f"the year {event.at.year} is not between {FIRST_YEAR} and {LAST_YEAR}"
        )
    return numbers


def check_names(**names: str) -> None:
    """Check that names are valid and not too long, and that `model` is not empty.

    Raises:
        BadParamsError: A name is invalid.
    """
    for field, name in names.items():
        if len(name) > LONGEST_ID:
            raise BadParamsError(f"{field} is longer than {LONGEST_ID} characters")
        if not name.isascii() and _SURROGATES.search(name):  # UTF-8 cannot encode surrogates.
            raise BadParamsError(f"{field} contains a lone surrogate")
    if names.get("model") == "":
        raise BadParamsError("model is empty")
