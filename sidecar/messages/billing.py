"""What of a vendor's usage or reply decides its price, beside the tokens that `usage` reads."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from sidecar.messages.bounds import count_in
from sidecar.messages.usage import JsonObject, part, usages_in

_TICKS_PER_USD = Decimal(10**10)
_ABSURD_USD = Decimal(10**30)
"""Stands for all that is more: Decimal's arithmetic ends somewhere."""
_STANDARD_TIERS = frozenset({"", "standard", "default", "auto", "on_demand", "standard_only"})
_LONGEST_TIER = 256
_LONGEST_PLACE = 64
_ANYWHERE = frozenset({"global", "not_available"})


def reported_cost(obj: object) -> Decimal | None:
    """The USD that a reply, or its usage, itself says it cost; None where it does not.

    OpenRouter says `cost`, the fee alone where the key is one's own (`is_byok`): the upstream
    vendor's bill is added. LiteLLM says `response_cost`, xAI ticks of 1e-10 USD
    (docs.x.ai/developers/cost-tracking), Perplexity `cost.total_cost`.
    """
    if not isinstance(obj, Mapping):
        return None
    usage = part(obj, "usage") or obj
    cost = _decimal(part(usage, "cost").get("total_cost", usage.get("cost")))
    if cost is not None and usage.get("is_byok") is True:
        cost += _decimal(part(usage, "cost_details").get("upstream_inference_cost")) or Decimal(0)
    ticks = _decimal(usage.get("cost_in_usd_ticks"))
    if cost is None and ticks is not None:
        cost = ticks / _TICKS_PER_USD
    for holder in (obj, part(obj, "_hidden_params")):
        cost = cost if cost is not None else _decimal(holder.get("response_cost"))
    return cost


def service_tier(raw: object) -> str:
    """The service tier that a vendor's usage, reply or stream names; "" for the standard one.

    OpenAI, Anthropic and Groq say `service_tier`, Bedrock `serviceTier.type`; Anthropic's fast
    mode says `speed`, and where `inference_geo` confines a call to a place the tier ends in it:
    `@us`, `fast@us`.
    """
    named = [tiers for usage in usages_in(raw) if (tiers := _tiers(usage))]
    tier = next(filter(None, named[-1]), "") if named else ""
    places = (place_of(usage.get("inference_geo")) for usage in usages_in(raw))
    return tier + next(filter(None, places), "")


def _tiers(usage: JsonObject) -> list[str]:
    """The tiers that a usage names, the standard one as "". Of a stream the last word holds."""
    given = (usage.get("service_tier"), usage.get("serviceTier"), usage.get("speed"))
    names = [name.get("type") if isinstance(name, Mapping) else name for name in given]
    return [normal_tier(name) for name in names if isinstance(name, str)]


def place_of(geo: object) -> str:
    """`@us` where an Anthropic `inference_geo` confines a call; "" where it is global or unsaid."""
    place = geo.strip().lower() if isinstance(geo, str) else ""
    known = place and place not in _ANYWHERE and len(place) <= _LONGEST_PLACE
    return f"@{place}" if known else ""


def normal_tier(name: object) -> str:
    """A tier's name in lower case; the standard tier, by any of its names, is ""."""
    tier = name.strip().lower() if isinstance(name, str) else ""
    return "" if tier in _STANDARD_TIERS or len(tier) > _LONGEST_TIER else tier


def five_minute_writes(raw: object) -> int:
    """The tokens of cache writes that live five minutes."""
    usage = _usage(raw)
    tiers = part(usage, "cache_creation") or part(
        part(usage, "prompt_tokens_details"), "cache_creation_token_details"
    )
    listed = usage.get("cacheDetails")  # Bedrock
    entries = listed if isinstance(listed, list) else []
    return count_in(tiers.get("ephemeral_5m_input_tokens")) + sum(
        count_in(entry.get("inputTokens"))
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("ttl") == "5m"
    )


def _usage(raw: object) -> JsonObject:
    if not isinstance(raw, Mapping):
        return {}
    return part(raw, "usage") or part(part(raw, "message"), "usage") or raw


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        return None
    return min(cost, _ABSURD_USD) if cost.is_finite() and cost >= 0 else None
