"""Errors in place of a reply, such as a prompt that does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sidecar.errors import VendorFormatError
from sidecar.messages.bounds import MOST_TOKENS
from sidecar.messages.reply import Loose, Overflow, ReplyFormat

_DIGITS = 20
"""Most digits of a number to read, because Python refuses to parse thousands of them."""
_OVERFLOW_TYPES = ("exceed_context_size_error", "context_length_exceeded")
_PROMPT_FIRST = (
    re.compile(r"prompt is too long: (?P<prompt>\d+) tokens > (?P<limit>\d+) maximum"),
    re.compile(
        r"input token count \(?(?P<prompt>\d+)\)? exceeds the maximum number of tokens"
        r" allowed \(?(?P<limit>\d+)"
    ),
    re.compile(
        r"maximum context length is (?P<limit>\d+) tokens.{0,80}?"
        r"(?:resulted in|requested|contains at least|you passed) (?P<prompt>\d+)",
        re.DOTALL,
    ),
)
_NO_NUMBERS = re.compile(r"Input is too long for requested model|maximum context length")


def overflow(error: Loose) -> Overflow | None:
    """Return the numbers of a "prompt too long" error, or None for other errors.

    llama.cpp sends them in fields, and others in a sentence.
    """
    if error.get("type") in _OVERFLOW_TYPES or error.get("code") in _OVERFLOW_TYPES:
        prompt, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
        if isinstance(prompt, int) and isinstance(limit, int):
            return _overflow(prompt, limit)
        return _from_message(error) or Overflow(None, None)
    return _from_message(error)


def _from_message(error: Loose) -> Overflow | None:
    message = error.get("message")
    if not isinstance(message, str):
        return None
    for pattern in _PROMPT_FIRST:
        found = pattern.search(message)
        if found:
            return _overflow(int(found["prompt"][:_DIGITS]), int(found["limit"][:_DIGITS]))
    return Overflow(None, None) if _NO_NUMBERS.search(message) else None


def _overflow(prompt: int, limit: int) -> Overflow:
    return Overflow(
        prompt if 0 < prompt <= MOST_TOKENS else None, limit if 0 < limit <= MOST_TOKENS else None
    )


def find_error(parts: Iterable[Loose]) -> Loose | None:
    """Return the first error object in a reply or among stream events."""
    for part in parts:
        nested = part.get("response")
        for holder in (part, nested if isinstance(nested, Mapping) else {}):
            error = holder.get("error")
            if isinstance(error, str) and error:
                return {"message": error}
            if isinstance(error, Mapping) and error:
                return dict(error)
    return None


def kind(error: Loose) -> str:
    """Return the vendor's word for an error. The message is left out, because it may quote the
    prompt."""
    for key in ("type", "code", "status"):
        word = error.get(key)
        if isinstance(word, str) and re.fullmatch(r"[A-Za-z_.\- ]{1,60}", word):
            return word
    return "error"


def refuse(error: Loose) -> VendorFormatError:
    return VendorFormatError(f"this is an error from the vendor ({kind(error)}), not a reply")


def format_of(parts: Iterable[Loose]) -> ReplyFormat:
    """Return the vendor format of an error, as far as it is recognisable."""
    for part in parts:
        error = part.get("error")
        if part.get("type") == "error":
            return "anthropic"
        if isinstance(error, Mapping) and "status" in error:
            return "gemini"
    return "openai-chat"
