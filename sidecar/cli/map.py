"""`token-sidecar map`: shows the number of tokens in each subfolder and file of a folder."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

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

if TYPE_CHECKING:
    from sidecar.budgets.check_report import Report
    from sidecar.config.settings import Loaded, Settings

_BAR = 20
_MOST_LINES = 40
_MOST_PROMPT_FILES = 10


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
        from sidecar.cli.treemap import treemap_page
    except ModuleNotFoundError as error:
        if error.name != "squarify":
            raise
        warn(f"the treemap requires additional packages; {how_to_install('treemap')}")
        sys.exit(2)
    always = [(file.path, file.number, first_names(file.agents)) for file in found.prompt_files]
    page = treemap_page(found.folder, _head(found), found.entries, always, footprint)
    write_page(page, path)
