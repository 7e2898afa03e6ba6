"""Computes the tokens of pictures, audio, video and files according to the rules that vendors
publish.

docs/reference/sources.md lists the web page of each rule, and the date on which the page was read.
A rule that is published for the model is exact. For other models, the most similar rule is used,
with a margin that covers the possible error. If the length of a file or clip is unknown, a length
is assumed, with a wide margin.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar import typed
from sidecar.models.names import OPENAI_GENERATIONS, compiled, counts_as_gemini_3

if TYPE_CHECKING:
    from sidecar.messages.media import Clip, Size

UNKNOWN_SIZE = (1024, 1024)
"""Assumed width and height of pictures of unknown size."""
_EXTREMES = ((256, 256), (3840, 2160))
"""A small and a large size, in pixels. Most picture sizes lie between them."""
LARGEST_WINDOW = 2_097_152
"""The largest context window of any model with a rule in this module, in tokens. If a picture or
clip seems to have more tokens, its header is damaged.
"""


class UncertainTokens(NamedTuple):
    """A number of tokens, with a margin of error in tokens."""

    tokens: int
    margin: float = 0


class _Fit(NamedTuple):
    side: int
    patches: int | None = None


class _Patches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    factor: float
    low: _Fit
    high: _Fit
    original: _Fit | None = None
    auto: str = "high"


class _Tiles(NamedTuple):
    base: int
    tile: int


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule in `pictures.toml`, which has either patches or tiles."""

    models: str
    patches: _Patches | None = None
    tiles: _Tiles = _Tiles(0, 0)
    margin: float = 0.0


@cache
def _rules() -> list[_Rule]:
    table = typed.read_table("sidecar.counting", "pictures.toml", dict[str, list[_Rule]])
    return table["picture"]


_GEMINI_3 = {"low": 280, "medium": 560, "high": 1120, "ultra_high": 2240}
_GEMINI_2 = {"low": 64, "medium": 256}


def image_tokens(
    bare: str, generation: str, size: Size | None, detail: str = "auto"
) -> UncertainTokens:
    """Return the number of tokens in a picture.

    If the size is unknown, 1024 x 1024 pixels are assumed, with a margin that covers sizes from 256
    x 256 to 3840 x 2160.

    Args:
        bare: The model's name without the provider.
        generation: The model's tokenizer generation.
        size: The picture's width and height, if known.
        detail: OpenAI's image detail, or Gemini's media resolution.
    """
    if size is not None:
        return _sized_image_tokens(bare, generation, size, detail)
    assumed = _sized_image_tokens(bare, generation, UNKNOWN_SIZE, detail)
    extremes = [
        _sized_image_tokens(bare, generation, extreme, detail).tokens for extreme in _EXTREMES
    ]
    deviation = max(abs(tokens - assumed.tokens) for tokens in extremes)
    return UncertainTokens(assumed.tokens, assumed.margin + deviation)


def media_resolution(detail: str) -> str:
    """Return the short form of Gemini's media resolution, such as `high`, or "" if it is
    unspecified.
    """
    name = detail.lower().removeprefix("media_resolution_")
    return "" if name in ("auto", "unspecified") else name


def _sized_image_tokens(bare: str, generation: str, size: Size, detail: str) -> UncertainTokens:
    return _within_window(_picture_tokens(bare, generation, size, detail))


def _within_window(counted: UncertainTokens) -> UncertainTokens:
    most = LARGEST_WINDOW
    return UncertainTokens(min(counted.tokens, most), min(counted.margin, most))


def _picture_tokens(bare: str, generation: str, size: Size, detail: str) -> UncertainTokens:
    width, height = (max(1, side) for side in size)
    if generation.startswith("claude"):
        edge, most = (2576, 4784) if generation == "claude-4.7" else (1568, 1568)
        return UncertainTokens(_anthropic_tokens(width, height, edge, most))
    if generation == "gemma":
        return _gemini_image_tokens(bare, width, height, detail)
    rule = next(rule for rule in _rules() if compiled(rule.models).match(bare))
    if rule.patches is not None:
        tokens = _patch_tokens(width, height, rule.patches, detail)
    else:
        tokens = rule.tiles.base if detail == "low" else _tile_tokens(width, height, rule.tiles)
    return UncertainTokens(tokens, math.ceil(rule.margin * tokens))


def _tile_tokens(width: int, height: int, rule: _Tiles) -> int:
    shrink = min(1.0, 2048 / max(width, height))
    shrink *= min(1.0, 768 / (min(width, height) * shrink))
    across = math.ceil(round(width * shrink, 6) / 512)
    down = math.ceil(round(height * shrink, 6) / 512)
    return rule.base + rule.tile * across * down


def _patch_tokens(width: int, height: int, rule: _Patches, detail: str) -> int:
    detail = rule.auto if detail not in ("low", "high", "original") else detail
    fit = {"low": rule.low, "original": rule.original or rule.high}.get(detail, rule.high)
    shrink = min(1.0, fit.side / max(width, height))
    width, height = max(1, round(width * shrink)), max(1, round(height * shrink))
    if fit.patches is not None and _count_patches(width, height) > fit.patches:
        width, height = _shrink_to_patches(width, height, fit.patches)
    return math.ceil(_count_patches(width, height) * rule.factor)


def _count_patches(width: int, height: int) -> int:
    return math.ceil(width / 32) * math.ceil(height / 32)


def _shrink_to_patches(width: int, height: int, patches: int) -> Size:
    shrink = math.sqrt(32 * 32 * patches / (width * height))
    across, down = width * shrink / 32, height * shrink / 32
    rounding = [math.floor(side) / side for side in (across, down) if side >= 1]
    shrink *= min(rounding, default=1.0)
    # Adding 1e-6 prevents a floating-point error from rounding a whole number down.
    return max(1, int(width * shrink + 1e-6)), max(1, int(height * shrink + 1e-6))


def _anthropic_tokens(width: int, height: int, edge: int, most: int) -> int:
    long_side = max(width, height)

    def cost(longest: int) -> int:
        sides = (max(1, round(side * longest / long_side)) for side in (width, height))
        across, down = (math.ceil(side / 28) for side in sides)
        return across * down

    return cost(max(1, bisect_right(range(1, min(long_side, edge) + 1), most, key=cost)))


def _gemini_image_tokens(bare: str, width: int, height: int, detail: str) -> UncertainTokens:
    resolution = media_resolution(detail)
    if counts_as_gemini_3(bare):
        most = _GEMINI_3.get(resolution, 1120)
        return UncertainTokens(most, math.ceil(most / 10))
    if resolution in _GEMINI_2:
        return UncertainTokens(_GEMINI_2[resolution], 2)
    if max(width, height) <= 384:
        return UncertainTokens(258)
    unit = max(1, math.floor(min(width, height) / 1.5))
    tokens = 258 * math.ceil(width / unit) * math.ceil(height / unit)
    return UncertainTokens(tokens, tokens // 2)  # Google describes its formula as approximate


FILE_TOKENS = 1_500
"""Assumed number of tokens for a file whose text is not included: about a page of a PDF."""
_ASSUMED_FILE = UncertainTokens(FILE_TOKENS, 3 * FILE_TOKENS)

_CLAUDE_PAGE = UncertainTokens(2_250, 750)
_GEMINI_PAGE = {"low": 280, "medium": 560, "high": 1_120}
_GEMINI_2_PAGE = 258
_PAGE_SIZE = (1024, 1325)
"""Assumed width and height, in pixels, of a page that the vendor converts to a picture."""
_PAGE_TEXT = 500

_OPENAI_AUDIO = 10.0
"""Number of tokens per second of audio in OpenAI's models."""


def clip_tokens(bare: str, generation: str, clip: Clip, detail: str = "auto") -> UncertainTokens:
    """Return the number of tokens in an audio clip, a video or a document.

    Args:
        bare: The model's name without the provider.
        generation: The model's tokenizer generation.
        clip: The file's kind and length.
        detail: Gemini's media resolution.
    """
    if clip.pages is not None:
        page = _page_tokens(bare, generation, media_resolution(detail))
        pages = UncertainTokens(clip.pages * page.tokens, clip.pages * page.margin)
        return _within_window(pages)
    if clip.media == "document" or clip.seconds is None:
        return _ASSUMED_FILE
    if generation == "gemma":
        rate = _gemini_rate(bare, clip, media_resolution(detail))
    elif clip.media == "audio":
        rate = _OPENAI_AUDIO
    else:
        return _ASSUMED_FILE
    tokens = math.ceil(clip.seconds * rate)
    published = generation == "gemma" or "audio" in bare or "realtime" in bare
    margin = math.ceil(tokens * (0.1 if published else 2.0))
    return _within_window(UncertainTokens(tokens, margin))


def _page_tokens(bare: str, generation: str, resolution: str) -> UncertainTokens:
    if generation.startswith("claude"):
        return _CLAUDE_PAGE
    if generation == "gemma":
        is_gemini_3 = counts_as_gemini_3(bare)
        tokens = _GEMINI_PAGE.get(resolution, 560) if is_gemini_3 else _GEMINI_2_PAGE
        return UncertainTokens(tokens, math.ceil(tokens / 10))
    if generation in OPENAI_GENERATIONS:
        tokens = image_tokens(bare, generation, _PAGE_SIZE).tokens + _PAGE_TEXT
        return UncertainTokens(tokens, tokens)
    return UncertainTokens(FILE_TOKENS, 2 * FILE_TOKENS)


def _gemini_rate(bare: str, clip: Clip, resolution: str) -> float:
    is_gemini_3 = counts_as_gemini_3(bare)
    sound = 25.0 if is_gemini_3 else 32.0
    frames = {"high": 280} if is_gemini_3 else {"low": 64}
    frame = frames.get(resolution, 70 if is_gemini_3 else 258)
    return sound if clip.media == "audio" else clip.fps * frame + sound
