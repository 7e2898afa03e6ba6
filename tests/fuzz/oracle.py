"""A simple and slow model of documents, for use as a reference."""

from __future__ import annotations

from sidecar.text.document import Encoding, Position, Range


def width(character: str, encoding: Encoding) -> int:
    """Return how many code units a character has.

    In UTF-8, a lone surrogate has three. JSON may contain lone surrogates.
    """
    code = ord(character)
    if encoding == "utf-32":
        return 1
    if encoding == "utf-16":
        return 2 if code > 0xFFFF else 1
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def lines(text: str) -> list[tuple[int, int]]:
    """Return the start and end offset of each line. There is at least one line."""
    found, start, at = [], 0, 0
    while at < len(text):
        if text[at] in "\r\n":
            found.append((start, at))
            at += 2 if text[at : at + 2] == "\r\n" else 1
            start = at
        else:
            at += 1
    return [*found, (start, len(text))]


def offset(text: str, position: Position, encoding: Encoding) -> int:
    """Return the offset of a position.

    If the position is past the end of its line or of the text, return the offset of that end.
    """
    spans = lines(text)
    if position.line >= len(spans):
        return len(text)
    at, end = spans[position.line]
    left = position.character
    while at < end and left >= width(text[at], encoding):
        left -= width(text[at], encoding)
        at += 1
    return at


def position(text: str, at: int, encoding: Encoding) -> Position:
    """Return an offset's position. If it is between CR and LF, return the end of the line."""
    number, (start, end) = max(
        (number, span) for number, span in enumerate(lines(text)) if span[0] <= at
    )
    return Position(number, sum(width(char, encoding) for char in text[start : min(at, end)]))


def joined(text: str) -> str:
    """Return the text, with each surrogate pair joined to one character."""
    result = ""
    for character in text:
        if result and "\ud800" <= result[-1] <= "\udbff" and "\udc00" <= character <= "\udfff":
            code = 0x10000 + ((ord(result[-1]) - 0xD800) << 10) + ord(character) - 0xDC00
            result = result[:-1] + chr(code)
        else:
            result += character
    return result


def edited(text: str, span: Range, new: str, encoding: Encoding) -> str:
    """Return the text after an edit."""
    start, end = offset(text, span.start, encoding), offset(text, span.end, encoding)
    return joined_near(text[:start], new, text[end:])


def joined_near(before: str, new: str, after: str) -> str:
    """Return `before + new + after`, with surrogate pairs in and around `new` joined."""
    return before[:-1] + joined(before[-1:] + new + after[:1]) + after[1:]
