"""Computes expected counts by tokenizing the whole text with tiktoken."""

from __future__ import annotations

import tiktoken

from sidecar.counting.exact_engines import Reference


def encoding(name: str = "o200k_base") -> tiktoken.Encoding:
    """Return a tiktoken encoding that uses the bundled rank file.

    tiktoken's source contains the file's SHA-256.
    """
    return Reference(name)._get_encoding()


def truth(text: str, name: str = "o200k_base") -> int:
    """Return the number of tokens in `text`. Lone surrogates count as U+FFFD."""
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return len(encoding(name).encode_ordinary(clean))
