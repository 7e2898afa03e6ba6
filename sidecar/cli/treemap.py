"""Renders the page of `token-sidecar map --html`, which contains a treemap.

The positions and sizes of boxes are percentages. The map therefore adapts to the page's width, but
its labels keep their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import squarify

from sidecar import typed
from sidecar.project.token_map import MapEntry, flatten
from sidecar.text.pages import COLORS, STYLE, escape, page_html, table_html
from sidecar.workspace.footprint_report import TABLE_STYLE

_WIDTH, _HEIGHT = 1000.0, 620.0
"""The size of the layout in pixels. The page stretches the map to its own width."""
_HEADER = 16.0
"""The height of a label."""
_MARGIN = 2.0
_SMALLEST = 4.0
"""The contents of folders that are narrower or lower than this, in pixels, are not drawn."""
_ROWS = 100


class _Area(NamedTuple):
    width: float
    height: float


def treemap_page(
    folder: str,
    head: str,
    entries: Sequence[MapEntry],
    prompt_files: Sequence[tuple[str, str, str]],
    footprint: str,
) -> str:
    """Return a page with the treemap, the prompt files, and a table of the largest files.

    Args:
        folder: The folder's path.
        head: Text with the total number of tokens and the model.
        entries: The folder's contents.
        prompt_files: The path, token count and agents of each file that every request contains.
        footprint: HTML that shows what each agent sends before the first word.
    """
    name = Path(folder).resolve().name or folder
    title = f"Token map of {name}"
    boxes = _draw(entries, _Area(_WIDTH, _HEIGHT), -1)
    if not boxes:
        return page_html(title, f"<h1>{escape(title)}</h1><p>{escape(head)}.</p>")
    body = (
        f"<h1>{escape(title)}</h1>"
        f"<p>{escape(head)}. Hold the pointer over a box to see its path.</p>"
        '<div class="map" role="img" aria-label="Treemap of tokens by folder and file" style="'
        f'--height:{_HEIGHT:g}px;--header:{_HEADER:g}px;--margin:{_MARGIN:g}px">{boxes}</div>'
        f"{_prompt_table(prompt_files)}{footprint}{_table(entries)}"
    )
    style = (STYLE, typed.read_text("sidecar.cli", "treemap.css"), TABLE_STYLE)
    return page_html(title, body, "\n".join(style))


def _draw(entries: Sequence[MapEntry], area: _Area, color: int) -> str:
    """Return the boxes of a folder's contents.

    Args:
        entries: The contents.
        area: The size of the area to fill.
        color: The color of all boxes, or -1 to give each box a color of its own.
    """
    counted = [entry for entry in entries if entry.tokens > 0]
    if not counted or min(area) < _SMALLEST:
        return ""
    sizes = squarify.normalize_sizes([entry.tokens for entry in counted], *area)
    places = squarify.squarify(sizes, 0, 0, *area)
    return "".join(
        _draw_box(entry, place, area, number % COLORS if color < 0 else color)
        for number, (entry, place) in enumerate(zip(counted, places, strict=True))
    )


def _draw_box(entry: MapEntry, place: Mapping[str, float], area: _Area, color: int) -> str:
    width, height = place["dx"], place["dy"]
    name = entry.path.rstrip("/").rpartition("/")[2]
    label = f"<span>{escape(name)}</span>" if height >= _HEADER else ""
    below = _Area(max(0.0, width - 2 * _MARGIN), max(0.0, height - _HEADER - _MARGIN))
    contents = _draw(entry.children, below, color)
    contents = contents and f"<div>{contents}</div>"
    return (
        f'<div title="{escape(entry.path)}: {entry.number} tokens"'
        f' class="{"folder" if entry.children else f"c{color}"}"'
        f' style="left:{100 * place["x"] / area.width:.3f}%;'
        f"top:{100 * place['y'] / area.height:.3f}%;"
        f"width:{100 * width / area.width:.3f}%;"
        f'height:{100 * height / area.height:.3f}%">{label}{contents}</div>'
    )


def _prompt_table(files: Sequence[tuple[str, str, str]]) -> str:
    if not files:
        return ""
    title = "Sent with every agent request"
    rows = [(path, agents, tokens) for path, tokens, agents in files]
    table = table_html(title, ("File", "Agents", "Tokens"), rows)
    return f"<section><h2>{title}</h2>{table}</section>"


def _table(entries: Iterable[MapEntry]) -> str:
    top = MapEntry(path="", children=list(entries))
    files = [entry for _, entry in flatten(top) if not entry.path.endswith("/")]
    files.sort(key=lambda entry: -entry.tokens)
    rows = [(entry.path, entry.number) for entry in files[:_ROWS]]
    title = f"The largest {min(_ROWS, len(files))} of {len(files):,} files"
    return f"<section><h2>{title}</h2>{table_html(title, ('File', 'Tokens'), rows)}</section>"
