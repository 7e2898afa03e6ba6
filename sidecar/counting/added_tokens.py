"""Splits text at added tokens, such as `<think>`.

Vocabulary files list tokens that were added after training. Those that are not special stand for
their text wherever it occurs, so they are found before the text around them is tokenized. Special
tokens count as ordinary characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from sidecar.text.pieces import has_cut_inside


class AddedTokens:
    """Finds the added tokens of a vocabulary, and normalizes the text between them.

    As in the `tokenizers` library, the longest token is found where several begin, and tokens that
    match normalized text are found after those that match the text as it is written.
    """

    def __init__(
        self,
        plain: Iterable[str] = (),
        special: Iterable[str] = (),
        *,
        normalized: Iterable[str] = (),
        nfc: bool = False,
    ) -> None:
        """Create a finder.

        Args:
            plain: The tokens that are not special.
            special: The special tokens. No other token is found inside one.
            normalized: The tokens that are not special and match normalized text.
            nfc: Whether the tokenizer normalizes text to NFC.
        """
        self._nfc = nfc
        self._written = _Finder(plain, special)
        self._normalized = _Finder(map(_to_nfc, normalized) if nfc else normalized)
        self.tokens = self._written.tokens | self._normalized.tokens
        self.has_safe_cuts = not any(map(has_cut_inside, self.tokens))

    @property
    def changes_nothing(self) -> bool:
        """Whether `split` returns every text as it is."""
        return not self._nfc and not self.tokens

    def split(self, text: str) -> list[str]:
        """Return the text before, between and after the tokens, normalized."""
        parts = self._written.split(text)
        if self._nfc:
            parts = [_to_nfc(part) for part in parts]
        return [piece for part in parts for piece in self._normalized.split(part)]


class _Finder:
    def __init__(self, plain: Iterable[str], special: Iterable[str] = ()) -> None:
        self.tokens = frozenset(filter(None, plain))
        longest_first = sorted({*self.tokens, *special}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def split(self, text: str) -> list[str]:
        parts, start = list[str](), 0
        for match in self._pattern.finditer(text) if self.tokens else ():
            if match.group() in self.tokens:
                parts.append(text[start : match.start()])
                start = match.end()
        return [*parts, text[start:]]


def _to_nfc(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)
