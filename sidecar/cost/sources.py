"""How far the files were read that calls come from, kept in the ledger beside those calls.

A mark is its reader's own; here it is bytes. Kept in the transaction of the calls that it covers,
it can neither lose nor repeat one, and goes with the ledger when that is moved away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable


def marks_in(
    connection: sqlite3.Connection, paths: Collection[str] | None = None
) -> dict[str, bytes]:
    """The marks of these files, or of all, by path."""
    if paths is None:
        return dict(connection.execute("SELECT path, mark FROM source"))
    found = (
        connection.execute("SELECT path, mark FROM source WHERE path = ?", (path,)).fetchone()
        for path in paths
    )
    return dict(row for row in found if row is not None)


def keep_marks(
    connection: sqlite3.Connection, marks: Iterable[tuple[str, bytes]], refused: int = 0
) -> None:
    """Keep marks, and how many of the calls before the last of them were refused."""
    for path, mark in marks:
        connection.execute(
            "INSERT INTO source (path, mark, refused) VALUES (?, ?, ?) ON CONFLICT (path) "
            "DO UPDATE SET mark = excluded.mark, refused = refused + excluded.refused",
            (path, mark, refused),
        )
        refused = 0


def forget_marks(connection: sqlite3.Connection, paths: Iterable[str]) -> None:
    """Files that are gone: their calls stay."""
    connection.executemany("DELETE FROM source WHERE path = ?", ((path,) for path in paths))
