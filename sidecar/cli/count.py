"""`token-sidecar count`: tokens of files, folders and standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sidecar.counting.incremental import count_text
from sidecar.workspace.files import STDIN, File, Skipped, find, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sidecar.config.settings import Settings
    from sidecar.counting.count import Tokenizer

BULK_BYTES = 16_000_000
"""From here on an engine pays that takes 0.4 s to load and then counts several times faster."""
LONG_WORK = 8_000_000
"""Bytes from which on a terminal is shown how far the work has come."""

BATCH, BATCH_BYTES = 64, 1_000_000


class Counted(NamedTuple):
    """One file's number; `damaged` when some of its bytes were not UTF-8."""

    path: str
    tokens: int
    characters: int
    damaged: bool


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--model", help="Count for this model; default: the setting `model`.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def count(paths: tuple[str, ...], model: str | None, as_json: bool) -> None:
    """Print the tokens of each file at PATH (`-`: standard input), and of all together.

    In folders, what .gitignore excludes is left out, and so are symbolic links. Binary files are
    named on standard error and not counted; bytes that are not UTF-8 count as U+FFFD. Numbers that
    are not exact for the model begin with `~`.

    Exits 0; 2 where a PATH cannot be read or the configuration is wrong.
    """
    settings, wrong = _settings(paths[0])
    name = model or settings.model
    found = list(find(paths))
    files = [one for one in found if isinstance(one, File)]
    tokenizer = _tokenizer(settings, name, sum(file.size for file in files))
    results = list(_with_progress(_count_all(files, tokenizer), files))
    counted = [one for one in results if isinstance(one, Counted)]
    skipped = [one for one in (*found, *results) if isinstance(one, Skipped)]
    _tell(counted, skipped)
    if as_json:
        _print_json(counted, skipped, tokenizer, name, settings)
    else:
        _print_text(counted, tokenizer)
    sys.exit(2 if wrong or any(one.failed for one in skipped) else 0)


def _settings(path: str) -> tuple[Settings, bool]:
    """The settings where the first path is, and whether something in them is wrong."""
    from sidecar.config.load import find_root, load

    loaded = load(find_root(Path.cwd() if path == STDIN else Path(path).absolute()))
    for problem in loaded.problems:
        click.echo(f"token-sidecar: {problem}", err=True)
    return loaded.settings, any(problem.severity == "error" for problem in loaded.problems)


def _tokenizer(settings: Settings, model: str, size: int) -> Tokenizer:
    from sidecar.counting.engines import engine, names
    from sidecar.counting.tokenizers import Tokenizers

    tokenizer = Tokenizers(settings.tokenizers, settings.tokenize.estimator).for_model(model)
    if size >= BULK_BYTES and tokenizer.name in names():
        return engine(tokenizer.name, "bulk")
    tokenizer.count("a")  # a vocabulary from a file says only now how it really counts
    return tokenizer


def _count_all(files: Sequence[File], tokenizer: Tokenizer) -> Iterator[Counted | Skipped]:
    def one(file: File) -> Counted | Skipped:
        text = read(file)
        if isinstance(text, Skipped):
            return text
        tokens = count_text(text.text, tokenizer)
        return Counted(file.path, tokens, len(text.text), text.damaged)

    if sum(file.size for file in files) < BULK_BYTES:
        yield from map(one, files)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:  # reading goes on while others count
        for batch in pool.map(lambda batch: list(map(one, batch)), _batches(files)):
            yield from batch


def _batches(files: Sequence[File]) -> Iterator[list[File]]:
    """Files in handfuls: handing over one at a time costs more than counting a small one."""
    batch: list[File] = []
    for file in files:
        batch.append(file)
        if len(batch) == BATCH or sum(one.size for one in batch) > BATCH_BYTES:
            yield batch
            batch = []
    yield batch


def _with_progress(
    results: Iterator[Counted | Skipped], files: Sequence[File]
) -> Iterable[Counted | Skipped]:
    if not sys.stderr.isatty() or sum(file.size for file in files) < LONG_WORK:
        return results
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(results, "Counting", len(files), console=console, transient=True)


def _tell(counted: Sequence[Counted], skipped: Sequence[Skipped]) -> None:
    for other in skipped:
        click.echo(f"token-sidecar: {_shown(other.path)}: {other.reason}, skipped", err=True)
    for one in counted:
        if one.damaged:
            message = "not all of it is UTF-8, the rest is counted as U+FFFD"
            click.echo(f"token-sidecar: {_shown(one.path)}: {message}", err=True)


def _print_text(counted: Sequence[Counted], tokenizer: Tokenizer) -> None:
    """As wc does: a right-aligned number and the path, and a total if there are several."""
    lines = [(one.tokens, _shown(one.path)) for one in counted]
    if len(lines) > 1:
        lines.append((sum(one.tokens for one in counted), "total"))
    sign = "" if tokenizer.method in ("exact", "endpoint") else "~"
    numbers = [f"{sign if tokens else ''}{tokens}" for tokens, _ in lines]
    width = max(map(len, numbers), default=0)
    for number, (_, path) in zip(numbers, lines, strict=True):
        click.echo(f"{number:>{width}} {path}")


def _print_json(
    counted: Sequence[Counted],
    skipped: Sequence[Skipped],
    tokenizer: Tokenizer,
    model: str,
    settings: Settings,
) -> None:
    import msgspec

    total = sum(one.tokens for one in counted)
    result: dict[str, Any] = {
        "files": _public(counted, tokenizer, model, settings),
        "total": {
            "tokens": total,
            "files": len(counted),
            "method": tokenizer.method if total else "exact",
        },
        "skipped": [{"path": _shown(one.path), "reason": one.reason} for one in skipped],
    }
    click.echo(msgspec.json.encode(result).decode())


def _public(
    counted: Sequence[Counted], tokenizer: Tokenizer, model: str, settings: Settings
) -> list[dict[str, Any]]:
    """Each file's path and Count, with the model's window and price (which take 0.7 s to load)."""
    import msgspec

    from sidecar.context.window import Window, resolve_limit
    from sidecar.counting import catalogue
    from sidecar.counting.count import Count

    known = catalogue.window_of(model)
    limit = resolve_limit(catalogue=known, setting=settings.context.limit)
    window = Window(limit, settings.context.reserve)
    price = _price_of(model, settings)

    def public(one: Counted) -> Count:
        return Count(
            tokens=one.tokens,
            method=tokenizer.method if one.tokens else "exact",
            tokenizer=tokenizer.name,
            model=model,
            error_percent=tokenizer.error_percent if one.tokens else 0.0,
            characters=one.characters,
            limit=limit.tokens,
            percent=window.percent(one.tokens),
            input_cost_usd=price(one.tokens),
        )

    return [{"path": _shown(one.path), **msgspec.to_builtins(public(one))} for one in counted]


def _price_of(model: str, settings: Settings) -> Callable[[int], float | None]:
    """What so many uncached input tokens cost in USD; None where nobody says."""
    from sidecar.config.paths import state_dir
    from sidecar.cost.book import provider_of
    from sidecar.cost.events import Buckets
    from sidecar.cost.price_list import STORED_LIST
    from sidecar.cost.prices import Prices

    prices, provider = Prices(settings.prices, state_dir() / STORED_LIST), provider_of(model)

    def price(tokens: int) -> float | None:
        cost = prices.price(Buckets(input=tokens), model, provider)
        return None if cost is None else float(cost)

    return price


def _shown(path: str) -> str:
    """A path that can be printed: names may hold bytes that are no UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
