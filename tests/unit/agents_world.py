"""A user's home with agents' files in it, and the ledger that their calls come to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.agents.truth import Tokens
from sidecar.agents.adapter import index_readers
from sidecar.agents.events import CallFinished
from sidecar.agents.places import Places
from sidecar.agents.reader import readers_of
from sidecar.agents.roots import Roots
from sidecar.config.settings import Agents
from sidecar.cost.ledger import Ledger
from sidecar.workspace.session_index import SessionIndex

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.agents.truth import Truth
    from sidecar.agents.events import Store, StoreRead, StoreReader
    from sidecar.agents.values import Call, StoredSession


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


class Heard:
    """A reader whose readings a test looks at."""

    def __init__(self, reader: StoreReader, world: World) -> None:
        self._reader, self._world = reader, world
        self.agent = reader.agent
        self.folders, self.find, self.store_at = reader.folders, reader.find, reader.store_at
        self.is_copy, self.title, self.window = reader.is_copy, reader.title, reader.window

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        found = self._reader.read(store, state)
        self._world.calls += [one for one in found.events if isinstance(one, CallFinished)]
        self._world.skipped[store.path] += found.skipped
        return found


class World:
    """One agent's files below `home`, read as the workspace does."""

    def __init__(self, home: Path, agent: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.root = home / "work" / "my proj.ect"
        self.root.mkdir(parents=True)
        self.settings = Agents(sources=(agent,))
        self.places = Places.of(self.settings, {"HOME": str(home), **(env or {})})
        self.readers = readers_of(self.settings)
        self.calls: list[Call] = []
        """All that readers handed on, copies too."""
        self.skipped: Counter[str] = Counter()
        """Broken lines, by store."""
        self.bytes_read = 0
        self._heard = [Heard(one, self) for one in self.index_readers(self.root)]
        self.ledger = Ledger(home / "state" / "ledger.db")
        self.index = SessionIndex(self.ledger)

    def index_readers(self, root: Path) -> tuple[StoreReader, ...]:
        return index_readers(self.readers, self.places, Roots.of([root]))

    def ingest(self) -> int:
        """Read what is new into the index; how many bytes that was."""
        stores = self.stores()
        self.index.forget_missing(self._heard, {store.path for store in stores})
        done = self.index.read(self._heard, self.index.unread(self._heard, stores))
        self.bytes_read += done.bytes_read
        return done.bytes_read

    def states(self) -> dict[str, bytes]:
        """What is kept of each store for its next reading."""
        with self.ledger.reader() as connection:
            return dict(connection.execute("SELECT path, state FROM store"))

    def stores(self) -> list[Store]:
        """All stores of the agent."""
        return [store for reader in self.readers for store in reader.find(self.places)]

    def recorded(self) -> dict[str, tuple[str, Tokens]]:
        """The ledger's calls by their ids: session and tokens."""
        return recorded(self.ledger)

    def check(self, truth: Truth) -> None:
        """The ledger holds exactly the calls of the truth."""
        assert self.recorded() == truth.calls

    def sessions(self, root: Path | None = None) -> dict[str, StoredSession]:
        """The sessions of a root by their ids, newest first."""
        roots = Roots.of([root or self.root])
        readers = self.index_readers(root or self.root)
        stores = [store for reader in readers for store in reader.find(self.places, roots)]
        self.index.read(readers, self.index.unread(readers, stores, preview=True), preview=True)
        found = self.index.sessions(readers, self.places, roots)
        return {session.id: session for session in found}

    def check_context(self, truth: Truth) -> None:
        """Each session's context is that of the truth."""
        shown = {name: one.occupancy.tokens for name, one in self.sessions().items()}
        assert shown == truth.context
