"""`token-sidecar count`: counts the tokens in files, folders and standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sidecar.cli.output import (
    load_settings_for,
    print_json,
    print_lines,
    replace_invalid_utf8,
    warn,
    warn_if_unknown_model,
    with_progress,
)
from sidecar.counting.count_result import Measure, method_mark, weakest_method
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_choice import (
    ChooseCounter,
    ContentCounter,
    CounterChooser,
    map_batches,
)
from sidecar.project.files import STDIN, File, SkippedPath, Text, find, read
from sidecar.workspace.one_off_counts import ask_endpoint_window, run_with_counters

if TYPE_CHECKING:
    from sidecar.config.settings import Settings


class CountedFile(NamedTuple):
    """A file's token count. `damaged` is true if some of its bytes are not valid UTF-8."""

    path: str
    measure: Measure
    characters: int
    damaged: bool
    note: str | None = None
    """Why no endpoint counted the file."""


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--model", help="Model to count for (default: the `model` setting).")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def count(paths: tuple[str, ...], model: str | None, as_json: bool) -> None:
    """Count the tokens in files, in all files of folders, or in standard input (`-`).

    In folders, symbolic links, binary files and untracked files that git ignores are skipped. Each
    byte that is not valid UTF-8 is counted as U+FFFD. Estimates are marked with `~`.

    Exit codes: 0; 2 if a PATH cannot be read or the configuration is invalid.
    """
    settings, has_errors = load_settings_for(paths[0])
    name = model or settings.model
    found = list(find(paths)) if len(paths) == 1 else _deduplicate(find(paths))
    files = [entry for entry in found if isinstance(entry, File)]

    def work(
        chooser: CounterChooser, choose: ChooseCounter
    ) -> tuple[CounterChooser, list[CountedFile | SkippedPath]]:
        count_batch = partial(_count_files, name, ContentCounter(choose))
        return chooser, list(with_progress(map_batches(count_batch, files), len(files), size))

    size = sum(file.size for file in files)
    chooser, results = run_with_counters(settings, [name], work)
    counted = [result for result in results if isinstance(result, CountedFile)]
    skipped = [entry for entry in (*found, *results) if isinstance(entry, SkippedPath)]
    _report_skipped(counted, skipped)
    counted = [
        file._replace(note=_endpoint_note(file, name, settings, chooser)) for file in counted
    ]
    if as_json:
        _print_json(counted, skipped, name, settings, chooser)
    else:
        _print_text(counted)
        if settings.tokenize.use_endpoint:
            warn(*dict.fromkeys(file.note for file in counted if file.note))
    warn_if_unknown_model(name, settings)
    sys.exit(2 if has_errors or any(path.failed for path in skipped) else 0)


def _deduplicate(found: Iterable[File | SkippedPath]) -> list[File | SkippedPath]:
    """Return each file once, even if several paths or links lead to it.

    If a path was named on the command line, it is returned as it was spelled there.
    """
    entries: dict[str, File | SkippedPath] = {}
    for entry in found:
        is_stdin = isinstance(entry, File) and entry.is_stdin
        path = STDIN if is_stdin else os.path.realpath(entry.path)
        if not _is_named(entries.setdefault(path, entry)):
            entries[path] = entry
    return list(entries.values())


def _is_named(entry: File | SkippedPath) -> bool:
    return entry.named if isinstance(entry, File) else entry.failed


def _count_files(
    model: str, counter: ContentCounter, files: Sequence[File]
) -> list[CountedFile | SkippedPath]:
    contents = [read(file) for file in files]
    texts = [content.text for content in contents if isinstance(content, Text)]
    choices = iter(counter.choose_counters([Snapshot(text=text) for text in texts], model))
    results = list[CountedFile | SkippedPath]()
    for file, content in zip(files, contents, strict=True):
        if isinstance(content, SkippedPath):
            results.append(content)
        else:
            text, choice = content.text, next(choices)
            measure = choice.measure(text)
            results.append(CountedFile(file.path, measure, len(text), content.damaged, choice.note))
    return results


def _report_skipped(counted: Sequence[CountedFile], skipped: Sequence[SkippedPath]) -> None:
    for path in skipped:
        warn(f"{path.path}: {path.reason}, skipped")
    for file in counted:
        if file.damaged:
            warn(f"{file.path}: some bytes are not UTF-8; each is counted as U+FFFD")


def _endpoint_note(
    file: CountedFile, model: str, settings: Settings, chooser: CounterChooser
) -> str | None:
    if file.note is not None or file.measure.method not in ("calibrated", "estimate"):
        return file.note
    return chooser.why_not_asked(model, settings)


def _print_text(counted: Sequence[CountedFile]) -> None:
    lines = [(file.measure, file.path) for file in counted]
    if len(lines) > 1:
        lines.append((_total_measure(counted), "total"))
    # Without separators, as in `wc`, so that `sort -n` can read the numbers.
    numbers = [f"{method_mark(measure.method)}{measure.tokens}" for measure, _ in lines]
    width = max(map(len, numbers), default=0)
    for number, (_, path) in zip(numbers, lines, strict=True):
        print_lines(f"{number:>{width}} {path}")


def _total_measure(counted: Sequence[CountedFile]) -> Measure:
    method = weakest_method(file.measure.method for file in counted)
    return Measure(sum(file.measure.tokens for file in counted), method, "")


def _print_json(
    counted: Sequence[CountedFile],
    skipped: Sequence[SkippedPath],
    model: str,
    settings: Settings,
    chooser: CounterChooser,
) -> None:
    total = _total_measure(counted)
    result: dict[str, Any] = {
        "files": _describe_files(counted, model, settings, chooser),
        "total": {"tokens": total.tokens, "files": len(counted), "method": total.method},
        "skipped": [
            {"path": replace_invalid_utf8(path.path), "reason": path.reason} for path in skipped
        ],
    }
    print_json(result)


def _describe_files(
    counted: Sequence[CountedFile], model: str, settings: Settings, chooser: CounterChooser
) -> list[dict[str, Any]]:
    import msgspec

    from sidecar.counting.windows import Windows, find_window, load_window_and_price
    from sidecar.models.window import NamedLimits
    from sidecar.workspace.state_folder import State

    windows = Windows(State().estimate)
    load_window_and_price(windows.estimate, model, settings)
    windows.mark_loaded(model, settings)
    reported = NamedLimits(endpoint=ask_endpoint_window(chooser, model, settings))
    limit = find_window(model, settings, reported)

    def describe(file: CountedFile) -> dict[str, Any]:
        count = windows.count(file.measure, model, file.characters, settings, limit, file.note)
        return {"path": replace_invalid_utf8(file.path), **msgspec.to_builtins(count)}

    return [describe(file) for file in counted]
