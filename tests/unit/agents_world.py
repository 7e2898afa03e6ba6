"""A user's home with agents' files in it, and the ledger that their calls come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.agents.truth import Tokens
from sidecar.agents import ingest, live
from sidecar.agents.places import Places
from sidecar.agents.reader import readers_of
from sidecar.agents.roots import Roots
from sidecar.config.settings import Agents
from sidecar.cost.ledger import Ledger
from sidecar.workspace.history import event_of

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.agents.truth import Truth
    from sidecar.agents.values import Call, Mark, StoredSession


def recorded(ledger: Ledger) -> dict[str, tuple[str, Tokens]]:
    """A ledger's calls by their ids: session and tokens."""
    with ledger.reader() as connection:
        rows = connection.execute(
            "SELECT request, session.name, input, cache_read,"
            " cache_write_5m + cache_write_1h + cache_write, cache_write_1h,"
            " output + reasoning, reasoning"
            " FROM event JOIN session ON session.id = event.session"
        )
        return {row[0]: (row[1], Tokens(*row[2:])) for row in rows}


class World:
    """One agent's files below `home`, read as the workspace does."""

    def __init__(self, home: Path, agent: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.root = home / "work" / "my proj.ect"
        self.root.mkdir(parents=True)
        self.settings = Agents(sources=(agent,))
        self.places = Places.of(self.settings, {"HOME": str(home), **(env or {})})
        self.readers = readers_of(self.settings)
        self.ledger = Ledger(home / "state" / "ledger.db")
        self.marks: dict[str, Mark] = {}
        self.bytes_read = 0
        self.calls: list[Call] = []

    def ingest(self) -> int:
        """Read what is new into the ledger; how many bytes that was."""
        before = self.bytes_read
        stores = ingest.plan(self.readers, self.places, self.marks)
        for path in stores.vanished:
            del self.marks[path]
        for batch in ingest.read(self.readers, stores.stores, self.marks):
            self.ledger.record_many(map(event_of, batch.calls), amend=True)
            self.marks[batch.mark.path] = batch.mark
            self.bytes_read += batch.bytes_read
            self.calls += batch.calls
        return self.bytes_read - before

    def recorded(self) -> dict[str, tuple[str, Tokens]]:
        """The ledger's calls by their ids: session and tokens."""
        return recorded(self.ledger)

    def check(self, truth: Truth) -> None:
        """The ledger holds exactly the calls of the truth."""
        assert self.recorded() == truth.calls

    def sessions(self, root: Path | None = None) -> dict[str, StoredSession]:
        """The sessions of a root by their ids, newest first."""
        seen = live.look(self.readers, self.places, Roots.of([root or self.root]))
        assert seen.failed == {}
        return {session.id: session for session in seen.sessions}

    def check_context(self, truth: Truth) -> None:
        """Each session's context is that of the truth."""
        shown = {name: one.occupancy.tokens for name, one in self.sessions().items()}
        assert shown == truth.context
