"""Loads tokenizers from vocabulary files: rank files, tekken, `tokenizer.json`, SentencePiece and
GGUF.

If the token ids of a byte-level BPE vocabulary are in merge order, the vocabulary is a list of
ranks. If its split pattern is also known (Llama 3, Qwen, DeepSeek, GPT-2, …), tiktoken counts the
tokens. It is ten times faster than the `tokenizers` library and has proven safe split points. Other
`tokenizer.json` files require the `huggingface` extra, and SentencePiece vocabularies require the
`sentencepiece` extra. With these extras, text is not counted piece by piece.

Many vocabulary files do not contain their split pattern, or contain it in the syntax of another
library. This module lists the patterns in tiktoken's syntax (fancy-regex), with their equivalents
in `tokenizer.json` files.

Only the header of a GGUF file is read, never the weights. Little-endian files of versions 2 and 3
are supported (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The counts equal those
of llama.cpp for the same file.
"""

from __future__ import annotations

import base64
import struct
import threading
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from sidecar import typed
from sidecar.counting.exact_engines import (
    VOCABULARIES,
    AddedTokens,
    Reference,
    Vocabulary,
)
from sidecar.counting.tokenizer_interface import WHOLE_INLINE_CHARACTERS, Tokenizer
from sidecar.errors import SidecarError, how_to_install
from sidecar.text.document import without_lone_surrogates

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import tiktoken


Ranks = dict[bytes, int]


class Pattern(msgspec.Struct, frozen=True):
    """A pattern that splits text into parts. Bytes are then merged into tokens within each part.

    Attributes:
        expression: The pattern in tiktoken's syntax.
        splits: Equivalent sequences of `Split` expressions in `tokenizer.json` files.
        nfc: Whether the tokenizer first normalizes text to NFC.
        has_safe_cuts: Whether `sidecar.text.document` is proven to be correct for this pattern.
    """

    name: str
    expression: str
    splits: tuple[tuple[str, ...], ...] = ()
    nfc: bool = False
    has_safe_cuts: bool = True


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
# DeepSeek's three successive splits as one expression. Each class excludes the characters that
# earlier splits match. A run of blanks before such a character is a single match, because the
# earlier splits end the text there. The last alternative matches characters that no split matches
# (control and unassigned characters).
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
"""The split pattern of a rank file, by its number of ranks."""


def pattern_of_splits(splits: tuple[str, ...]) -> Pattern | None:
    """Return the known pattern that is equivalent to the `Split` expressions, or None."""
    # Some files contain line breaks, and others contain escapes instead.
    escaped = tuple(split.replace("\r", r"\r").replace("\n", r"\n") for split in splits)
    return next((pattern for pattern in PATTERNS if escaped in pattern.splits), None)


class VocabularyError(SidecarError, ValueError):
    """A vocabulary file is missing, unreadable, or in an unsupported format."""

    kind = "config"


class BytePairTokenizer(Reference):
    """Uses tiktoken to count exactly with a byte-level BPE vocabulary. Thread-safe."""

    def __init__(
        self, name: str, ranks: Ranks, pattern: Pattern, added: AddedTokens | None = None
    ) -> None:
        super().__init__("o200k_base")
        self.name = name
        self._added = added or AddedTokens(nfc=pattern.nfc)
        self.has_safe_cuts = pattern.has_safe_cuts and self._added.has_safe_cuts
        self._vocabulary = Vocabulary(name, name, "", pattern.expression)
        self._ranks = ranks
        self._own: tiktoken.Encoding | None = None
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        parts = self._added.split(text)
        count = super().count if self.has_safe_cuts else self.count_whole
        return sum(map(count, parts)) + len(parts) - 1

    def first_bytes(self, text: str, tokens: int) -> bytes | None:
        return super().first_bytes(text, tokens) if self._added.changes_nothing else None

    def _get_encoding(self) -> tiktoken.Encoding:
        import tiktoken

        with self._lock:
            if self._own is None:
                try:
                    self._own = tiktoken.Encoding(
                        self.name,
                        pat_str=self._vocabulary.pattern,
                        mergeable_ranks=self._ranks,
                        special_tokens={},
                    )
                except (ValueError, AssertionError) as error:
                    raise VocabularyError(f"tiktoken cannot use it: {error}") from error
                self._ranks = {}
            return self._own


def read_ranks(data: bytes) -> Ranks:
    """Return the ranks in a `.tiktoken` file or Llama 3's `tokenizer.model`.

    Raises:
        VocabularyError: A line does not consist of base64 and a rank.
    """
    try:
        pairs = (line.split() for line in data.splitlines() if line)
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError as error:
        raise VocabularyError(
            "it is not a rank file: a line does not consist of base64 and a rank"
        ) from error


def load_rank_file(path: Path, name: str, added: AddedTokens | None = None) -> BytePairTokenizer:
    """Load the tokenizer from a rank file. The number of ranks determines the split pattern.

    Args:
        path: The file.
        name: The tokenizer's name.
        added: The vocabulary's added tokens, which are not in the file.

    Raises:
        VocabularyError: The split pattern is unknown.
        OSError: The file is unreadable.
    """
    ranks = read_ranks(path.read_bytes())
    pattern = _BY_RANKS.get(len(ranks))
    if pattern is None:
        raise VocabularyError(
            f"no known tokenizer has {len(ranks)} ranks; configure the model's tokenizer.json "
            "instead"
        )
    return BytePairTokenizer(name, ranks, pattern, added)


class _TekkenConfig(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _TekkenToken(msgspec.Struct):
    rank: int
    token_bytes: str


class _Tekken(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]


def load_tekken(path: Path, name: str) -> BytePairTokenizer:
    """Load the tokenizer from one of Mistral's `tekken` files.

    Such a file contains more tokens than the models use.

    Raises:
        VocabularyError: The file is not a tekken file.
        OSError: The file is unreadable.
    """
    try:
        tekken = typed.decode(path.read_bytes(), _Tekken)
    except msgspec.DecodeError as error:
        raise VocabularyError("it is not a tekken file") from error
    config = tekken.config
    used = config.default_vocab_size - config.default_num_special_tokens
    ranks = {base64.b64decode(token.token_bytes): token.rank for token in tekken.vocab[:used]}
    known = pattern_of_splits((config.pattern,))
    pattern = known or Pattern("tekken", config.pattern, has_safe_cuts=False)
    return BytePairTokenizer(name, ranks, pattern)


def byte_ranks(vocabulary: dict[str, int]) -> Ranks:
    """Return the ranks of a byte-level vocabulary, which represents each byte by a letter.

    Raises:
        VocabularyError: The vocabulary is not byte-level.
    """
    letters = bytes_by_letter()
    try:
        return {bytes([letters[c] for c in token]): rank for token, rank in vocabulary.items()}
    except KeyError as error:
        raise VocabularyError("it is not a byte-level vocabulary") from error


def bytes_by_letter() -> dict[str, int]:
    """Return the byte that each letter represents in byte-level vocabularies such as GPT-2's."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


def has_rising_ids(merges: list[Any], vocabulary: dict[str, int]) -> bool:
    """Return whether token ids rise in merge order and can therefore be used as ranks.

    Ids may repeat, because Llama 3 lists all merges that produce a token.

    Args:
        merges: Strings `a b` or pairs, as in `tokenizer.json`.
        vocabulary: The token ids.
    """
    parts = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    ids = [vocabulary.get("".join(part), -1) for part in parts]
    return -1 not in ids and all(before <= after for before, after in pairwise(ids))


class HuggingFaceTokenizer(Tokenizer):
    """Uses the `tokenizers` library to count with a `tokenizer.json` file. Thread-safe.

    splintr 0.22 reads such files too. But it refuses some kinds of pre-tokenizers, and its counts
    differ for unknown characters, for added tokens that strip spaces, and where its Unicode tables
    do.
    """

    inline_characters = WHOLE_INLINE_CHARACTERS

    def __init__(self, name: str, data: bytes, dropped: bytes = b"") -> None:
        """Create a tokenizer.

        Args:
            name: The tokenizer's name.
            data: The content of a `tokenizer.json` file.
            dropped: Bytes that are tokens in `data` but not in the model. They are not counted.

        Raises:
            VocabularyError: The library is missing or cannot read `data`.
        """
        self.name = name
        self._dropped = dropped
        self._tokenizer = _library_tokenizer(data)

    def count(self, text: str) -> int:
        text = without_lone_surrogates(text)
        # The batch call releases the GIL and does not compute offsets.
        tokens = len(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])
        if not self._dropped:
            return tokens
        encoded = text.encode()
        return tokens - sum([encoded.count(byte) for byte in self._dropped])


def _library_tokenizer(data: bytes) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise VocabularyError(
            f"it needs the tokenizers library; {how_to_install('huggingface')}"
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain `Exception`
        raise VocabularyError(f"the tokenizers library cannot read it: {error}") from error
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def load_tokenizer_json(path: Path, name: str) -> BytePairTokenizer | HuggingFaceTokenizer:
    """Load the tokenizer from a `tokenizer.json` file. May take half a second.

    Raises:
        VocabularyError: The tokenizer is unsupported.
        OSError: The file is unreadable.
    """
    data = path.read_bytes()
    try:
        spec = typed.decode(data, dict[str, Any])
    except msgspec.DecodeError as error:
        raise VocabularyError("it is not a tokenizer.json") from error
    return as_byte_pairs(spec, name) or HuggingFaceTokenizer(name, data)


def as_byte_pairs(spec: dict[str, Any], name: str) -> BytePairTokenizer | None:
    """Return an equivalent tokenizer that runs on tiktoken, or None if there is none."""
    model, pattern = _object(spec.get("model")), _known_pattern(spec)
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if pattern is None or model.get("type") != "BPE":
        return None
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        return None
    if model.get("byte_fallback") or model.get("dropout") or not has_rising_ids(merges, vocabulary):
        return None
    listed = [_object(token) for token in spec.get("added_tokens") or ()]
    listed = [token for token in listed if isinstance(token.get("content"), str)]
    plain = [token for token in listed if not token.get("special")]
    if any(token.get(flag) for token in plain for flag in ("lstrip", "rstrip", "single_word")):
        return None
    contents = {token.get("content") for token in listed}
    ordinary = {token: rank for token, rank in vocabulary.items() if token not in contents}
    added = AddedTokens(
        [token["content"] for token in plain if not token.get("normalized", True)],
        [token["content"] for token in listed if token.get("special")],
        normalized=[token["content"] for token in plain if token.get("normalized", True)],
        nfc=pattern.nfc,
    )
    return BytePairTokenizer(name, byte_ranks(ordinary), pattern, added)


def _known_pattern(spec: dict[str, Any]) -> Pattern | None:
    """Return the known pattern that is equivalent to `pre_tokenizer` and `normalizer`, or None."""
    steps = _steps(spec.get("pre_tokenizer"), "pretokenizers")
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    splits = tuple(_expression(step) for step in steps[:-1])
    if steps[-1].get("use_regex", True):
        pattern = GPT2 if not splits else None
    else:
        pattern = None if None in splits else pattern_of_splits(tuple(map(str, splits)))
    if pattern is None:
        return None
    normalizers = _steps(spec.get("normalizer"), "normalizers")
    if [step.get("type") for step in normalizers] == ["NFC"]:
        return msgspec.structs.replace(pattern, nfc=True)
    return None if normalizers else msgspec.structs.replace(pattern, nfc=False)


def _expression(step: dict[str, Any]) -> str | None:
    isolated = step.get("type") == "Split" and step.get("behavior") == "Isolated"
    if not isolated or step.get("invert"):
        return None
    expression = _object(step.get("pattern")).get("Regex")
    return expression if isinstance(expression, str) else None


def _steps(node: object, key: str) -> list[dict[str, Any]]:
    if node is None:
        return []
    table = _object(node)
    inside = table.get(key)
    return [_object(step) for step in inside] if isinstance(inside, list) else [table]


def _object(node: object) -> dict[str, Any]:
    return node if isinstance(node, dict) else {}


_MODEL_TYPE_BPE = 2


class SentencePieceTokenizer(Tokenizer):
    """Counts with the `sentencepiece` library in the same way as llama.cpp. Thread-safe."""

    inline_characters = WHOLE_INLINE_CHARACTERS

    def __init__(self, name: str, model: bytes) -> None:
        """Load a SentencePiece model.

        Raises:
            VocabularyError: The library is missing or cannot read `model`.
        """
        self.name = name
        self._processor = _processor(model)

    def count(self, text: str) -> int:
        return len(self._processor.encode(without_lone_surrogates(text)))


def _processor(model: bytes) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise VocabularyError(
            f"it needs the sentencepiece library; {how_to_install('sentencepiece')}"
        ) from error
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except Exception as error:  # the library raises various errors
        raise VocabularyError(f"the sentencepiece library cannot read it: {error}") from error


def tokenizer_from_pieces(
    name: str,
    pieces: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    space_before: bool,
) -> SentencePieceTokenizer:
    """Create a SentencePiece tokenizer from its pieces.

    Args:
        name: The tokenizer's name.
        pieces: The pieces.
        scores: Each piece's score.
        types: Each piece's type.
        space_before: Whether the tokenizer adds a space before the text.

    Raises:
        VocabularyError: The library is missing or cannot read the pieces.
    """
    listed = b"".join(
        _bytes_field(
            1, _bytes_field(1, piece.encode()) + _float_field(2, score) + _varint_field(3, kind)
        )
        for piece, score, kind in zip(pieces, scores, types, strict=False)
    )
    trainer = (
        _varint_field(3, _MODEL_TYPE_BPE) + _varint_field(4, len(pieces)) + _varint_field(35, 1)
    )
    normalizer = (
        _bytes_field(1, b"identity")
        + _varint_field(3, space_before)
        + _varint_field(4, 0)
        + _varint_field(5, 1)
    )
    return SentencePieceTokenizer(
        name, listed + _bytes_field(2, trainer) + _bytes_field(3, normalizer)
    )


# Protocol buffer fields


def _bytes_field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _float_field(number: int, value: float) -> bytes:
    return _varint(number << 3 | 5) + struct.pack("<f", value)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(int(value))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_MAX_STRING = 64 * 1024 * 1024
_MAX_ITEMS = 4_000_000

_PATTERNS = {
    "gpt-2": GPT2,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "qwen35": QWEN35,
    "deepseek-v3": DEEPSEEK,
    "gpt-4o": O200K,
    "tekken": TEKKEN,
}

_SUCCESSIVE_SPLITS = {
    "command-r": (r"\p{N}", GPT2.expression),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2.expression, "[0-9][0-9][0-9]"),
}
"""The vocabularies that apply several split patterns in succession."""

_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6


def load_gguf(path: Path, name: str) -> Tokenizer:
    """Load the tokenizer from a GGUF file. May take half a second.

    Raises:
        VocabularyError: The vocabulary is unsupported.
        OSError: The file is unreadable.
    """
    with path.open("rb") as file:
        try:
            header = read_header(file)
        except (struct.error, UnicodeDecodeError, RecursionError) as error:
            raise VocabularyError("its GGUF header is damaged") from error
    kind, pre = header.get("tokenizer.ggml.model"), header.get("tokenizer.ggml.pre")
    if kind == "llama":
        return _load_gguf_pieces(header, name)
    if kind == "gpt2" and pre in _SUCCESSIVE_SPLITS:
        return _load_successive_splits(header, name, _SUCCESSIVE_SPLITS[str(pre)])
    pattern = _PATTERNS.get(str(pre)) if kind == "gpt2" else None
    if pattern is None:
        reason = _REASONS.get(str(kind), "its type is unknown")
        raise VocabularyError(
            f"its vocabulary (model {kind}, pre {pre}) is not supported: {reason}; "
            "for exact counts, add an [[endpoint]] for the server that runs the model"
        )
    vocabulary = _gguf_vocabulary(header)
    return BytePairTokenizer(
        name, byte_ranks(vocabulary), pattern, AddedTokens(_user_defined(header))
    )


_REASONS = {
    "gpt2": "no library splits text for this vocabulary the way llama.cpp does",
    "bert": "no library implements WordPiece as llama.cpp does",
    "t5": "the file does not say how Unigram normalizes text",
    "rwkv": "no library implements its tokenizer",
    "no_vocab": "the file contains no vocabulary",
}


def _load_gguf_pieces(header: dict[str, Any], name: str) -> Tokenizer:
    lists = [header.get(f"tokenizer.ggml.{key}") for key in ("tokens", "scores", "token_type")]
    if not all(isinstance(values, list) and values for values in lists):
        raise VocabularyError("its GGUF header contains no vocabulary")
    tokens, scores, types = (values or [] for values in lists)
    space_before = header.get("tokenizer.ggml.add_space_prefix", True)
    return tokenizer_from_pieces(name, tokens, scores, types, space_before=bool(space_before))


def _load_successive_splits(
    header: dict[str, Any], name: str, splits: tuple[str, ...]
) -> Tokenizer:
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        for split in splits
    ]
    as_written = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    steps.append({"type": "ByteLevel", **as_written})
    vocabulary = _gguf_vocabulary(header)
    # Falcon has no tokens for 14 control characters. llama.cpp merges around these characters and
    # then drops them. The library would drop them first and then merge the characters around them.
    letters = bytes_by_letter().items()
    missing = {letter: byte for letter, byte in letters if letter not in vocabulary}
    vocabulary |= dict(zip(missing, count(max(vocabulary.values()) + 1), strict=False))
    model = {"type": "BPE", "vocab": vocabulary, "merges": header["tokenizer.ggml.merges"]}
    spec = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "model": model}
    first = len(header["tokenizer.ggml.tokens"]) + len(missing)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = [
        {"id": first + number, "content": token, **flags}
        for number, token in enumerate(_user_defined(header))
    ]
    data = msgspec.json.encode({"version": "1.0", "added_tokens": added} | spec)
    return HuggingFaceTokenizer(name, data, bytes(missing.values()))


def _gguf_vocabulary(header: dict[str, Any]) -> dict[str, int]:
    tokens, merges = header.get("tokenizer.ggml.tokens"), header.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise VocabularyError("its GGUF header contains no vocabulary")
    ids = {token: number for number, token in enumerate(tokens)}
    if not has_rising_ids(merges, ids):
        raise VocabularyError("its merges are not in the order of its tokens")
    types = header.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    typed_tokens = zip(ids.items(), types, strict=False)
    return {token: rank for (token, rank), kind in typed_tokens if kind in (_NORMAL, _BYTE)}


def _user_defined(header: dict[str, Any]) -> list[str]:
    """Return the tokens that llama.cpp finds in any text. It does not find control tokens."""
    types = header.get("tokenizer.ggml.token_type") or ()
    tokens = zip(header["tokenizer.ggml.tokens"], types, strict=False)
    return [token for token, kind in tokens if kind == _USER_DEFINED]


def read_header(file: BinaryIO) -> dict[str, Any]:
    """Return the key-value pairs in the header of a GGUF file.

    Raises:
        VocabularyError: The file is in another format.
        struct.error: The file is incomplete.
    """
    magic, version, _tensors, pairs = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF" or version not in (2, 3) or pairs > _MAX_ITEMS:
        raise VocabularyError("it is not a GGUF file of version 2 or 3")
    header: dict[str, Any] = {}
    for _ in range(pairs):
        key = _string(file)
        header[key] = _value(file, *struct.unpack("<I", file.read(4)))
    return header


def _string(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    data = file.read(length) if length <= _MAX_STRING else b""
    if len(data) != length:
        raise VocabularyError("its GGUF header is damaged")
    return data.decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        return _array(file)
    if kind not in _NUMBERS:
        raise VocabularyError("its GGUF header contains an unknown type")
    number = struct.Struct(f"<{_NUMBERS[kind]}")
    return number.unpack(file.read(number.size))[0]


def _array(file: BinaryIO) -> list[Any]:
    kind, length = struct.unpack("<IQ", file.read(12))
    if length > _MAX_ITEMS:
        raise VocabularyError("its GGUF header is damaged")
    if kind in _NUMBERS:
        layout = struct.Struct(f"<{length}{_NUMBERS[kind]}")
        return list(layout.unpack(file.read(layout.size)))
    return list(islice(iter(lambda: _value(file, kind), object()), length))


MAX_BYTES = 256 * 1024 * 1024
"""Maximum size of a vocabulary file. The largest known files are smaller than 40 MB."""


def load(file: Path, name: str) -> Tokenizer:
    """Load the tokenizer from a vocabulary file of any kind. May take half a second.

    Raises:
        VocabularyError: The vocabulary is unsupported.
        OSError: The file is missing or unreadable.
    """
    with file.open("rb") as opened:
        head = opened.read(64)
    if head[:4] == b"GGUF":
        return load_gguf(file, name)
    if file.stat().st_size > MAX_BYTES:
        raise VocabularyError("it is too large for a vocabulary (over 256 MB)")
    # SentencePiece files are protocol buffers that start with a piece.
    if len(head) > 4 and head[0] == head[2] == 0x0A and head[3] <= head[1] - 2:
        return SentencePieceTokenizer(name, file.read_bytes())
    if head.lstrip()[:1] != b"{":
        return load_rank_file(file, name)
    if "tekken" in file.name:
        return load_tekken(file, name)
    return load_tokenizer_json(file, name)
