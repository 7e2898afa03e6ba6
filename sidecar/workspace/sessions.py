"""The sessions of a workspace, which of them is shown, and how full it is.

Sessions are conversations that clients feed, agents' own sessions, and conversations of other
processes. `conversations.py` applies changes; while only agents' sessions are known it is not
imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sidecar.context.thresholds import budget_message, crossed
from sidecar.context.usage import ContextUsage, ContextWarning, SessionInfo, SessionRow, in_window
from sidecar.context.window import Limit, NamedLimits, Window, level, resolve_limit, severity
from sidecar.counting.calibration import ConversationCalibration
from sidecar.counting.count import Method
from sidecar.errors import BadParamsError
from sidecar.text.printable import message as printable
from sidecar.workspace.windows import limit_of
from sidecar.workspace.workspace import ContextState, Event, Workspace

if TYPE_CHECKING:
    from sidecar.context.conversation import Conversation
    from sidecar.context.session import Session
    from sidecar.workspace.documents import FollowedSection
    from sidecar.workspace.shared import Shared

DEFAULT_ID = "default"
"""The id of the conversation that is created if a client names none and there is none."""
SESSIONS_KEPT = 256
NO_REPLY = "no reply yet"
"""Shown while an agent's session has no reply: its file names the model with the first one."""

PROTOCOL_OUTRANKS = timedelta(minutes=30)
"""How long a client's conversation is shown in preference to a newer agent session."""


_SHARED = 64
"""How many conversations are shared with other processes; the newest come first."""

PROTOCOL = "protocol"
"""The source of a conversation that a client feeds."""
RECENT = timedelta(hours=24)
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""The time of sessions that must not become the current one."""


class CountedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session known by its counts: of an agent's file, or a conversation of another server."""

    id: str
    source: str
    """The agent's name, or `PROTOCOL`."""
    updated_at: datetime
    title: str | None = None
    model: str | None = None
    tokens: int | None = None
    quality: Method = "exact"
    """How the tokens were counted."""
    error_percent: float = 0.0
    """Error band (±%) of the tokens."""
    limit: int | None = None
    """The window in tokens that the agent names."""
    note: str | None = None
    """Why a number is missing or weak."""
    state: Literal["running", "idle", "ended"] = "idle"
    parent: str | None = None
    compacted: bool = False
    usage: ContextUsage | None = None
    """For a conversation of another server: its usage as that server computed it."""


def from_usage(usage: ContextUsage) -> CountedSession | None:
    """Return another server's conversation by its usage; None if that names no session."""
    info = usage.session
    if info is None:
        return None
    try:
        updated_at = datetime.fromisoformat(info.updated_at)
    except ValueError:
        return None
    return CountedSession(
        id=info.id, source=PROTOCOL, updated_at=updated_at, model=usage.model, usage=usage
    )


class ConversationStore:
    """Conversations by id; the least recently used one is dropped when there are too many."""

    def __init__(self) -> None:
        self._known: dict[str, Conversation] = {}
        self._used: dict[str, int] = {}
        """When each was last put, as a rising number; none for those only added."""
        self._puts = 0

    def __iter__(self) -> Iterator[Conversation]:
        return iter(tuple(self._known.values()))

    def get(self, session_id: str | None) -> Conversation | None:
        """The conversation of an id, by default the current one; None where there is none."""
        return self.current() if session_id is None else self._known.get(session_id)

    def add(self, session: Session) -> Conversation:
        """Add a restored session, which counts as never used."""
        from sidecar.context.conversation import Conversation

        added = self._known[session.id] = Conversation(session)
        self._drop()
        return added

    def put(self, conversation: Conversation) -> str | None:
        """Replace the conversation with the same id, or add one. Returns the id of the one that
        was dropped to make room, if any."""
        self._puts += 1
        self._used[conversation.session.id] = self._puts
        self._known[conversation.session.id] = conversation
        return self._drop()

    def _drop(self) -> str | None:
        if len(self._known) <= SESSIONS_KEPT:
            return None
        oldest = min(self._known.values(), key=self._use).session.id
        del self._known[oldest]
        self._used.pop(oldest, None)
        return oldest

    def _use(self, one: Conversation) -> tuple[int, datetime]:
        return self._used.get(one.session.id, 0), one.session.updated_at

    def current(self) -> Conversation | None:
        """The most recently updated one."""
        every = reversed(self._known.values())
        return max(every, key=lambda one: one.session.updated_at, default=None)


@dataclass(eq=False)
class ConversationState:
    """A conversation's state besides its content; only `Conversations` writes it."""

    named_model: str | None = None
    """The model that a client named for it."""
    answered_model: str | None = None
    """The model that its last reply named."""
    refused_limits: dict[str, int] = field(default_factory=dict)
    """Windows in tokens, by model, that a server named when it refused the prompt."""
    calibration: ConversationCalibration | None = None
    """The calibration by its reported usage; None before the first report."""
    warned_level: int = 0
    """How many thresholds it had reached at the last check."""
    counted_layout: int | None = None
    """The layout that an endpoint has counted, as far as it could."""
    asking: int = 0
    """How many requests for an endpoint's count are running."""


class Sessions:
    """All sessions of one workspace, and which one is shown. For the event loop."""

    def __init__(self, services: Shared, workspace: Workspace) -> None:
        self._services, self._workspace = services, workspace
        self.store = ConversationStore()
        self._states: dict[str, ConversationState] = {}
        self._counted: dict[str, CountedSession] = {}
        """Agents' sessions that are followed, by id."""
        self._older: dict[str, CountedSession] = {}
        """Agents' older sessions, as of the last request for all sessions."""
        self._elsewhere: dict[str, CountedSession] = {}
        """Conversations that other running servers hold."""
        self.chosen: str | None = None
        """The model that was named for no session in particular; documents are counted for it."""
        self.selected: str | None = None
        self._selected_had_ended = False
        """Whether the selected session is an agent's that had ended before it was selected."""
        self._warned: dict[str, tuple[int, bool]] = {}
        """Of agents' sessions: how many thresholds are reached, and whether it was compacted."""
        self._published: Conversation | CountedSession | None = None
        self._listed: tuple[Any, ...] = ()
        """What the sessions' rows were made of when the state was published."""

    def model_of(self, session_id: str) -> str:
        """Return the model that a session counts for."""
        return self._named(session_id) or self._workspace.settings.model

    def _named(self, session_id: str) -> str | None:
        state = self.state_of(session_id)
        return state.named_model or state.answered_model or self.chosen

    def state_of(self, session_id: str) -> ConversationState:
        """Return a conversation's state; an empty one for an unknown id."""
        return self._states.get(session_id) or ConversationState()

    def add(self, session: Session) -> ConversationState:
        """Add a restored session. Returns its state."""
        self.store.add(session)
        return self._states.setdefault(session.id, ConversationState())

    def put(self, conversation: Conversation) -> ConversationState:
        """Replace the conversation with the same id, or add one. Returns its state."""
        dropped = self.store.put(conversation)
        if dropped is not None:
            self._states.pop(dropped, None)
        return self._states.setdefault(conversation.session.id, ConversationState())

    # -- which session ----------------------------------------------------------------------

    def find(self, session_id: str | None) -> Conversation | CountedSession | None:
        """The session that a question is about: the one with this id, else the selected one, else
        one that a client has fed in the last 30 minutes, else the one updated last."""
        named = session_id or self._selected()
        if named is not None:
            return self._by_id(named)
        mine = self._newest_conversation()
        latest = max(self._counted.values(), key=lambda one: one.updated_at, default=None)
        if mine is None or latest is None:
            return mine or latest
        fresh = datetime.now(UTC) - PROTOCOL_OUTRANKS
        return mine if _updated_at(mine) >= min(latest.updated_at, fresh) else latest

    def next_change(self) -> datetime | None:
        """When another session will be shown though no session changes; None for never."""
        shown = self.find(None)
        if shown is None or self._selected() is not None:
            return None
        periods = list[timedelta]()
        if _is_fed(shown):
            periods.append(PROTOCOL_OUTRANKS)
        if isinstance(shown, CountedSession):
            periods.append(RECENT)
        ends = (_updated_at(shown) + period for period in periods)
        return min((at for at in ends if at > datetime.now(UTC)), default=None)

    def _newest_conversation(self) -> Conversation | CountedSession | None:
        """The newest conversation that a client feeds, here or in another process."""
        mine = self.store.current()
        every: list[Conversation | CountedSession] = [*self._elsewhere.values()]
        every += [] if mine is None else [mine]
        return max(every, key=_updated_at, default=None)

    def _selected(self) -> str | None:
        found = None if self.selected is None else self._by_id(self.selected)
        if isinstance(found, CountedSession) and found.state == "ended":
            return self.selected if self._selected_had_ended else None
        return None if found is None else self.selected

    def _by_id(self, session_id: str) -> Conversation | CountedSession | None:
        known = self._elsewhere.get(session_id) or self.store.get(session_id)
        return known or self._counted.get(session_id) or self._older.get(session_id)

    def id_to_change(self, session_id: str | None) -> str:
        """The id of the conversation that a change is for: this one, else the newest that a client
        feeds, else a new one.

        Raises:
            BadParamsError: for an agent's own session.
        """
        if session_id is None:
            newest = max(self.store, key=lambda one: one.session.updated_at, default=None)
            return DEFAULT_ID if newest is None else newest.session.id
        if isinstance(self.find(session_id), CountedSession):
            raise BadParamsError(
                "this session belongs to a coding agent and cannot be changed here"
            )
        return session_id

    def id_to_bill(self, session_id: str | None) -> str | None:
        """The id that a recorded call belongs to: as `id_to_change`, but None for a new one."""
        if session_id is None and not any(self.store):
            return None
        return self.id_to_change(session_id)

    def sent_estimate(self, session_id: str) -> int | None:
        """The estimate of a session's last request in tokens; None where nothing was counted."""
        found = self.store.get(session_id)
        if found is None:
            return None
        from sidecar.context.occupancy import sent_estimate

        return sent_estimate(found.session, self.calibration(found.session))

    def choose(self, model: str) -> bool:
        """Count documents for a model from now on. Returns whether a client's conversation is
        shown, which counts for it too."""
        self.chosen = model
        shown = self.find(None)
        return shown is not None and not isinstance(shown, CountedSession)

    def select(self, session_id: str | None) -> None:
        """Show this session until it ends, or one that has ended until another one is selected;
        None chooses by itself again.

        Raises:
            BadParamsError: for a session that is not known.
        """
        found = None if session_id is None else self._by_id(session_id)
        if session_id is not None and found is None:
            raise BadParamsError("there is no such session in this workspace")
        self.selected = session_id
        self._selected_had_ended = isinstance(found, CountedSession) and found.state == "ended"
        self.publish()

    def feed(self, sessions: Iterable[CountedSession]) -> None:
        """Replace the agents' sessions that are followed in this workspace."""
        self._counted = {one.id: one for one in sessions}
        selected = self._counted.get(self.selected or "")
        if selected is not None and selected.state != "ended":
            self._selected_had_ended = False  # resumed: it is shown until it ends again
        self._warned = {name: at for name, at in self._warned.items() if name in self._counted}
        self.publish()

    def feed_older(self, sessions: Iterable[CountedSession]) -> None:
        """Replace the sessions that are known besides: all of this workspace's agents."""
        self._older = {one.id: one for one in sessions}

    def feed_elsewhere(self, usages: Iterable[ContextUsage]) -> None:
        """Replace the conversations that other running servers hold."""
        found = [one for one in map(from_usage, usages) if one is not None]
        found.sort(key=_updated_at)
        self._elsewhere = {one.id: one for one in found}

    @property
    def is_stale(self) -> bool:
        """Whether a session of the last day is known that is not followed yet."""
        since, older = datetime.now(UTC) - RECENT, self._older.values()
        return any(one.updated_at >= since and one.id not in self._counted for one in older)

    def rows(self, *, every: bool = False) -> list[SessionRow]:
        """The sessions of the last day, or `every` one that is known; newest first."""
        since = LONG_AGO if every else datetime.now(UTC) - RECENT
        agents = self._older | self._counted if every else self._counted
        own = {one.session.id: one for one in self.store if not _is_unused(one.session)}
        known = agents | own | self._elsewhere
        found = sorted(known.values(), key=_updated_at, reverse=True)
        return [self._row(one) for one in found if _updated_at(one) >= since]

    def own_usages(self) -> list[ContextUsage]:
        """How full the conversations of this process are, for other processes to show."""
        fed = [one for one in self.store if not _is_unused(one.session)]
        newest = sorted(fed, key=_updated_at, reverse=True)[:_SHARED]
        return [msgspec.structs.replace(self.usage(one), cost_usd=None) for one in newest]

    def _row(self, one: Conversation | CountedSession) -> SessionRow:
        counted = one if isinstance(one, CountedSession) else None
        usage = self.usage(one)
        info = usage.session
        return SessionRow(
            id=info.id if info else "",
            source=info.source if info else "",
            title=counted.title if counted else None,
            model=usage.model,
            tokens=usage.tokens,
            limit=usage.limit,
            percent=usage.percent,
            method=usage.method,
            note=usage.note,
            state=counted.state if counted else "idle",
            parent=counted.parent if counted else None,
            cost_usd=usage.cost_usd,
            updated_at=info.updated_at if info else "",
            shown=self._published is not None and _id(one) == _id(self._published),
            pinned=info is not None and info.id == self._selected(),
        )

    def follows(self, uri: str) -> bool:
        """Whether a section of any conversation follows a document."""
        return any(section.uri == uri for section in self._followed(None))

    def _followed(self, shown: Conversation | CountedSession | None) -> Iterator[FollowedSection]:
        """Return the sections of these conversations that follow a document."""
        if not any(self.store):
            return
        from sidecar.workspace.documents import FollowedSection, FollowedText

        for one in self.store:
            for section in one.session.sections:
                source, known = section.source, section.document_count
                if isinstance(source, FollowedText):
                    tokens = section.capped(known.measure).tokens if known else 0
                    yield FollowedSection(source.place.uri, tokens, one is shown)

    @property
    def state(self) -> ContextState:
        """The state that was published last."""
        return self._workspace.context

    # -- numbers ----------------------------------------------------------------------------

    def usage(self, one: Conversation | CountedSession) -> ContextUsage:
        """How full a context is: the one function that says so. Counts nothing anew."""
        warn_at = self._workspace.settings.context.warn_at
        if isinstance(one, CountedSession):
            if one.usage is not None:
                cost = self._workspace.costs.sessions.get(one.id)
                grade = severity(one.usage.tokens, one.usage.usable, warn_at)
                return msgspec.structs.replace(one.usage, cost_usd=cost, severity=grade)
            return self._counted_usage(one, warn_at)
        from sidecar.context.occupancy import context_usage

        session = one.session
        return context_usage(
            session,
            self.window(session),
            warn_at=warn_at,
            calibration=self.calibration(session),
            cost_usd=self._workspace.costs.sessions.get(session.id),
        )

    def latest(self, one: Conversation) -> ContextUsage:
        """The same, as it was published where it is what is shown."""
        usage = self.state.usage
        return self.usage(one) if usage is None or self._published is not one else usage

    def _counted_usage(self, one: CountedSession, warn_at: tuple[float, ...]) -> ContextUsage:
        unanswered = one.model is None and one.tokens is None
        model = one.model or self._workspace.settings.model
        settings, tokens = self._workspace.settings, one.tokens
        limit = self._limit(model, NamedLimits(transcript=one.limit))
        usage = ContextUsage(
            tokens=tokens,
            method=None if tokens is None else one.quality,
            error_percent=None if tokens is None else one.error_percent,
            model=one.model,
            session=SessionInfo.of(one.id, one.source, one.updated_at),
            compacted=one.compacted,
            cost_usd=self._workspace.costs.sessions.get(one.id),
            note=one.note or (NO_REPLY if unanswered else None),
        )
        if limit is None or (unanswered and one.limit is None):
            return usage  # no window is better than a wrong one: of another model, or a guess
        return in_window(usage, Window(limit, settings.context.reserve), warn_at)

    def window(self, session: Session) -> Window:
        """The limit in force with the reply's reserve taken off; `know` has looked it up."""
        settings = self._workspace.settings
        limit = self._limit(session.model, self._limits(session))
        reserve = settings.context.reserve if session.reserve is None else session.reserve
        return Window(limit or resolve_limit(setting=settings.context.limit), reserve)

    def _limits(self, session: Session) -> NamedLimits:
        refused = self.state_of(session.id).refused_limits.get(session.model)
        return NamedLimits(request=session.limit, endpoint=refused)

    def _limit(self, model: str, session: NamedLimits) -> Limit | None:
        """A window as documents have it too: one session's model has one."""
        settings, counts = self._workspace.settings, self._services.counts
        return limit_of(model, settings, counts.named_limits(model, settings, session))

    def calibration(self, session: Session) -> ConversationCalibration:
        """What reported usage has taught about this session's estimates, to be asked: a session
        that is only tried with another model loses nothing that its own has learned."""
        known, tokenizer = self.state_of(session.id).calibration, session.counter.tokenizer
        if known is None:
            shared = self._services.calibrations.loaded()
            client = f"{self._services.client} {session.source}".strip()
            known = ConversationCalibration(shared, session.model, tokenizer, client)
        return known.for_model(session.model, tokenizer)

    def publish(self) -> None:
        """Compute the state to show, and publish it if it has changed."""
        current, before = self.find(None), self.state
        if isinstance(current, CountedSession) and not self._is_shown(current):
            current = None
        state = ContextState() if current is None else self._state(current)
        self._workspace.context = state._replace(
            revision=self._revision(current), followed=tuple(self._followed(current))
        )
        self._published = current
        if _basis(self.state) != _basis(before):
            self._services.publish(Event("model", self._workspace))
        if self.state != before:
            self._services.publish(Event("context", self._workspace))
        if isinstance(current, CountedSession) and self.state.usage is not None:
            self._warn_of(current, self.state.usage)

    def _is_shown(self, one: CountedSession) -> bool:
        return one.updated_at >= datetime.now(UTC) - RECENT or one.id == self._selected()

    def _revision(self, current: Conversation | CountedSession | None) -> int:
        """The state's revision: the next one where any session has changed."""
        mine = tuple((one.session.id, one.session.updated_at) for one in self.store)
        name = current and _id(current)
        now = self.selected, name, mine, tuple(self._counted.values())
        changed, self._listed = now != self._listed, now
        return self.state.revision + changed

    def _warn_of(self, current: CountedSession, usage: ContextUsage) -> None:
        """Warn once where an agent's session crossed a threshold or was compacted.

        What it had reached when it was first seen is news only while it runs.
        """
        if usage.usable is None:
            return
        warn_at = self._workspace.settings.context.warn_at
        now = level(usage.tokens or 0, usage.usable, warn_at)
        first = (0 if current.state == "running" else now), current.compacted
        reached, compacted = self._warned.get(current.id, first)
        now, is_crossed = crossed(reached, usage, warn_at)
        self._warned[current.id] = now, current.compacted
        if is_crossed:
            self.warn("budget", budget_message(usage), usage)
        if current.compacted and not compacted:
            self.warn("compacted", "The conversation was compacted by its agent.", usage)

    def _state(self, current: Conversation | CountedSession) -> ContextState:
        usage = self.usage(current)
        if isinstance(current, CountedSession):
            limits = NamedLimits(transcript=current.limit)
            if self.chosen not in (None, current.model):
                limits = NamedLimits()
            return ContextState(self.chosen or current.model, limits, usage, self.chosen)
        session = current.session
        chosen = self.state_of(session.id).named_model or self.chosen
        return ContextState(self._named(session.id), self._limits(session), usage, chosen)

    def warn(
        self, kind: Any, message: str, usage: ContextUsage | None, session: str | None = None
    ) -> None:
        """Send a warning to the client."""
        session = usage.session.id if usage and usage.session else session
        warning = ContextWarning(
            workspace=self._workspace.uri,
            session=session,
            kind=kind,
            message=printable(message),
            usage=usage,
        )
        self._services.publish(Event("warning", self._workspace, warning=warning))


def _id(one: Conversation | CountedSession) -> str:
    return one.id if isinstance(one, CountedSession) else one.session.id


def _updated_at(one: Conversation | CountedSession) -> datetime:
    return one.updated_at if isinstance(one, CountedSession) else one.session.updated_at


def _is_fed(one: Conversation | CountedSession) -> bool:
    """Whether a client feeds the session, here or through another server."""
    return not isinstance(one, CountedSession) or one.source == PROTOCOL


def _is_unused(session: Session) -> bool:
    """Whether nobody has begun the conversation: a model was chosen before it, or a request was
    assembled without one."""
    unnamed = session.id == DEFAULT_ID and not session.turns and not session.assembled
    return session.updated_at == LONG_AGO or (unnamed and session.is_empty)


def _basis(state: ContextState) -> tuple[str | None, NamedLimits, str | None]:
    """What the counts of documents depend on."""
    return state.model, state.limits, state.chosen
