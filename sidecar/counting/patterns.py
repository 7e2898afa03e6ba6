"""Split patterns of byte-level BPE vocabularies, and where texts may be cut under each.

A vocabulary file often does not contain its split pattern, or has it in another library's syntax.
These patterns are in tiktoken's syntax (fancy-regex), with the equivalent forms in Hugging Face's
`tokenizer.json` files.
"""

from __future__ import annotations

import msgspec

from sidecar.counting.engines import VOCABULARIES


class Pattern(msgspec.Struct, frozen=True):
    """A way to split a text before tokens are merged."""

    name: str
    expression: str
    """In tiktoken's syntax."""
    splits: tuple[tuple[str, ...], ...] = ()
    """Equivalent sequences of `Split` expressions in `tokenizer.json` files."""
    nfc: bool = False
    """Whether the tokenizer normalises to NFC first."""
    has_safe_cuts: bool = True
    """Whether the cuts of `sidecar.text.cuts` are proven for this pattern."""


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_O200K_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_QWEN2 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_O200K = VOCABULARIES["o200k_base"].pattern
_CL100K = VOCABULARIES["cl100k_base"].pattern
_TEKKEN = "|".join((*_O200K_WORDS, r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*", _BLANKS))

_CJK = r"\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"
_DEEPSEEK_REST = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_DEEPSEEK_SPLITS = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    _DEEPSEEK_REST,
)
# The three splits as one expression: the classes of later splits exclude what earlier ones match,
# and a blank before such a match counts as final, as `(?!\S)` requires. Characters that no split
# matches (control and unassigned ones) form a piece there, and would be lost here.
_DEEPSEEK = (
    rf"\p{{N}}{{1,3}}|[{_CJK}]+"
    r"""|[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    rf"|[^\r\n\p{{L}}\p{{P}}\p{{S}}\p{{N}}{_CJK}]?[[\p{{L}}\p{{M}}]--[{_CJK}]]+"
    rf"| ?[[\p{{P}}\p{{S}}]--[{_CJK}]]+[\r\n]*"
    rf"|\s*[\r\n]+|\s+(?=[\p{{N}}{_CJK}])|\s+(?!\S)|\s+"
    rf"|(?:[^\s\p{{L}}\p{{M}}\p{{N}}\p{{P}}\p{{S}}](?![[\p{{L}}\p{{M}}]--[{_CJK}]]))+"
)

GPT2 = Pattern("gpt2", _GPT2, ((_GPT2,),), has_safe_cuts=False)
CL100K = Pattern("cl100k", _CL100K)
LLAMA3 = Pattern("llama3", _LLAMA3, ((_LLAMA3,),))
QWEN2 = Pattern("qwen2", _QWEN2, ((_QWEN2,),), nfc=True)
QWEN35 = Pattern("qwen3.5", _QWEN35, ((_QWEN35,),), nfc=True)
O200K = Pattern("o200k", _O200K, ((_O200K,),))
TEKKEN = Pattern("tekken", _TEKKEN, ((_TEKKEN,),))
DEEPSEEK = Pattern("deepseek", _DEEPSEEK, (_DEEPSEEK_SPLITS,))

PATTERNS = (GPT2, CL100K, LLAMA3, QWEN2, QWEN35, O200K, TEKKEN, DEEPSEEK)

_BY_RANKS = {
    50_256: GPT2,  # r50k_base, gpt2
    50_280: GPT2,  # p50k_base
    100_256: CL100K,
    128_000: LLAMA3,
    151_643: QWEN2,
    199_998: O200K,
    248_044: QWEN35,
}


def by_splits(splits: tuple[str, ...]) -> Pattern | None:
    """Return the known pattern that is equivalent to the splits of a `tokenizer.json`, or None."""
    # Some files contain line ends instead of their escapes.
    escaped = tuple(split.replace("\r", r"\r").replace("\n", r"\n") for split in splits)
    return next((pattern for pattern in PATTERNS if escaped in pattern.splits), None)


def by_rank_count(ranks: int) -> Pattern | None:
    """Return the pattern of a rank file by its number of ranks, or None."""
    return _BY_RANKS.get(ranks)
