"""What is right: a full count by tiktoken itself, over the whole text at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.counting.exact_engines import Reference

if TYPE_CHECKING:
    import tiktoken


def encoding(name: str = "o200k_base") -> tiktoken.Encoding:
    """tiktoken's encoder on the shipped ranks (their sha256 is tiktoken's own)."""
    return Reference(name)._get_encoding()


def truth(text: str, name: str = "o200k_base") -> int:
    """Tokens of `text`, lone surrogates read as U+FFFD."""
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return len(encoding(name).encode_ordinary(clean))
