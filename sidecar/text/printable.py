"""Names and values of others, written so that no terminal, log, CI or editor acts on them.

A file's name, a TOML key, a model's id or a session's id is data of whoever made the repository,
runs the endpoint or speaks as the client. On its way to a person it passes one of these functions.
Text that a machine reads (JSON values, URIs, a fitted text) keeps its characters.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache

import msgspec

_ACTIVE = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: a terminal obeys them
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
    # the above: what reorders text, or hides in it
    "\u2028\u2029"  # line ends in all but name
    "\ud800-\udfff"  # no encoder takes them
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

# GitHub obeys `::name::` at the start of a line and `##[name]` anywhere in one; Azure Pipelines
# and TeamCity obey `##vso[name]` and `##teamcity[name]`.
_COMMAND = re.compile(r"(?m)^([^\S\n]*)::|##(?=\w*\[)")

# What CommonMark and GitHub's extensions give a meaning within a line, bare links included, and
# VS Code's `$(icon)`. An underscore within a word is only an underscore.
_MARKUP = re.compile(
    r"[\\`*\[\]<>|&~@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.|\$(?=\()", re.IGNORECASE
)
_LINK = re.compile(r"\](?=\()")


def printable(text: str) -> str:
    """`text` on one line: escapes for what is obeyed instead of shown, and for line ends."""
    if text.isascii() and text.isprintable() and ":" not in text and "#" not in text:
        return text
    return _COMMAND.sub(_apart, _unprintable().sub(_escape, text))


def printable_lines(text: str) -> str:
    """The same for a text of several lines, whose line feeds are its author's own."""
    return _COMMAND.sub(_apart, _unprintable_in_lines().sub(_escape, text))


def markdown(text: str) -> str:
    """`text` within a line of Markdown, as it reads: no link, image, cell, HTML or emphasis."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))


def json_text(value: object) -> str:
    """`value` as one line of JSON in ASCII, which reads back the same and which no CI obeys.

    In ASCII, because a file name that is not UTF-8 can be written down only so.
    """
    written = json.dumps(msgspec.to_builtins(value), separators=(",", ":"), allow_nan=False)
    return written.replace("##", r"#\u0023")


def message(text: str) -> str:
    """`text` in an editor's message, where `[label](command:…)` would be a link."""
    return _LINK.sub("] ", printable_lines(text))


def counted(number: int, noun: str) -> str:
    """`1 file`, `2,431 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent_text(share: float) -> str:
    """`13 %` of a share in percent: whole, and rounded down, for 100 % is all of it and never less.

    What floating point took of a whole number is given back.
    """
    return f"{math.floor(share + 1e-9)} %"


@cache
def _unprintable() -> re.Pattern[str]:
    """Compiled (0.5 ms) for the first text that is not plain: most runs have none."""
    return re.compile(f"[{_ACTIVE}]")


@cache
def _unprintable_in_lines() -> re.Pattern[str]:
    return re.compile(f"(?!\n)[{_ACTIVE}]")


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _apart(found: re.Match[str]) -> str:
    """A command's mark, with its first sign written as an escape."""
    mark = found[0].lstrip()
    return f"{found[1] or ''}\\x{ord(mark[0]):02x}{mark[1:]}"


def usd_text(usd: float) -> str:
    """An amount for people: `$8.27`, two significant digits below one dollar, `<$0.001`."""
    if usd <= -1 or usd >= 0.995:
        return f"${usd:,.2f}"
    if usd == 0:
        return "$0.00"
    if 0 < usd < 0.001:
        return "<$0.001"
    digits = 1 - math.floor(math.log10(abs(usd)))
    return f"${usd:.{digits}f}"
