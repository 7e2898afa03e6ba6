"""One model call as the ledger keeps it: counts, ids, a model and a time. Never text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from sidecar.errors import BadParamsError
from sidecar.messages.billing import five_minute_writes
from sidecar.messages.bounds import FIRST_YEAR, LAST_YEAR, LONGEST_ID, MOST_TOKENS, MOST_USD
from sidecar.messages.modalities import Modalities, modalities
from sidecar.messages.searches import searches
from sidecar.models.families import counts_as_gemini_3
from sidecar.models.names import parse

if TYPE_CHECKING:
    from sidecar.messages.usage import Usage

PROTOCOL = "protocol"
"""The `agent` of what a client reported by protocol; a coding agent's events bear its name."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SURROGATES = re.compile("[\ud800-\udfff]")
_LATEST_MS = 253_402_300_800_000  # the year 10000


class Buckets(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one call, or of many, in parts that do not overlap; and parts of these parts."""

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
    file_searches: int = 0
    """Searches in stored files, likewise."""
    audio_input: int = 0
    """The part of `input` that is audio; those below are parts likewise."""
    audio_cache_read: int = 0
    audio_output: int = 0
    image_input: int = 0
    image_cache_read: int = 0
    image_output: int = 0
    video_input: int = 0
    other_tools: int = 0
    """Uses of a vendor's tools that no list prices, such as its code interpreter."""

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


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call of a model.

    `reported_cost` is the USD that the vendor itself named. `agent_cost` is the figure of the agent
    that made the call, by a list of its own: it stands in where ours has no price.
    """

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
    agent_cost: Decimal | None = None


def buckets_of(usage: Usage, raw: object = None, model: str = "") -> Buckets:
    """The disjoint buckets of a normalised usage.

    `raw` is the vendor's own object: only it says which cache writes live five minutes, how many
    searches were made, and what is audio or pictures. `model`: what answered.
    """
    found = searches(raw, by_query=counts_as_gemini_3(parse(model).bare))
    output = usage.output_tokens - usage.reasoning_tokens
    return split(
        usage,
        five_minute_writes(raw),
        web_searches=found.web,
        file_searches=found.files,
        other_tools=found.others,
        **_media(modalities(raw), usage.input_tokens, usage.cache_read_tokens, output),
    )


def split(usage: Usage, five_minutes: int, **others: int) -> Buckets:
    """The buckets of a usage. `five_minutes`: of its cache writes, those that live so long.

    `others`: buckets of which a usage does not speak.
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


def _media(found: Modalities, fresh: int, read: int, output: int) -> dict[str, int]:
    """The parts that are not text, none greater than what it is a part of.

    Where a vendor does not say what of the audio or pictures a cache read, that is what fresh input
    has no place for.
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


def milliseconds(at: datetime) -> int:
    """Milliseconds since 1970, rounded down; a time without a zone is UTC.

    Raises BadParamsError for a time before 1970 or after 9999.
    """
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    since = aware - _EPOCH
    elapsed = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if not 0 <= elapsed < _LATEST_MS:
        raise BadParamsError(f"the time {at.isoformat()} is not between 1970 and 9999")
    return elapsed


def checked_numbers(event: LedgerEvent) -> tuple[int, ...]:
    """The event's buckets, in their order. Raises BadParamsError where a number cannot be kept."""
    numbers: tuple[int, ...] = msgspec.structs.astuple(event.buckets)
    estimated = event.estimated_tokens or 0
    if min(numbers) < 0 or max(numbers) > MOST_TOKENS or not 0 <= estimated <= MOST_TOKENS:
        raise BadParamsError(f"a number of tokens is not between 0 and {MOST_TOKENS:,}")
    for cost in (event.reported_cost, event.agent_cost):
        if cost is not None and not (cost.is_finite() and 0 <= cost <= MOST_USD):
            raise BadParamsError(f"a cost is not between 0 and {MOST_USD:,} USD")
    if not FIRST_YEAR <= event.at.year <= LAST_YEAR:
        raise BadParamsError(
            f"the year {event.at.year} is not between {FIRST_YEAR} and {LAST_YEAR}"
        )
    return numbers


def check_event(event: LedgerEvent) -> None:
    """Raise BadParamsError for an event that the ledger cannot keep."""
    checked_numbers(event)
    check_names(
        workspace=event.workspace,
        session=event.session,
        agent=event.agent,
        provider=event.provider,
        model=event.model,
        category=event.category,
        tier=event.tier,
        requestId=event.request_id or "",
    )


def check_names(**names: str) -> None:
    """Raise BadParamsError where a name or id is too long to be one, or a model has none."""
    for field, name in names.items():
        if len(name) > LONGEST_ID:
            raise BadParamsError(f"{field} is longer than {LONGEST_ID} characters")
        if _SURROGATES.search(name):  # no database takes them
            raise BadParamsError(f"{field} holds half a character")
    if names.get("model") == "":
        raise BadParamsError("model is empty")
