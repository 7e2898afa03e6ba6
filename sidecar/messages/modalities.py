"""Tokens of a call that are audio, pictures or video: price lists distinguish them from text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from sidecar.messages.bounds import count_in
from sidecar.messages.usage import JsonObject, part, usages_in

_INPUT = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_GEMINI_INPUT = ("promptTokensDetails", "toolUsePromptTokensDetails")
_GEMINI_CACHED = ("cacheTokensDetails",)
_GEMINI_OUTPUT = ("candidatesTokensDetails",)

_Counts: TypeAlias = Mapping[str, int]
_MODALITIES = ("audio", "image", "video")


class Modalities(msgspec.Struct, frozen=True):
    """Tokens that are not text. Each number is a part of the usage's own one of that direction."""

    audio_input: int = 0
    audio_cache_read: int = 0
    audio_output: int = 0
    image_input: int = 0
    image_cache_read: int = 0
    image_output: int = 0
    video_input: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(msgspec.structs.astuple(self))


def modalities(raw: object) -> Modalities:
    """What a usage, or the reply or stream that carries it, says of its modalities.

    OpenAI (chat, Responses, realtime, images) and xAI say `audio_tokens` and `image_tokens` in the
    details of each direction, Gemini lists `modality` and `tokenCount`. Of the usages of a stream
    the one that says most holds.
    """
    found = (_of_usage(usage) for usage in usages_in(raw))
    return max(found, key=lambda one: one.total, default=Modalities())


def _of_usage(usage: JsonObject) -> Modalities:
    cached = _listed(usage, _GEMINI_CACHED)
    prompt, output = _listed(usage, _GEMINI_INPUT), _listed(usage, _GEMINI_OUTPUT)
    if not prompt and not output:
        details = [part(usage, name) for name in _INPUT]
        cached = _named(part(one, "cached_tokens_details") for one in details)
        prompt, output = _named(details), _named(part(usage, name) for name in _OUTPUT)
    return Modalities(
        audio_input=max(0, prompt.get("audio", 0) - cached.get("audio", 0)),
        audio_cache_read=cached.get("audio", 0),
        audio_output=output.get("audio", 0),
        image_input=max(0, prompt.get("image", 0) - cached.get("image", 0)),
        image_cache_read=cached.get("image", 0),
        image_output=output.get("image", 0),
        video_input=max(0, prompt.get("video", 0) - cached.get("video", 0)),
    )


def _listed(usage: JsonObject, names: tuple[str, ...]) -> _Counts:
    """Gemini's lists of `{modality, tokenCount}`, added up; in either spelling."""
    sums: dict[str, int] = {}
    for entry in _entries(usage, names):
        modality = str(entry.get("modality") or "").lower()
        sums[modality] = sums.get(modality, 0) + count_in(
            entry.get("tokenCount", entry.get("token_count"))
        )
    return sums


def _entries(usage: JsonObject, names: tuple[str, ...]) -> Iterator[JsonObject]:
    for name in names:
        listed = usage.get(name) or usage.get(_snake(name))
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, Mapping):
                yield entry


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _named(details: Iterator[JsonObject] | list[JsonObject]) -> _Counts:
    """The numbers of OpenAI's details, from whichever of them is there."""
    listed = list(details)
    return {
        modality: max((count_in(one.get(f"{modality}_tokens")) for one in listed), default=0)
        for modality in _MODALITIES
    }
