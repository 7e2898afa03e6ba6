"""`token-sidecar map`: shows the number of tokens in each subfolder and file of a folder.

`--html` writes a page with a treemap. The positions and sizes of its boxes are percentages, so the
map adapts to the page's width, but its labels keep their size.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from sidecar import typed
from sidecar.cli.group import absolute_folder, folder_argument
from sidecar.cli.output import (
    print_json,
    print_lines,
    print_problems,
    to_encodable,
    warn,
    with_progress,
    write_page,
)
from sidecar.counting.count_result import Method, method_mark, number_text, tokens_text
from sidecar.errors import how_to_install
from sidecar.project.token_map import MapEntry, build_token_map, flatten
from sidecar.text.pages import COLORS, STYLE, escape, page_html, table_html

if TYPE_CHECKING:
    from sidecar.budgets.check_report import Report
    from sidecar.config.settings import Loaded, Settings

_BAR = 20
_MOST_LINES = 40
_MOST_PROMPT_FILES = 10
_WIDTH, _HEIGHT = 1000.0, 620.0
"""The size of the layout in pixels. The page stretches the map to its own width."""
_HEADER = 16.0
"""The height of a label."""
_MARGIN = 2.0
_SMALLEST = 4.0
"""The contents of folders that are narrower or lower than this, in pixels, are not drawn."""
_MOST_FILES = 100
"""How many of the largest files the page lists."""


class PromptFileEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A prompt file, which agents send with every request."""

    path: str
    tokens: int
    """How many tokens are sent. Comments that an agent removes, for example, are not counted."""
    agents: list[str]
    """The agents that send it. Those that are used here are first."""
    estimated: bool = False

    @property
    def number(self) -> str:
        """The number of tokens as text."""
        return number_text(self.tokens, "estimate" if self.estimated else "exact")


class MapReport(msgspec.Struct, frozen=True, rename="camel"):
    """The output of `map --json`."""

    folder: str
    tokens: int
    files: int
    estimated: bool
    entries: list[MapEntry]
    prompt_files: list[PromptFileEntry]
    model: str


@click.command("map")
@folder_argument
@click.option(
    "--depth",
    type=click.IntRange(1, 20),
    default=2,
    show_default=True,
    help="How many levels of subfolders to list.",
)
@click.option("--model", help="Model to count for (default: the `model` setting).")
@click.option("--json", "as_json", is_flag=True, help="Print the map as JSON.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write a page with a treemap to FILE (`-`: standard output).",
)
def map(folder: Path, depth: int, model: str | None, as_json: bool, html: str | None) -> None:
    """Show the number of tokens in each subfolder and file of DIR (default: the current folder).

    Untracked files that git ignores are skipped. Prompt files, which agents send with every
    request, are also listed separately. The page shows for each agent what is sent, cut and hidden,
    as `token-sidecar footprint` does. Counts are cached.

    Exit codes: 0; 2 if DIR or FILE cannot be used, or the configuration is invalid.
    """
    from sidecar.config.load import load
    from sidecar.config.paths import find_root
    from sidecar.workspace.check_paths import check_paths

    report, problems = check_paths([str(folder)], model, warn=warn, progress=with_progress)
    has_errors = print_problems(problems)
    top = build_token_map(_relative_counts(report, folder), sys.maxsize if html else depth)
    start = absolute_folder(folder)
    loaded = load(find_root(start))
    name = model or loaded.settings.model
    found = MapReport(
        folder=str(folder),
        tokens=top.tokens,
        files=top.files,
        estimated=any(file.method not in ("exact", "endpoint") for file in report.files),
        entries=top.children,
        prompt_files=_list_prompt_files(report, start, name, loaded.settings),
        model=name,
    )
    if html is not None:
        _write_page(found, html, _footprint_html(start, loaded, model))
    elif as_json:
        print_json(found)
    else:
        print_lines(*map_lines(found, top))
    unlisted = [
        skipped
        for skipped in report.skipped
        if os.path.isdir(skipped.path) and not os.path.islink(skipped.path)
    ]
    warn(*(f"{skipped.path}: {skipped.reason}, skipped" for skipped in unlisted))
    sys.exit(2 if has_errors or unlisted else 0)


def map_lines(found: MapReport, top: MapEntry) -> list[str]:
    """Format the map as lines, with a tree of the largest entries followed by the prompt files."""
    from sidecar.text.printable import first_names, printable
    from sidecar.text.tables import align_columns, draw_bar

    entries = list(flatten(top))
    largest = sorted((entry.tokens for _, entry in entries), reverse=True)[:_MOST_LINES]
    least = largest[-1] if largest else 0
    shown = [(level, entry) for level, entry in entries if entry.tokens >= least][:_MOST_LINES]
    rows = [
        (
            entry.number,
            to_encodable(draw_bar(entry.tokens / max(1, found.tokens), _BAR).ljust(_BAR)),
            "  " * level + printable(_base_name(entry.path)),
        )
        for level, entry in shown
    ]
    lines = [_head(found), *(align_columns(rows, left=0) if rows else [])]
    if len(shown) < len(entries):
        lines.append(
            f"{len(entries) - len(shown):,} smaller entries are left out; `--json` lists them."
        )
    if found.prompt_files:
        files = [
            (file.number, printable(file.path), first_names(file.agents))
            for file in found.prompt_files[:_MOST_PROMPT_FILES]
        ]
        lines += ["", "Sent with every agent request:", *align_columns(files, left=0)]
        if left_out := len(found.prompt_files) - len(files):
            lines.append(f"{left_out:,} smaller files are left out; `--json` lists them.")
    return lines


def _base_name(path: str) -> str:
    folder = "/" if path.endswith("/") else ""
    return path.rstrip("/").rpartition("/")[2] + folder


def _relative_counts(report: Report, folder: Path) -> list[tuple[str, int, Method]]:
    """Return the counts by path. Files that several links lead to are counted once."""
    from sidecar.project.files import Target, drop_duplicate_links

    links = [Target(file.path, file.path, os.path.islink(file.path)) for file in report.files]
    kept = {target.path for target in drop_duplicate_links(links)}
    return [
        (os.path.relpath(file.path, folder), file.tokens, file.method)
        for file in report.files
        if file.path in kept
    ]


def _list_prompt_files(
    report: Report, folder: Path, model: str, settings: Settings
) -> list[PromptFileEntry]:
    """Return the files of the map that agents send, with the tokens that they send of each."""
    from sidecar.agents.folders import Places
    from sidecar.budgets.instruction_findings import find_used_agents
    from sidecar.config.paths import find_root
    from sidecar.models.catalogue import window_of
    from sidecar.project.footprint import find_all_footprints, sent_files
    from sidecar.workspace.footprints import count_sent_texts

    root = find_root(folder)
    places = Places.of(settings.agents, projects=[root])
    used = find_used_agents(root, settings, places)
    files = {os.path.realpath(file.path): file for file in report.files}
    own = places if settings.agents.enabled else None
    sent = sent_files(find_all_footprints(root, own, window=partial(window_of, model)))
    listed: dict[str, dict[str, str]] = {}
    for file in sent:
        if (path := os.path.realpath(file.path)) in files:
            listed.setdefault(path, {}).update(file.texts)
    longest = {path: max(texts.values(), key=len) for path, texts in listed.items()}
    measures = count_sent_texts(root, settings, {model: longest.values()}) if listed else {}
    found = [
        PromptFileEntry(
            os.path.relpath(path, os.path.realpath(folder)),
            (measure := measures[model, longest[path]]).tokens,
            sorted(texts, key=lambda agent: (agent not in used, agent)),
            bool(method_mark(measure.method)),
        )
        for path, texts in listed.items()
    ]
    return sorted(found, key=lambda file: (-file.tokens, file.path))


def _head(found: MapReport) -> str:
    from sidecar.text.printable import counted, printable

    method: Method = "estimate" if found.estimated else "exact"
    tokens, files = tokens_text(found.tokens, method), counted(found.files, "file")
    return f"{tokens} in {files} for {printable(found.model)}"


def _footprint_html(start: Path, loaded: Loaded, model: str | None) -> str:
    """Return what agents send that start in the folder, or "" if agents are disabled."""
    from sidecar.cli.footprint import read_footprints
    from sidecar.errors import BadParamsError
    from sidecar.workspace.footprint_report import footprint_html

    try:
        return footprint_html(read_footprints(start, loaded, model=model))
    except BadParamsError:
        return ""


def _write_page(found: MapReport, path: str, footprint: str) -> None:
    from sidecar.text.printable import first_names

    try:
        import squarify  # noqa: F401 - check this before drawing
    except ModuleNotFoundError:
        warn(f"the treemap requires additional packages; {how_to_install('treemap')}")
        sys.exit(2)
    always = [(file.path, file.number, first_names(file.agents)) for file in found.prompt_files]
    page = _treemap_page(found.folder, _head(found), found.entries, always, footprint)
    write_page(page, path)


class _Area(NamedTuple):
    width: float
    height: float


def _treemap_page(
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
    from sidecar.workspace.footprint_report import TABLE_STYLE

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
    import squarify

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
    rows = [(entry.path, entry.number) for entry in files[:_MOST_FILES]]
    title = f"The largest {min(_MOST_FILES, len(files))} of {len(files):,} files"
    return f"<section><h2>{title}</h2>{table_html(title, ('File', 'Tokens'), rows)}</section>"
