"""The parts that a person sees in a text: sections, regions, top-level blocks.

Lines are LSP's: they end on `\\n`, `\\r\\n` or `\\r` and on nothing else. All is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.text.outline_lines import Lines, Part

_CLOSER = re.compile(
    r"[)\]}]|(?:end|else|elif|elsif|except|finally|catch|rescue|ensure)\b|(?:fi|done|esac)\s*$"
)
_MARKDOWN_LANGUAGES = frozenset(
    {"markdown", "mdx", "quarto", "rmd", "prompt", "instructions", "chatagent", "skill"}
)
_MARKDOWN_SUFFIXES = frozenset(
    {".md", ".markdown", ".mdown", ".mkd", ".mdx", ".mdc", ".qmd", ".rmd", ".prompty"}
)


def is_markdown(name: str, language_id: str = "") -> bool:
    """Whether a file (by its name or URI) or a language is read as Markdown."""
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    return language_id in _MARKDOWN_LANGUAGES or suffix in _MARKDOWN_SUFFIXES


def outline(text: str, name: str = "", language_id: str = "") -> tuple[Part, ...]:
    """Markdown's sections, or another language's top-level blocks, in the order of the text."""
    from sidecar.text.outline_markdown import sections

    if is_markdown(name, language_id):
        return tuple(sections(Lines(text)))
    return tuple(blocks(Lines(text)))


def blocks(lines: Lines) -> Iterator[Part]:
    """Top-level blocks by indentation, for any language.

    A block begins on an unindented line after a blank one, or after a block that has an indented
    body; closing brackets belong to the block they close. So a run of imports is one block, and a
    decorator or comment is part of what it stands on. Its title is its last line before the body.
    """
    texts = lines.texts
    start: int | None = None
    title, body, blank, last = "", False, False, 0
    for number, line in enumerate(texts):
        if not line or line.isspace():
            blank = True
            continue
        indented = line[0] in " \t"
        closing = body and not indented and _CLOSER.match(line) is not None
        if start is None or not (indented or closing or not (blank or body)):
            if start is not None:
                yield lines.part("block", title, start, last + 1)
            start, title, body = number, line.strip(), False
        elif indented and not closing:
            body = True
        elif not body and not closing and line.strip() not in ("{", "("):
            title = line.strip()
        blank, last = False, number
    if start is not None:
        yield lines.part("block", title, start, last + 1)
