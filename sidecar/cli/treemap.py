"""Renders the page of `token-sidecar map --html`, which contains a treemap as inline SVG."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import squarify

from sidecar.text.pages import COLOURS, STYLE, escape, page_html, table_html
from sidecar.text.printable import printable
from sidecar.workspace.token_map import MapEntry, flatten

_WIDTH, _HEIGHT = 1000.0, 620.0
_HEADER = 16.0
"""The height of the line with a folder's name."""
_MARGIN = 2.0
_SMALLEST = 4.0
"""Minimum side length of a folder whose contents are drawn."""
_LETTER = 6.6
"""The average letter width in a label."""
_ROWS = 100
_MAP_STYLE = """
.map{width:100%;height:auto}.map text{fill:var(--fg);font-size:11px;pointer-events:none}
.map rect{stroke:var(--bg)!important}.map .folder{fill:var(--card);stroke:var(--line)!important}
td{white-space:nowrap}
"""


class _Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def treemap_page(
    folder: str,
    head: str,
    entries: Sequence[MapEntry],
    prompt_files: Sequence[tuple[str, int, str]],
) -> str:
    """Return a page with the treemap, the prompt files, and a table of the largest files.

    Args:
        folder: The folder's path.
        head: The total tokens, with the model.
        entries: The folder's contents.
        prompt_files: The path, tokens and agents of each file that is sent with every request.
    """
    name = Path(folder).resolve().name or folder
    shapes = "".join(_draw(entries, _Box(0, 0, _WIDTH, _HEIGHT), -1))
    body = (
        f"<h1>Token map of {escape(name)}</h1>"
        f"<p>{escape(head)}. Hold the pointer over a box to see its path.</p>"
        f'<svg class="map" role="img" aria-label="Treemap of tokens by folder and file"'
        f' viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}">{shapes}</svg>'
        f"{_prompt_table(prompt_files)}{_table(entries)}"
    )
    return page_html(f"Token map of {name}", body, STYLE + _MAP_STYLE)


def _draw(entries: Sequence[MapEntry], box: _Box, colour: int) -> Iterator[str]:
    counted = [entry for entry in entries if entry.tokens > 0]
    if not counted or min(box.width, box.height) < _SMALLEST:
        return
    sizes = squarify.normalize_sizes([entry.tokens for entry in counted], box.width, box.height)
    places = squarify.squarify(sizes, box.x, box.y, box.width, box.height)
    for number, (entry, place) in enumerate(zip(counted, places, strict=True)):
        own = number % COLOURS if colour < 0 else colour
        inner = _Box(place["x"], place["y"], place["dx"], place["dy"])
        yield _draw_box(entry, inner, own)
        if entry.children:
            below = _Box(
                inner.x + _MARGIN,
                inner.y + _HEADER,
                max(0.0, inner.width - 2 * _MARGIN),
                max(0.0, inner.height - _HEADER - _MARGIN),
            )
            yield from _draw(entry.children, below, own)


def _draw_box(entry: MapEntry, box: _Box, colour: int) -> str:
    path = escape(entry.path)
    name = printable(entry.path.rstrip("/").rpartition("/")[2])
    letters = int((box.width - 6) / _LETTER)
    label = ""
    if letters >= 3 and box.height >= _HEADER:
        short = name if len(name) <= letters else name[: letters - 1] + "…"
        label = f'<text x="{box.x + 4:.1f}" y="{box.y + 12:.1f}">{html.escape(short)}</text>'
    style = 'class="folder"' if entry.children else f'class="c{colour}" fill-opacity=".45"'
    return (
        f'<g><title>{path}: {entry.tokens:,} tokens</title><rect x="{box.x:.1f}" y="{box.y:.1f}"'
        f' width="{box.width:.1f}" height="{box.height:.1f}" {style}/>{label}</g>'
    )


def _prompt_table(files: Sequence[tuple[str, int, str]]) -> str:
    if not files:
        return ""
    title = "Sent with every request of an agent"
    rows = [(path, agents, f"{tokens:,}") for path, tokens, agents in files]
    table = table_html(title, ("File", "Agents", "Tokens"), rows)
    return f"<section><h2>{title}</h2>{table}</section>"


def _table(entries: Iterable[MapEntry]) -> str:
    top = MapEntry(path="", children=list(entries))
    files = [entry for _, entry in flatten(top) if not entry.path.endswith("/")]
    files.sort(key=lambda entry: -entry.tokens)
    rows = [(entry.path, f"{entry.tokens:,}") for entry in files[:_ROWS]]
    title = f"The largest {min(_ROWS, len(files))} of {len(files):,} files"
    return f"<section><h2>{title}</h2>{table_html(title, ('File', 'Tokens'), rows)}</section>"
