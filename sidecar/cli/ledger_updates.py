"""Opens the ledger for commands, records new calls in it, and handles errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.output import print_problems, warn
from sidecar.errors import SidecarError
from sidecar.text.printable import local_time_text

if TYPE_CHECKING:
    from sidecar.agents.session_index import Unread
    from sidecar.config.settings import Loaded, Settings
    from sidecar.cost.book import CostBook

NOT_ALL_READ = "agents' session files could not all be read: calls before {} may be missing"


def update_ledger(book: CostBook, settings: Settings, workspace: Path | None) -> Unread | None:
    """Record new calls that agents made in a workspace, and compute costs after a price change.

    If `workspace` is None, record the new calls in all workspaces. Returns what the ledger then
    still lacks, or None if it has all calls.
    """
    unread = _ingest_agents(book, settings, workspace)
    update_costs(book)
    return unread


def warn_of_unread(unread: Unread | None) -> None:
    """Warn if the ledger lacks calls, given what `update_ledger` returns."""
    if unread is not None:
        warn(NOT_ALL_READ.format(local_time_text(unread.before)))


@contextmanager
def updated_book(
    book: CostBook, settings: Settings, workspace: Path | None, also: Sequence[Path]
) -> Iterator[CostBook]:
    """Update the ledger as `update_ledger` does, and yield it with the calls of other files.

    Warns if the ledger then lacks calls.

    Args:
        book: The user's ledger.
        settings: The settings, which may name further files (`ledger.also`).
        workspace: Whose new calls to record, or None for all workspaces.
        also: Ledgers and exports of other machines.
    """
    from sidecar.cost.export import merge_ledgers, named_files

    warn_of_unread(update_ledger(book, settings, workspace))
    files = named_files(also, settings.ledger)
    if not files:
        yield book
        return
    with closing(merge_ledgers(book, files)) as merged:
        yield merged


def update_costs(book: CostBook) -> None:
    """Compute the costs of recorded calls after a change of prices, with progress on a terminal."""
    from sidecar.cost.repricing import price_calls

    is_shown = False

    def show(share: float) -> None:
        nonlocal is_shown
        if share < 1 and sys.stderr.isatty():
            is_shown = True
            click.echo(f"\rPricing calls: {share:4.0%}", nl=False, err=True)

    price_calls(book.ledger, progress=show)
    if is_shown:
        click.echo("\rPricing calls: 100%", err=True)


def try_to_update_costs() -> None:
    """Compute the costs of recorded calls after a change of prices. If this fails, print why."""
    from sidecar.config.load import load
    from sidecar.config.paths import state_dir
    from sidecar.cost.book import CostBook
    from sidecar.cost.ledger import LedgerError

    loaded = load(None)
    is_updated = False
    if not print_problems(loaded.problems):
        try:
            with closing(CostBook(state_dir(), loaded.settings.prices)) as book:
                update_costs(book)
            is_updated = True
        except LedgerError as error:
            warn(str(error))
    if not is_updated:
        warn("recorded calls keep their costs until `token-sidecar cost` prices them again")


def _ingest_agents(book: CostBook, settings: Settings, workspace: Path | None) -> Unread | None:
    from sidecar.agents.reader_registry import Sources
    from sidecar.agents.session_index import read_all
    from sidecar.config.paths import find_root

    root = find_root(Path.cwd()) if workspace is None else workspace.resolve()
    sources = Sources.of(settings.agents, str(root))
    if sources is None:
        return None
    # This also finds agents that keep their sessions in the project.
    result = read_all(book, sources, mine=True)
    if workspace is None:
        result = read_all(book, sources, mine=False)
    return result.unread


@contextmanager
def open_ledger() -> Iterator[tuple[CostBook, Loaded]]:
    """Open the ledger with the user's settings.

    On failure, print the error and exit with code 2.
    """
    from sidecar.config.load import load
    from sidecar.config.paths import state_dir
    from sidecar.cost.book import CostBook

    loaded = load(None)
    if print_problems(loaded.problems):
        sys.exit(2)
    with exit_on_errors():
        book = CostBook(state_dir(), loaded.settings.prices)
        try:
            yield book, loaded
        finally:
            book.close()


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """If an expected error occurs, print it and exit with code 2."""
    try:
        yield
    except (ValueError, SidecarError) as error:
        warn(str(error))
        sys.exit(2)
