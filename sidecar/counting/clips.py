"""What audio, video and files cost, by the vendors' published rates.

docs/reference/sources.md names the pages. A length or a file that is not known is a guess, with a
doubt that says so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sidecar.counting.images import Seen, image_tokens, media_resolution
from sidecar.models.families import OPENAI_GENERATIONS, counts_as_gemini_3

if TYPE_CHECKING:
    from sidecar.messages.clips import Clip

FILE_TOKENS = 1_500
"""A guess at a file whose text is not at hand: about a page of a PDF."""
_GUESS = Seen(FILE_TOKENS, 3 * FILE_TOKENS)

_CLAUDE_PAGE = Seen(2_250, 750)
_GEMINI_PAGE = {"low": 280, "medium": 560, "high": 1_120}
_GEMINI_PAGE_BEFORE = 258
_PAGE_SIZE = (1024, 1325)
"""What the picture of a page is taken for: a letter's shape."""
_PAGE_TEXT = 500

_OPENAI_AUDIO = 10.0
"""Tokens of a second: one for 100 ms of what a user says."""


def clip_tokens(bare: str, generation: str, clip: Clip, detail: str = "auto") -> Seen:
    """What a clip costs a model. `detail`: Gemini's media resolution."""
    if clip.pages is not None:
        page = _page(bare, generation, media_resolution(detail))
        return Seen(clip.pages * page.tokens, clip.pages * page.doubt)
    if clip.media == "document" or clip.seconds is None:
        return _GUESS
    if generation == "gemma":
        rate = _gemini_rate(bare, clip, media_resolution(detail))
    elif clip.media == "audio":
        rate = _OPENAI_AUDIO
    else:
        return _GUESS
    tokens = math.ceil(clip.seconds * rate)
    published = generation == "gemma" or "audio" in bare or "realtime" in bare
    return Seen(tokens, math.ceil(tokens * (0.1 if published else 2.0)))


def _page(bare: str, generation: str, resolution: str) -> Seen:
    """A page of a PDF; where nothing is published, its picture and some text, or a guess."""
    if generation.startswith("claude"):
        return _CLAUDE_PAGE
    if generation == "gemma":
        newer = counts_as_gemini_3(bare)
        tokens = _GEMINI_PAGE.get(resolution, 560) if newer else _GEMINI_PAGE_BEFORE
        return Seen(tokens, math.ceil(tokens / 10))
    if generation in OPENAI_GENERATIONS:
        tokens = image_tokens(bare, generation, _PAGE_SIZE).tokens + _PAGE_TEXT
        return Seen(tokens, tokens)
    return Seen(FILE_TOKENS, 2 * FILE_TOKENS)


def _gemini_rate(bare: str, clip: Clip, resolution: str) -> float:
    """Tokens of a second: the frames that are looked at, and the sound."""
    newer = counts_as_gemini_3(bare)
    sound = 25.0 if newer else 32.0
    frames = {"high": 280} if newer else {"low": 64}
    frame = frames.get(resolution, 70 if newer else 258)
    return sound if clip.media == "audio" else clip.fps * frame + sound
