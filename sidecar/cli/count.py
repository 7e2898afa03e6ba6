"""`token-sidecar count`: the tokens of files, folders and standard input."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sidecar.cli.counters import (
    load_settings_for,
    map_batches,
    run_with_counters,
    warn_if_unknown_model,
    window_of,
)
from sidecar.cli.output import print_json, print_lines, replace_invalid_utf8, warn, with_progress
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.files import STDIN, File, Skipped, find, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sidecar.cli.counters import ChooseCounter
    from sidecar.config.settings import Settings
    from sidecar.counting.count import Measure, Method
    from sidecar.counting.engines import Purpose
    from sidecar.workspace.counter_choice import CounterChooser

BULK_BYTES = 16_000_000
"""From this size on, the bulk engine pays off: it takes 0.4 s to load but counts much faster."""


class CountedFile(NamedTuple):
    """The count of one file; `damaged` if some bytes were not UTF-8."""

    path: str
    measure: Measure
    characters: int
    damaged: bool
    note: str | None = None
    """The reason why an endpoint gave no count."""


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--model", help="Model to count for (default: the setting `model`).")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def count(paths: tuple[str, ...], model: str | None, as_json: bool) -> None:
    """Count the tokens of each file at PATH (`-`: standard input), with a total.

    Folders are searched without ignored files (.gitignore) and symbolic links. Binary files are
    reported on standard error and skipped; bytes that are not UTF-8 count as U+FFFD. Estimates
    begin with `~`.

    Exit codes: 0; 2 a PATH cannot be read, or the configuration has an error.
    """
    sys.exit(run(paths, model, as_json))


def run(paths: Sequence[str], model: str | None = None, as_json: bool = False) -> int:
    """Print the counts of all paths and return the exit code."""
    settings, wrong = load_settings_for(paths[0])
    name = model or settings.model
    found = list(find(paths)) if len(paths) == 1 else _each_once(find(paths))
    files = [one for one in found if isinstance(one, File)]

    def work(
        chooser: CounterChooser, choose: ChooseCounter
    ) -> tuple[CounterChooser, list[CountedFile | Skipped]]:
        def count(batch: Sequence[File]) -> list[CountedFile | Skipped]:
            return [_counted(name, choose, file) for file in batch]

        return chooser, list(with_progress(map_batches(count, files), len(files), size))

    size = sum(file.size for file in files)
    purpose: Purpose = "bulk" if size >= BULK_BYTES else "interactive"
    chooser, results = run_with_counters(settings, [name], work, purpose)
    counted = [one for one in results if isinstance(one, CountedFile)]
    skipped = [one for one in (*found, *results) if isinstance(one, Skipped)]
    _report_skipped(counted, skipped)
    counted = [one._replace(note=_note(one, name, settings, chooser)) for one in counted]
    if as_json:
        _print_json(counted, skipped, name, settings, chooser)
    else:
        _print_text(counted)
        if settings.tokenize.use_endpoint:
            warn(*dict.fromkeys(one.note for one in counted if one.note))
    warn_if_unknown_model(name, settings)
    return 2 if wrong or any(one.failed for one in skipped) else 0


def _each_once(found: Iterable[File | Skipped]) -> list[File | Skipped]:
    """Return each path once, as first named."""
    known: dict[str, File | Skipped] = {}
    for one in found:
        path = one.path if one.path == STDIN else os.path.abspath(one.path)
        if not _named(known.setdefault(path, one)):
            known[path] = one
    return list(known.values())


def _named(one: File | Skipped) -> bool:
    return one.named if isinstance(one, File) else one.failed


def _counted(model: str, choose: ChooseCounter, file: File) -> CountedFile | Skipped:
    found = read(file)
    if isinstance(found, Skipped):
        return found
    made = choose(Snapshot(text=found.text), model)
    return CountedFile(
        file.path, made.measure(found.text), len(found.text), found.damaged, made.note
    )


def _report_skipped(counted: Sequence[CountedFile], skipped: Sequence[Skipped]) -> None:
    for other in skipped:
        warn(f"{other.path}: {other.reason}, skipped")
    for one in counted:
        if one.damaged:
            message = "not all of it is UTF-8; the other bytes count as U+FFFD"
            warn(f"{one.path}: {message}")


def _note(one: CountedFile, model: str, settings: Settings, chooser: CounterChooser) -> str | None:
    """Return the reason why no endpoint counted a file, in the server's words."""
    if one.note is not None or one.measure.method not in ("calibrated", "estimate"):
        return one.note
    return chooser.why_unasked(model, settings)


def _print_text(counted: Sequence[CountedFile]) -> None:
    """Print right-aligned counts and paths as wc does, with a total if there are several."""
    lines = [(one.measure, one.path) for one in counted]
    if len(lines) > 1:
        lines.append((_total(counted), "total"))
    numbers = [
        f"{'~' if made.method in ('calibrated', 'estimate') else ''}{made.tokens}"
        for made, _ in lines
    ]
    width = max(map(len, numbers), default=0)
    for number, (_, path) in zip(numbers, lines, strict=True):
        print_lines(f"{number:>{width}} {path}")


def _total(counted: Sequence[CountedFile]) -> Measure:
    """Return the sum of all tokens, with the method of the least reliable count."""
    from sidecar.counting.count import METHODS, Measure

    methods = [one.measure.method for one in counted]
    method: Method = max(methods, key=METHODS.index, default="exact")
    return Measure(sum(one.measure.tokens for one in counted), method, "")


def _print_json(
    counted: Sequence[CountedFile],
    skipped: Sequence[Skipped],
    model: str,
    settings: Settings,
    chooser: CounterChooser,
) -> None:
    total = _total(counted)
    result: dict[str, Any] = {
        "files": _public(counted, model, settings, chooser),
        "total": {"tokens": total.tokens, "files": len(counted), "method": total.method},
        "skipped": [
            {"path": replace_invalid_utf8(one.path), "reason": one.reason} for one in skipped
        ],
    }
    print_json(result)


def _public(
    counted: Sequence[CountedFile], model: str, settings: Settings, chooser: CounterChooser
) -> list[dict[str, Any]]:
    """Return each path with its count, window and price; loading the price list takes 0.7 s."""
    import msgspec

    from sidecar.context.window import NamedLimits
    from sidecar.workspace.state import State
    from sidecar.workspace.windows import Windows, look_up

    state = State()
    windows = Windows(state)
    look_up(state, model, settings)
    windows.mark_loaded(model, settings)
    named = NamedLimits(endpoint=window_of(chooser, model, settings))

    def public(one: CountedFile) -> dict[str, Any]:
        count = windows.count(
            one.measure, model, one.characters, settings, named=named, note=one.note
        )
        return {"path": replace_invalid_utf8(one.path), **msgspec.to_builtins(count)}

    return [public(one) for one in counted]
