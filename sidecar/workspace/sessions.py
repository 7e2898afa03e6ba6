"""The sessions of a workspace, and the one that is shown.

A session that the user has selected takes precedence (`SessionRegistry.select`).

A session belongs to a client of this server, to a coding agent, or to another server.
`conversations.py` is imported only when a client creates a conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from sidecar.agents.branches import DETACHED
from sidecar.agents.reader_registry import reader_of
from sidecar.agents.session_events import Activity, StoredSession
from sidecar.conversations.context_protocol import (
    ContextUsage,
    ContextWarning,
    SessionInfo,
    SessionOrder,
    SessionRow,
    Subagent,
)
from sidecar.conversations.occupancy import budget_message, crossed, in_window
from sidecar.counting.calibration import ConversationCalibration
from sidecar.counting.windows import find_agent_window, find_window
from sidecar.errors import BadParamsError
from sidecar.models.window import Limit, NamedLimits, Window, level, resolve_limit, severity
from sidecar.text.printable import is_generated_id, local_time_text
from sidecar.text.printable import message as printable
from sidecar.workspace.workspace import ContextState, Event, Workspace

if TYPE_CHECKING:
    from sidecar.config.settings import Context as ContextSettings
    from sidecar.conversations.conversation import Conversation
    from sidecar.counting.count_result import Method
    from sidecar.counting.open_documents import FollowedSection
    from sidecar.workspace.shared_services import SharedServices
    from sidecar.workspace.spending import Costs


Session: TypeAlias = "Conversation | StoredSession"

PROTOCOL = "protocol"
"""The `source` value for conversations from clients."""
PROTOCOL_OUTRANKS = timedelta(minutes=30)
"""How long a client's conversation takes precedence over newer agent sessions."""
RECENT = timedelta(hours=24)
"""How long a session from an agent or another server is shown after its last update."""


def choose_session(conversation: Session | None, agents: StoredSession | None) -> Session | None:
    """Choose between a client's conversation and an agent's session.

    The conversation takes precedence for 30 minutes after its last update. After that, the
    session that was updated last is chosen.

    Args:
        conversation: A client's newest conversation, possibly on another server.
        agents: An agent's newest session.
    """
    if conversation is None or agents is None:
        return conversation or agents
    outranked_until = datetime.now(UTC) - PROTOCOL_OUTRANKS
    is_first = conversation.updated_at >= min(agents.updated_at, outranked_until)
    return conversation if is_first else agents


DEFAULT_ID = "default"
"""The ID of the conversation that is created if the client does not provide an ID."""
SESSIONS_KEPT = 256
NO_REPLY = "no reply yet"
"""Note shown for an agent's session until the first reply. Its model is unknown until then."""
_MAX_SHARED = 64
"""Maximum number of conversations to share with other processes."""
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""The update time of conversations that have never been used."""


class RemoteConversation(StoredSession, frozen=True, kw_only=True):  # type: ignore[misc]
    """Another server's conversation, with the usage that the server has computed."""

    usage: ContextUsage

    def state(self, now: datetime) -> Activity:  # noqa: ARG002 - replies are not timed
        return "idle"


def make_remote_conversation(usage: ContextUsage) -> RemoteConversation | None:
    """Return another server's conversation, or None if its data is invalid."""
    info = usage.session
    if info is None:
        return None
    try:
        updated_at = datetime.fromisoformat(info.updated_at)
    except ValueError:
        return None
    return RemoteConversation(
        id=info.id, source=PROTOCOL, updated_at=updated_at, model=usage.model, usage=usage
    )


def label_of(session: Session) -> str:
    """Return a name to display for a session, such as its title or its first prompt."""
    if not isinstance(session, StoredSession) or session.source == PROTOCOL:
        is_generated = is_generated_id(session.id)
        return (
            f"conversation · {local_time_text(session.updated_at)}" if is_generated else session.id
        )
    if named := session.title or session.first_prompt:
        return " ".join(named.split())
    branch = session.branch if session.branch not in (None, DETACHED) else session.source
    began = "" if session.began_at is None else local_time_text(session.began_at)
    return " · ".join(filter(None, (branch, began)))


class SessionsSnapshot(NamedTuple):
    """An immutable copy of all data in the session list, for use on a worker thread."""

    sessions: Mapping[str, StoredSession]
    """The sessions in list order, keyed by ID."""
    limits: Mapping[tuple[str | None, int | None], Limit | None]
    """Context windows for agents' sessions, keyed by the reported model and window."""
    context: ContextSettings
    costs: Costs
    shown: str | None
    """The ID of the session that the status shows."""
    pinned: str | None
    """The ID of the session that the user has selected."""
    with_prompts: bool
    """Whether sessions without a title are labeled with their first prompt."""
    others: int = 0
    """The number of sessions that `first` left out."""

    @property
    def models_without_limit(self) -> set[str]:
        """Models that agents' sessions use, but whose context windows are not loaded yet."""
        return {model for (model, _), limit in self.limits.items() if model and limit is None}

    def first(
        self, limit: int | None, order: SessionOrder, *, ended: bool, costliest: Iterable[str] = ()
    ) -> SessionsSnapshot:
        """Return a snapshot of the first sessions in the given order.

        Args:
            limit: The maximum number of sessions.
            order: How to sort the sessions.
            ended: Whether to include sessions that have ended and are not shown in the status.
            costliest: The sessions' IDs, highest cost first. Needed only for sorting by cost.
        """
        now = datetime.now(UTC)
        listed = [
            session
            for session in self.sessions.values()
            if ended or session.id == self.shown or session.state(now) != "ended"
        ]
        if order == "cost":
            ranks = {name: rank for rank, name in enumerate(costliest)}
            listed.sort(key=lambda session: ranks.get(session.id, len(ranks)))
        elif order == "context":
            listed.sort(key=lambda session: -(self._usage_of(session).percent or 0))
        first = {session.id: session for session in listed[:limit]}
        return self._replace(sessions=first, others=len(listed) - len(first))

    def agent_windows(self) -> dict[str, int]:
        """Return the context window in tokens of each agent's first session with a window."""
        windows: dict[str, int] = {}
        for session in self.sessions.values():
            limit = self.limits.get(_limit_key(session))
            if limit is not None:
                windows.setdefault(session.source, limit.tokens)
        return windows

    def rows(self) -> list[SessionRow]:
        """Return the rows of the session list."""
        now = datetime.now(UTC)
        rows = [self._row_of(self._named(session), now) for session in self.sessions.values()]
        if self.others and rows:
            rows[-1] = msgspec.structs.replace(rows[-1], others=self.others)
        return rows

    def label(self, session_id: str) -> str | None:
        """Return a session's label, or None if the session is unknown."""
        session = self.sessions.get(session_id)
        return None if session is None else label_of(self._named(session))

    def _named(self, session: StoredSession) -> StoredSession:
        if not session.unread_names:
            return session
        from sidecar.agents.session_index import read_name

        return read_name(session, with_prompts=self.with_prompts)

    def _usage_of(self, session: StoredSession) -> ContextUsage:
        limit, cost = self.limits.get(_limit_key(session)), self.costs.session_usd(session.id)
        return stored_usage(session, limit, self.context, cost)

    def _row_of(self, session: StoredSession, now: datetime) -> SessionRow:
        usage = self._usage_of(session)
        info = usage.session or _info_of(session)
        return SessionRow(
            id=session.id,
            source=info.source,
            title=session.title,
            label=info.label or label_of(session),
            model=usage.model,
            tokens=usage.tokens,
            limit=usage.limit,
            percent=usage.percent,
            method=usage.method,
            note=usage.note,
            severity=usage.severity,
            state=session.state(now),
            parent=session.parent,
            cost_usd=usage.cost_usd,
            updated_at=info.updated_at,
            shown=session.id == self.shown,
            pinned=session.id == self.pinned,
        )


def _limit_key(session: StoredSession) -> tuple[str | None, int | None]:
    return session.model, session.limit


def _info_of(session: StoredSession) -> SessionInfo:
    return SessionInfo.of(session.id, session.source, session.updated_at, label=label_of(session))


def stored_usage(
    session: StoredSession, limit: Limit | None, settings: ContextSettings, cost: float | None
) -> ContextUsage:
    """Return a session's usage.

    The `session` field of the result is set only for another server's conversation.
    """
    if isinstance(session, RemoteConversation):
        usable = session.usage.agent_usable or session.usage.usable
        grade = severity(session.usage.tokens, usable, settings.warn_at)
        return msgspec.structs.replace(session.usage, cost_usd=cost, severity=grade)
    is_unanswered = session.model is None and session.tokens is None
    tokens = session.tokens
    usage = ContextUsage(
        tokens=tokens,
        method=_method_of(session),
        error_percent=None if tokens is None else session.error_percent,
        model=session.model,
        compacted=session.compacted,
        cost_usd=cost,
        subagents=[_subagent_of(one) for one in session.subagents],
        note=session.note or (NO_REPLY if is_unanswered else None),
    )
    if limit is None or (is_unanswered and session.limit is None):
        return usage  # a percentage of a guessed window would be misleading
    usage = in_window(usage, Window(limit, settings.reserve), settings.warn_at, reported=tokens)
    return _with_own_percent(usage, session.source, settings.warn_at)


def _subagent_of(session: StoredSession) -> Subagent:
    info = _info_of(session)
    return Subagent(
        id=session.id,
        model=session.model,
        tokens=session.tokens,
        method=_method_of(session),
        state=session.state(datetime.now(UTC)),
        updated_at=info.updated_at,
    )


def _method_of(session: StoredSession) -> Method | None:
    """Return how a session's size was determined, or None if it is unknown."""
    if session.tokens is None:
        return None
    return "exact" if session.quality == "exact" else "estimate"


def _with_own_percent(usage: ContextUsage, agent: str, warn_at: tuple[float, ...]) -> ContextUsage:
    """Add the agent's own percentage, and let the thresholds refer to the smaller size."""
    limit, usable, tokens = usage.limit, usage.usable, usage.tokens
    if limit is None or usable is None or tokens is None or usage.limit_source == "settings":
        return usage  # agents do not know the user's limit
    # The session's reader has already been imported, so this does not block.
    full = reader_of(agent).own_full(limit, usage.model or "")
    if full is None or not limit // 2 <= full < usable:  # see `_room_to_grow`
        return usage
    return msgspec.structs.replace(
        usage,
        agent_usable=full,
        agent_percent=min(100, round(100 * tokens / full)),
        should_prune=usage.should_prune or tokens > full * max(warn_at, default=1.0),
        severity=severity(tokens, full, warn_at),
    )


@dataclass(eq=False)
class ConversationState:
    """A conversation's state, apart from its messages. Only `Conversations` may change it."""

    named_model: str | None = None
    """The model that a client has set for the conversation."""
    answered_model: str | None = None
    """The model named in the last reply."""
    refused_limits: dict[str, int] = field(default_factory=dict)
    """Context windows in tokens, keyed by model, as reported in errors about overlong prompts."""
    calibration: ConversationCalibration | None = None
    """The conversation's own calibration, or None if no usage has been reported yet."""
    warned_level: int = 0
    """The number of warning thresholds reached at the last check."""
    asked_layout: int | None = None
    """Identifies the turns that an endpoint was most recently asked to count."""


class SessionRegistry:
    """Lists a workspace's sessions, and selects the session to show."""

    def __init__(self, services: SharedServices, workspace: Workspace) -> None:
        self._services, self._workspace = services, workspace
        self.conversations: OrderedDict[str, Conversation] = OrderedDict()
        """Conversations keyed by ID, ordered from least to most recently used."""
        self._states: dict[str, ConversationState] = {}
        self._agent_sessions: dict[str, StoredSession] = {}
        self._older_agent_sessions: dict[str, StoredSession] = {}
        """Older agent sessions, which are not kept up to date."""
        self._remote_conversations: dict[str, RemoteConversation] = {}
        self.chosen_model: str | None = None
        """The model that a client has set for the whole workspace."""
        self.selected: str | None = None
        self._selected_had_ended = False
        """Whether the selected session had already ended when it was selected."""
        self._warned: dict[str, tuple[int, bool]] = {}
        """How many thresholds each agent session has reached, and whether it was compacted."""
        self._shown: Session | None = None
        self._published_sessions: tuple[Any, ...] = ()
        """Identifies the last published session list."""

    @property
    def default_model(self) -> str:
        """The model of conversations that have none of their own."""
        return self.chosen_model or self._workspace.settings.model

    def model_of(self, session_id: str) -> str:
        return self._named_model(session_id) or self.default_model

    def _named_model(self, session_id: str) -> str | None:
        state = self.state_of(session_id)
        return state.named_model or state.answered_model or self.chosen_model

    def state_of(self, session_id: str) -> ConversationState:
        """Return a conversation's state, or an empty state if the ID is unknown."""
        return self._states.get(session_id) or ConversationState()

    def put(self, conversation: Conversation, *, is_restored: bool = False) -> ConversationState:
        """Add or replace a conversation, and return its state.

        If there are too many conversations, the least recently used one is dropped. A
        restored conversation counts as least recently used.
        """
        self.conversations[conversation.id] = conversation
        self.conversations.move_to_end(conversation.id, last=not is_restored)
        if len(self.conversations) > SESSIONS_KEPT:
            dropped, _ = self.conversations.popitem(last=False)
            self._states.pop(dropped, None)
        return self._states.setdefault(conversation.id, ConversationState())

    # -- session selection ------------------------------------------------------------------

    def find(self, session_id: str | None) -> Session | None:
        """Return the session with this ID. If the ID is None, return the session to show."""
        named = session_id or self._selected()
        if named is not None:
            return self._by_id(named)
        agents = max(self._agent_sessions.values(), key=_updated_at, default=None)
        return choose_session(self._newest_client_session(), agents)

    def next_switch_at(self) -> datetime | None:
        """Return the time when the shown session loses its precedence or becomes too old to show.

        Returns None if this time has passed, or if the user has selected the session.
        """
        shown, periods = self.find(None), list[timedelta]()
        if shown is None or self._selected():
            return None
        if isinstance(shown, StoredSession):
            periods.append(RECENT)
        if not periods or shown.source == PROTOCOL:
            periods.append(PROTOCOL_OUTRANKS)
        ends = (shown.updated_at + period for period in periods)
        return min((at for at in ends if at > datetime.now(UTC)), default=None)

    def newest_conversation(self) -> Conversation | None:
        """Return this server's most recently updated conversation."""
        return max(reversed(self.conversations.values()), key=_updated_at, default=None)

    def _newest_client_session(self) -> Session | None:
        own = self.newest_conversation()
        remote: list[Session] = [*self._remote_conversations.values()]
        return max(remote if own is None else [*remote, own], key=_updated_at, default=None)

    def _selected(self) -> str | None:
        session = None if self.selected is None else self._by_id(self.selected)
        if isinstance(session, StoredSession) and _has_ended(session):
            return self.selected if self._selected_had_ended else None
        return None if session is None else self.selected

    def _by_id(self, session_id: str) -> Session | None:
        return (
            self._remote_conversations.get(session_id)
            or self.conversations.get(session_id)
            or self._agent_sessions.get(session_id)
            or self._older_agent_sessions.get(session_id)
        )

    def id_to_change(self, session_id: str | None) -> str:
        """Return the ID of the conversation to change.

        Args:
            session_id: The ID in the client's request. Defaults to the newest conversation.

        Raises:
            BadParamsError: The session belongs to an agent.
        """
        if session_id is None:
            newest = self.newest_conversation()
            return DEFAULT_ID if newest is None else newest.id
        if isinstance(self.find(session_id), StoredSession):
            raise BadParamsError(
                "this session belongs to a coding agent and cannot be changed here"
            )
        return session_id

    def id_to_bill(self, session_id: str | None) -> str | None:
        """Return the ID of the session that a recorded call belongs to, or None."""
        if session_id is None and not self.conversations:
            return None
        return self.id_to_change(session_id)

    def sent_estimate(self, session_id: str) -> int | None:
        """Return the estimated size in tokens of a conversation's last request, or None."""
        conversation = self.conversations.get(session_id)
        if conversation is None:
            return None
        from sidecar.conversations.occupancy import sent_estimate

        return sent_estimate(conversation, self.calibration_of(conversation))

    def choose_model(self, model: str | None) -> bool:
        """Set the model for the whole workspace, or undo the choice if the model is None.

        Returns:
            Whether the session on display is a client's conversation, which then changes its model.
        """
        self.chosen_model = model
        shown = self.find(None)
        return shown is not None and not isinstance(shown, StoredSession)

    def select(self, session_id: str | None) -> None:
        """Show a session until it ends.

        If the ID is None, the session to show is chosen automatically again. A session that has
        already ended is shown until another session is selected.

        Raises:
            BadParamsError: The session does not exist.
        """
        session = None if session_id is None else self._by_id(session_id)
        if session_id is not None and session is None:
            raise BadParamsError("this workspace has no such session")
        self.selected = session_id
        self._selected_had_ended = isinstance(session, StoredSession) and _has_ended(session)
        self.publish()

    def set_agent_sessions(self, sessions: Iterable[StoredSession]) -> None:
        """Replace the recent agent sessions with their current state."""
        self._agent_sessions = {one.id: one for one in sessions}
        selected = self._agent_sessions.get(self.selected or "")
        if selected is not None and not _has_ended(selected):
            # The session has been resumed. Show it until it ends again.
            self._selected_had_ended = False
        self._warned = {
            name: warned for name, warned in self._warned.items() if name in self._agent_sessions
        }
        self.publish()

    def set_older_agent_sessions(self, sessions: Iterable[StoredSession]) -> None:
        """Replace the older agent sessions. Names that have already been read are kept."""
        known = self._older_agent_sessions
        self._older_agent_sessions = {
            one.id: _keep_name(one, known.get(one.id)) for one in sessions
        }

    def set_name(self, named: StoredSession) -> None:
        """Set the name of an older agent session once it is known."""
        if named.id in self._older_agent_sessions:
            self._older_agent_sessions[named.id] = named

    def set_remote_conversations(self, usages: Iterable[ContextUsage]) -> None:
        """Replace other servers' conversations."""
        sessions = [
            session for session in map(make_remote_conversation, usages) if session is not None
        ]
        sessions.sort(key=_updated_at)
        self._remote_conversations = {session.id: session for session in sessions}

    def rows(self, *, every: bool = False) -> list[SessionRow]:
        """Return the sessions from the last 24 hours, or all sessions, newest first."""
        return self.snapshot(every=every).rows()

    def snapshot(self, *, every: bool = False) -> SessionsSnapshot:
        """Return a snapshot of the sessions from the last 24 hours, or of all sessions."""
        since = LONG_AGO if every else datetime.now(UTC) - RECENT
        listed = [one for one in self._sessions(every=every) if one.updated_at >= since]
        stored = [one for one in map(self._stored, listed) if one is not None]
        stored.sort(key=_updated_at, reverse=True)
        agents = (one for one in stored if not isinstance(one, RemoteConversation))
        return SessionsSnapshot(
            sessions={one.id: one for one in stored},
            limits={key: self._agent_limit(*key) for key in set(map(_limit_key, agents))},
            context=self._workspace.settings.context,
            costs=self._workspace.costs.copy(),
            shown=self._shown.id if self._shown else None,
            pinned=self._selected(),
            with_prompts=self._workspace.settings.agents.labels == "first-prompt",
        )

    def _sessions(self, *, every: bool) -> Iterable[Session]:
        agents = self._older_agent_sessions if every else {}
        own = {one.id: one for one in self._nonempty_conversations()}
        return (agents | self._agent_sessions | own | self._remote_conversations).values()

    def _stored(self, session: Session) -> StoredSession | None:
        """Return an immutable copy of a session. Conversations include their current usage."""
        if isinstance(session, StoredSession):
            return session
        return make_remote_conversation(self.usage(session))

    def conversation_usages(self) -> list[ContextUsage]:
        """Return the newest conversations' usage, for sharing with other processes."""
        newest_first = sorted(self._nonempty_conversations(), key=_updated_at, reverse=True)
        return [
            msgspec.structs.replace(self.usage(one), cost_usd=None)
            for one in newest_first[:_MAX_SHARED]
        ]

    def _nonempty_conversations(self) -> list[Conversation]:
        return [one for one in self.conversations.values() if not _is_unused(one)]

    def follows_document(self, uri: str) -> bool:
        """Return whether any conversation has a section that follows this document."""
        return any(section.uri == uri for section in self._followed_sections(None))

    def _followed_sections(self, shown: Session | None) -> Iterator[FollowedSection]:
        if not self.conversations:
            return
        from sidecar.counting.open_documents import FollowedSection, FollowedText

        for conversation in self.conversations.values():
            for section in conversation.sections:
                source, count = section.source, section.document_count
                if isinstance(source, FollowedText):
                    tokens = section.capped(count.measure).tokens if count else 0
                    yield FollowedSection(source.place.uri, tokens, conversation is shown)

    @property
    def context(self) -> ContextState:
        """The most recently published context."""
        return self._workspace.context

    # -- usage ------------------------------------------------------------------------------

    def usage(self, session: Session) -> ContextUsage:
        """Return a session's context usage, computed from the current counts."""
        settings = self._workspace.settings.context
        cost = self._workspace.costs.session_usd(session.id)
        if isinstance(session, StoredSession):
            limit = self._agent_limit(*_limit_key(session))
            usage = stored_usage(session, limit, settings, cost)
            return msgspec.structs.replace(usage, session=usage.session or _info_of(session))
        from sidecar.conversations.occupancy import context_usage

        return context_usage(
            session,
            self.window_of(session),
            warn_at=settings.warn_at,
            calibration=self.calibration_of(session),
            cost_usd=cost,
        )

    def shown_usage(self, conversation: Conversation) -> ContextUsage:
        """Return a conversation's context usage.

        If the conversation is shown, this is the published usage.
        """
        usage = self.context.usage
        if usage is None or self._shown is not conversation:
            return self.usage(conversation)
        return usage

    def _agent_limit(self, model: str | None, reported: int | None) -> Limit | None:
        """Return the window of an agent's session, or None if it is unknown."""
        named, settings = NamedLimits(transcript=reported), self._workspace.settings
        if model is not None:
            named = self._services.counts.add_reported_window(model, settings, named)
        return find_agent_window(model, settings, named)

    def window_of(self, conversation: Conversation) -> Window:
        """Return a conversation's context window and reserve. The window must already be loaded."""
        settings = self._workspace.settings.context
        limit = self._limit(conversation.model, self._named_limits(conversation))
        reserve = settings.reserve if conversation.reserve is None else conversation.reserve
        return Window(limit or resolve_limit(setting=settings.limit), reserve)

    def _named_limits(self, conversation: Conversation) -> NamedLimits:
        refused = self.state_of(conversation.id).refused_limits.get(conversation.model)
        return NamedLimits(request=conversation.limit, endpoint=refused)

    def _limit(self, model: str, named: NamedLimits) -> Limit | None:
        settings, counts = self._workspace.settings, self._services.counts
        return find_window(model, settings, counts.add_reported_window(model, settings, named))

    def calibration_of(self, conversation: Conversation) -> ConversationCalibration:
        """Return a conversation's calibration for its current model. Callers must not modify it."""
        calibration = self.state_of(conversation.id).calibration
        tokenizer = conversation.counter.tokenizer
        if calibration is None:
            shared = self._services.calibrations.loaded()
            client = f"{self._services.client} {conversation.source}".strip()
            calibration = ConversationCalibration(shared, conversation.model, tokenizer, client)
        return calibration.for_model(conversation.model, tokenizer)

    # -- publishing -------------------------------------------------------------------------

    def publish(self) -> None:
        """Update the shown context, and publish it if it has changed."""
        shown, before = self.find(None), self.context
        if isinstance(shown, StoredSession) and not self._selected():
            shown = shown if shown.updated_at >= datetime.now(UTC) - RECENT else None
        context = ContextState() if shown is None else self._context_of(shown)
        self._workspace.context = context._replace(
            revision=self._next_revision(shown), followed=tuple(self._followed_sections(shown))
        )
        self._shown = shown
        if _count_key(self.context) != _count_key(before):
            self._services.publish(Event("model", self._workspace))
        if self.context != before:
            self._services.publish(Event("context", self._workspace))
        if isinstance(shown, StoredSession) and self.context.usage is not None:
            self._warn_of_agent_session(shown, self.context.usage)

    def _next_revision(self, shown: Session | None) -> int:
        own = tuple((one.id, one.updated_at) for one in self.conversations.values())
        at = datetime.now(UTC)
        agents = tuple((one, one.state(at)) for one in self._agent_sessions.values())
        now = self.selected, shown and shown.id, own, agents
        has_changed, self._published_sessions = now != self._published_sessions, now
        return self.context.revision + has_changed

    def _warn_of_agent_session(self, session: StoredSession, usage: ContextUsage) -> None:
        """Warn once if an agent's session crosses a threshold or is compacted.

        The first check of a session warns about a threshold only if the session is running, and
        never about a compaction.
        """
        if usage.usable is None:
            return
        warn_at = self._workspace.settings.context.warn_at
        reached = level(usage.tokens or 0, usage.agent_usable or usage.usable, warn_at)
        is_running = session.state(datetime.now(UTC)) == "running"
        initial = (0 if is_running else reached), session.compacted
        before, was_compacted = self._warned.get(session.id, initial)
        reached, is_crossed = crossed(before, usage, warn_at)
        self._warned[session.id] = reached, session.compacted
        if is_crossed:
            self.warn("budget", budget_message(usage), usage)
        if session.compacted and not was_compacted:
            self.warn("compacted", "The conversation was compacted by its agent.", usage)

    def _context_of(self, session: Session) -> ContextState:
        usage = self.usage(session)
        if isinstance(session, StoredSession):
            limits = NamedLimits(transcript=session.limit)
            return ContextState(session.model, limits, usage, self.chosen_model)
        return ContextState(
            self._named_model(session.id), self._named_limits(session), usage, self.chosen_model
        )

    def warn(self, kind: Any, message: str, usage: ContextUsage | None) -> None:
        """Send a warning about a context to the client."""
        warning = ContextWarning(
            workspace=self._workspace.uri,
            session=usage.session.id if usage and usage.session else None,
            kind=kind,
            message=printable(message),
            usage=usage,
        )
        self._services.publish(Event("warning", self._workspace, warning=warning))


def _has_ended(session: StoredSession) -> bool:
    return session.state(datetime.now(UTC)) == "ended"


def _keep_name(session: StoredSession, known: StoredSession | None) -> StoredSession:
    if known is None or not (known.title or known.first_prompt):
        return session
    return msgspec.structs.replace(
        session, title=known.title, first_prompt=known.first_prompt, unread_names=()
    )


def _updated_at(session: Session) -> datetime:
    return session.updated_at


def _is_unused(conversation: Conversation) -> bool:
    is_default = conversation.id == DEFAULT_ID and not (
        conversation.turns or conversation.assembled
    )
    return conversation.updated_at == LONG_AGO or (is_default and conversation.is_empty)


def _count_key(context: ContextState) -> tuple[str | None, NamedLimits, str | None]:
    return context.model, context.limits, context.chosen
