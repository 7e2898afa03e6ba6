"""What pictures cost, by the vendors' published rules.

docs/reference/sources.md names the page of each and the day it was read. A rule that is published
for the model holds to the token; a model without one has the nearest, with a doubt that covers what
it may be off.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sidecar.models.families import counts_as_gemini_3
from sidecar.models.patterns import compiled

if TYPE_CHECKING:
    from sidecar.messages.images import Size

UNKNOWN_SIZE = (1024, 1024)
"""What a picture whose size is not known is taken for."""
_EXTREMES = ((256, 256), (3840, 2160))
"""Between these most pictures are."""


class Seen(NamedTuple):
    """Tokens of something that is no text, and how many of them may be wrong, either way."""

    tokens: int
    doubt: float = 0


class _Fit(NamedTuple):
    """What a picture is scaled down to before it is cut into patches of 32."""

    side: int
    patches: int | None = None


class _Patches(NamedTuple):
    factor: float
    low: _Fit
    high: _Fit
    original: _Fit | None = None
    auto: str = "high"


class _Tiles(NamedTuple):
    base: int
    tile: int


_SMALL, _WHOLE = _Fit(512), _Fit(65_535)
_HIGH, _ORIGINAL = _Fit(2048, 2_500), _Fit(6_000, 10_000)
_SAME = _Fit(2048, 6_144)
_FIRST = _Fit(2048, 1_536)
_GPT_5_6 = _Patches(1.2, _SMALL, _HIGH, _WHOLE, "original")
_GPT_6 = _GPT_5_6._replace(high=_Fit(65_535, 2_500))
_GPT_5_5 = _GPT_5_6._replace(original=_ORIGINAL)
_GPT_5_4 = _Patches(1.2, _SAME, _HIGH, _ORIGINAL)
_GPT_5_2 = _Patches(1.2, _SAME, _SAME)

_Rule: TypeAlias = "_Patches | _Tiles"
_OPENAI: tuple[tuple[str, _Rule, float], ...] = (
    # (pattern that the bare name begins with, rule, share that may be wrong)
    (r"gpt-6-astra", _GPT_6, 0.0),
    (r"gpt-5\.6", _GPT_5_6, 0.0),
    (r"gpt-5\.5", _GPT_5_5, 0.0),
    (r"gpt-5\.4", _GPT_5_4, 0.0),
    (r"gpt-5\.2(-pro)?(-20\d\d-\d\d-\d\d)?$", _GPT_5_2, 0.0),
    (r"gpt-5\.[23]", _GPT_5_2, 0.6),  # codex and chat: an earlier edition gave them 1,536 patches
    (r"gpt-5(\.\d)?(-codex)?-mini", _Patches(1.2, _FIRST, _FIRST), 0.35),
    (r"gpt-5(\.\d)?(-codex)?-nano", _Patches(1.5, _FIRST, _FIRST), 0.65),
    (r"gpt-4\.1-mini", _Patches(1.62, _SAME, _SAME), 0.0),
    (r"gpt-4\.1-nano", _Patches(2.46, _FIRST, _FIRST), 0.1),
    (r"o4-mini", _Patches(1.72, _FIRST, _FIRST), 0.1),
    (r"gpt-4o-mini", _Tiles(2833, 5667), 0.0),
    (r"gpt-5(\.1)?(-|$)", _Tiles(70, 140), 0.0),
    (r"o[13](-|$)", _Tiles(75, 150), 0.0),
    (r"computer-use", _Tiles(65, 129), 0.0),
    (r"(chat)?gpt-4(o|\.1|\.5)", _Tiles(85, 170), 0.0),
    (r"gpt-(5\.[7-9]|[6-9])|gpt-chat", _GPT_6, 0.35),  # not published: the newest that is
    (r"", _Tiles(85, 170), 2.0),  # makers that publish no rule: the one most servers imitate
)

_GEMINI_3 = {"low": 280, "medium": 560, "high": 1120, "ultra_high": 2240}
_GEMINI_2 = {"low": 64, "medium": 256}


def image_tokens(bare: str, generation: str, size: Size | None, detail: str = "auto") -> Seen:
    """What one picture costs a model. `detail`: OpenAI's, or Gemini's media resolution.

    Of an unknown size: what a square of 1024 costs, and a doubt that reaches from a picture of 256
    to one of 3840 x 2160.
    """
    if size is not None:
        return _sized(bare, generation, size, detail)
    seen = _sized(bare, generation, UNKNOWN_SIZE, detail)
    extremes = [_sized(bare, generation, one, detail).tokens for one in _EXTREMES]
    reach = max(abs(tokens - seen.tokens) for tokens in extremes)
    return Seen(seen.tokens, seen.doubt + reach)


def media_resolution(detail: str) -> str:
    """`high` of `MEDIA_RESOLUTION_HIGH` and of `media_resolution_high`; "" where it is unsaid."""
    name = detail.lower().removeprefix("media_resolution_")
    return "" if name in ("auto", "unspecified") else name


def _sized(bare: str, generation: str, size: Size, detail: str) -> Seen:
    width, height = (max(1, side) for side in size)
    if generation.startswith("claude"):
        edge, most = (2576, 4784) if generation == "claude-4.7" else (1568, 1568)
        return Seen(_anthropic(width, height, edge, most))
    if generation == "gemma":
        return _gemini(bare, width, height, detail)
    rule, share = next((rule, share) for row, rule, share in _OPENAI if compiled(row).match(bare))
    if isinstance(rule, _Patches):
        tokens = _patched(width, height, rule, detail)
    else:
        tokens = rule.base if detail == "low" else _tiles(width, height, rule)
    return Seen(tokens, math.ceil(share * tokens))


def _tiles(width: int, height: int, rule: _Tiles) -> int:
    """Within 2048 a side, the short side down to 768, then tiles of 512."""
    shrink = min(1.0, 2048 / max(width, height))
    shrink *= min(1.0, 768 / (min(width, height) * shrink))
    across = math.ceil(round(width * shrink, 6) / 512)
    down = math.ceil(round(height * shrink, 6) / 512)
    return rule.base + rule.tile * across * down


def _patched(width: int, height: int, rule: _Patches, detail: str) -> int:
    """Fitted as the detail says, cut into patches of 32, and multiplied."""
    wanted = rule.auto if detail not in ("low", "high", "original") else detail
    fit = {"low": rule.low, "original": rule.original or rule.high}.get(wanted, rule.high)
    shrink = min(1.0, fit.side / max(width, height))
    width, height = max(1, round(width * shrink)), max(1, round(height * shrink))
    if fit.patches is not None and _patches(width, height) > fit.patches:
        width, height = _within(width, height, fit.patches)
    return math.ceil(_patches(width, height) * rule.factor)


def _patches(width: int, height: int) -> int:
    return math.ceil(width / 32) * math.ceil(height / 32)


def _within(width: int, height: int, patches: int) -> Size:
    """Scaled down to a budget of patches, so that whole patches cover what is left."""
    shrink = math.sqrt(32 * 32 * patches / (width * height))
    across, down = width * shrink / 32, height * shrink / 32
    whole = [math.floor(side) / side for side in (across, down) if side >= 1]
    shrink *= min(whole, default=1.0)
    # The product may miss a whole number by the last bit of a float.
    return max(1, int(width * shrink + 1e-6)), max(1, int(height * shrink + 1e-6))


@lru_cache(maxsize=512)
def _anthropic(width: int, height: int, edge: int, most: int) -> int:
    """Patches of 28 of the largest size that keeps its shape within an edge and a budget."""
    long_side = max(width, height)

    def cost(longest: int) -> int:
        sides = (max(1, round(side * longest / long_side)) for side in (width, height))
        across, down = (math.ceil(side / 28) for side in sides)
        return across * down

    smallest, largest = 1, min(long_side, edge)
    while smallest < largest:
        middle = (smallest + largest + 1) // 2
        smallest, largest = (middle, largest) if cost(middle) <= most else (smallest, middle - 1)
    return cost(smallest)


def _gemini(bare: str, width: int, height: int, detail: str) -> Seen:
    """Since 3 by the media resolution, which says the most; before 258 for each tile."""
    resolution = media_resolution(detail)
    if counts_as_gemini_3(bare):
        most = _GEMINI_3.get(resolution, 1120)
        return Seen(most, math.ceil(most / 10))
    if resolution in _GEMINI_2:
        return Seen(_GEMINI_2[resolution], 2)
    if max(width, height) <= 384:
        return Seen(258)
    unit = max(1, math.floor(min(width, height) / 1.5))
    tokens = 258 * math.ceil(width / unit) * math.ceil(height / unit)
    return Seen(tokens, tokens // 2)  # the page calls its formula rough
