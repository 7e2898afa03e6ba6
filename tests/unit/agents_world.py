"""Provides `World`: a home folder with agents' files, a session index and a ledger; and `Editor`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.agents.truth import Tokens, Truth
from benchmarks.transcripts import recorded
from sidecar.agents.folders import Places, Roots
from sidecar.agents.reader_registry import Sources, readers_of
from sidecar.agents.session_events import CallFinished, Store, StoredSession, StoreRead, StoreReader
from sidecar.agents.session_index import SessionIndex
from sidecar.config.settings import Agents
from sidecar.conversations.context_protocol import SessionRow
from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import LedgerEvent
from sidecar.cost.sums import Scope, read_events
from sidecar.known_agents import all_agents
from sidecar.workspace.services import Services
from sidecar.workspace.state_folder import State


class RecordingReader:
    """A reader that also adds the calls and the number of malformed lines to a `World`."""

    def __init__(self, reader: StoreReader, world: World) -> None:
        self._reader, self._world = reader, world
        self.agent = reader.agent
        self.folders, self.find, self.store_at = reader.folders, reader.find, reader.store_at
        self.title, self.window = reader.title, reader.window
        self.limits, self.measure = reader.limits, reader.measure
        self.compacts_at, self.own_full = reader.compacts_at, reader.own_full
        self.made_call, self.mcp_texts = reader.made_call, reader.mcp_texts
        self.for_agent = reader.for_agent

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        found = self._reader.read(store, state)
        self._world.calls += found.calls
        self._world.agent_of |= {str(call.request_id): self.agent for call in found.calls}
        self._world.skipped[store.path] += found.skipped
        return found


def forks_of(reader: str) -> list[str]:
    """Return the agents whose files another agent's reader reads."""
    return [name for name, agent in all_agents().items() if agent.reader == reader]


class World:
    """A home folder with agents' files, and a session index and ledger for them."""

    def __init__(self, home: Path, agents: str | Agents, env: dict[str, str] | None = None) -> None:
        """Create an empty home folder.

        Args:
            home: The path of the home folder.
            agents: The `agents` settings, or the name of the only agent.
            env: Additional environment variables.
        """
        self.home = home
        self.root = home / "work" / "my proj.ect"
        self.root.mkdir(parents=True, exist_ok=True)
        self.settings = Agents(sources=(agents,)) if isinstance(agents, str) else agents
        self.places = Places.of(self.settings, {"HOME": str(home), **(env or {})})
        self.readers = readers_of(self.settings)
        self.calls: list[CallFinished] = []
        """All calls that the readers returned, including duplicates."""
        self.agent_of: dict[str, str] = {}
        """The agent that made each call, by call id."""
        self.skipped: Counter[str] = Counter()
        """The number of malformed lines in each store."""
        self.bytes_read = 0
        self.refused = 0
        """The number of calls that were rejected because of impossible values."""
        self._recording = [RecordingReader(reader, self) for reader in self.readers]
        self.ledger = Ledger(home / "state" / "ledger.db")
        self.index = SessionIndex(self.ledger)

    @property
    def folder(self) -> Path:
        """The default folder of the only agent, even if it does not exist yet."""
        (agent,) = self.settings.sources or ()
        (path,) = self.places.named_paths(all_agents()[agent].folders[-1].replace("*", "x"))
        return path

    def ingest(self) -> int:
        """Read new data into the index, and return the number of bytes read."""
        stores = self.stores()
        self.index.forget_missing(self._recording, stores)
        result = self.index.read(self._recording, self.index.unread(stores))
        self.bytes_read += result.bytes_read
        self.refused += result.refused
        return result.bytes_read

    def states(self) -> dict[str, bytes]:
        """Return the saved reader state of each store."""
        with self.ledger.reader() as connection:
            return dict(connection.execute("SELECT path, state FROM store"))

    def stores(self) -> list[Store]:
        """Return the stores of all agents."""
        return [store for reader in self.readers for store in reader.find(self.places)]

    def recorded(self) -> dict[str, tuple[str, Tokens]]:
        """Return the session and token counts of each call in the ledger, by call id."""
        return recorded(self.ledger)

    def recorded_calls(self) -> list[LedgerEvent]:
        """Return the calls in the ledger, oldest first."""
        return list(read_events(self.ledger, Scope()))

    def check(self, truth: Truth) -> None:
        """Check the calls in the ledger, and the sizes of the sessions' contexts."""
        self.check_calls(truth)
        self.check_context(truth)

    def check_calls(self, truth: Truth) -> None:
        """Read new data, and check that the ledger contains exactly the expected calls."""
        self.ingest()
        assert self.recorded() == truth.calls

    def shown(self, root: Path | None = None) -> list[StoredSession]:
        """Return the sessions that the editor lists for a root folder, newest first."""
        roots = Roots.of([root or self.root])
        readers = self._recording
        stores = [store for reader in readers for store in reader.find(self.places, roots)]
        self.index.read(readers, self.index.unread(stores))
        return self.index.sessions(Sources(tuple(readers), self.places, roots))

    def sessions(self, root: Path | None = None) -> dict[str, StoredSession]:
        """Return the listed sessions of a root folder by id, newest first."""
        return {session.id: session for session in self.shown(root)}

    def check_context(self, truth: Truth) -> None:
        """Check that each session's context has the expected size."""
        shown = {name: one.tokens for name, one in self.sessions().items()}
        assert shown == truth.context


class Editor:
    """A server's workspace with one root folder."""

    def __init__(self, root: Path, state: Path) -> None:
        self.services = Services(state=State(state))
        self.workspace = self.services.roots.add(root.as_uri())
        self.workspace.path = root
        self.services.configured.set()

    async def look(self) -> list[str]:
        """Read the sessions as the server does when it starts, and return their ids."""
        await self.services.agents.find_sessions(self.workspace)
        return self.shown()

    def rows(self) -> list[SessionRow]:
        return self.services.sessions(self.workspace).rows(every=True)

    def shown(self) -> list[str]:
        return [row.id for row in self.rows()]

    async def read_changed(self, *paths: str | Path) -> None:
        await self.services.agents.read_changed(self.workspace, [*map(str, paths)])

    async def close(self) -> None:
        await self.services.aclose()
        self.services.workers.close()
