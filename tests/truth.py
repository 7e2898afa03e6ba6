"""The expected counts: tiktoken over the whole text at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.counting.exact_engines import Reference

if TYPE_CHECKING:
    import tiktoken


def encoding(name: str = "o200k_base") -> tiktoken.Encoding:
    """Return tiktoken's encoder with the packaged rank files, whose SHA-256 tiktoken publishes."""
    return Reference(name)._get_encoding()


def truth(text: str, name: str = "o200k_base") -> int:
    """Return the tokens of `text`, in which lone surrogates count as U+FFFD."""
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return len(encoding(name).encode_ordinary(clean))
