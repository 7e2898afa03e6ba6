"""Formats tables and bars as plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import east_asian_width

EIGHTHS = " ▏▎▍▌▋▊▉█"
_LABEL = re.compile(r" *(?:\S+(?: \S+)*  +)?")
"""A line's indentation, and the label of a line such as `Session  Fix the parser`."""
GAP = "  "
"""The space between two columns."""
_NARROWEST = 24
"""The width that names are shortened to before columns are left out."""


def align_columns(rows: Sequence[Sequence[str]], left: int = 1, width: int = 0) -> list[str]:
    """Align a table's columns, and return one line per row. See `align_cells` for the arguments."""
    return [GAP.join(cells).rstrip() for cells in align_cells(rows, left, width)]


def align_cells(
    rows: Sequence[Sequence[str]], left: int = 1, width: int = 0, names: int | None = None
) -> list[tuple[str, ...]]:
    """Pad the cells of each column to the same width.

    Args:
        rows: The rows, all with the same number of cells.
        left: The number of columns to align left. All other columns except the last are aligned
            right.
        width: The most columns that a line should occupy, or 0 for any number. A wider table gets
            shorter names, and then fewer columns of numbers. The first one and the last two
            columns stay.
        names: The number of columns with names, which may be shortened (default: `left`).
    """
    names = left if names is None else names
    sizes = {cell: columns(cell) for cell in {cell for row in rows for cell in row}}
    widths = [max(sizes[cell] for cell in column) for column in zip(*rows, strict=True)]
    if width and _shrink(widths, names, width, _NARROWEST):
        while len(widths) > left + 3 and _line_width(widths) > width:
            del widths[-3]
            rows = [[*row[:-3], *row[-2:]] for row in rows]
        _shrink(widths, names, width, 1)
    aligned = []
    for *cells, last in rows:
        made = []
        for index, (cell, size) in enumerate(zip(cells, widths, strict=False)):
            shown = cell if sizes[cell] <= size else shorten_cell(cell, size)
            padding = " " * (size - columns(shown))
            made.append(shown + padding if index < left else padding + shown)
        aligned.append((*made, last))
    return aligned


def markdown_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table in Markdown. The first row contains the heads. The cells must be escaped.

    Columns are aligned as in `align_cells`.
    """
    last = len(rows[0]) - 1
    rules = ("---" if index < left or index == last else "---:" for index in range(last + 1))
    head, *body = ("".join(f"| {cell} " if cell else "| " for cell in cells) for cells in rows)
    return "\n".join(f"{line}|" for line in (head, f"|{'|'.join(rules)}", *body))


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shrink(widths: list[int], names: int, width: int, least: int) -> bool:
    """Shrink the columns of names, the widest first. Returns whether the line is still too wide."""
    for _ in range(_line_width(widths) - width):
        widest = max(range(names), key=widths.__getitem__)
        if widths[widest] <= least:
            return True
        widths[widest] -= 1
    return False


def shorten_cell(text: str, most: int) -> str:
    """Return text that occupies at most this many columns. Shortened text ends with `…`."""
    if columns(text) <= most:
        return text
    room = most - 1
    for end, character in enumerate(text):
        room -= columns(character)
        if room < 0:
            return f"{text[:end]}…"
    return text


def columns(text: str) -> int:
    """Return the number of terminal columns that the text occupies."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def wrap_line(line: str, width: int) -> str:
    """Wrap a line that is too wide at its spaces. The lines after the first are indented like the
    value after a label.
    """
    if columns(line) <= width:
        return line
    label = columns(match[0]) if (match := _LABEL.match(line)) else 0
    indent = " " * (label if label <= width // 2 else 0)
    lines, current = list[str](), ""
    for word in re.findall(r" *[^ ]+", line):
        if current and columns(current + word) > width:
            lines.append(current)
            current = indent + word.lstrip(" ")
        else:
            current += word
    return "\n".join([*lines, current])


def draw_bar(share: float, width: int) -> str:
    """Return a bar for a share from 0 to 1. Any positive share is visible.

    The bar's length is rounded to an eighth of a cell.
    """
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def draw_gauge(percent: int, width: int) -> str:
    """Return a gauge such as `████▎░░░░░`."""
    full, eighths = divmod(min(100, percent) * width * 8 // 100, 8)
    part = EIGHTHS[eighths].strip()
    return "█" * full + part + "░" * (width - full - len(part))
