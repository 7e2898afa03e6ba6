"""Applies changes to a workspace's conversations. No other module may change them.

A worker thread applies each change to a draft, which is a copy of the conversation. The event
loop then commits the draft without awaiting anything, publishes the result, and saves the
conversation. Changes to the same conversation run in order; different conversations do not
block each other. A change has no effect if it is cancelled before the commit.

The conversation shows an estimate until the endpoint answers. The answer is applied as a
separate change. It is not committed if the conversation has changed in the meantime.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import msgspec

from sidecar.agents.session_events import StoredSession
from sidecar.conversations.changes import (
    AlternativeModels,
    ApplyCounts,
    Change,
    Draft,
    Outcome,
    Recount,
    apply_to_draft,
)
from sidecar.conversations.conversation import Conversation, restore, save, uncounted_texts
from sidecar.conversations.occupancy import budget_message, crossed
from sidecar.conversations.sections import RestoredPart, Section, SectionCount
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.open_documents import Documents, FollowedText
from sidecar.endpoints.outcome import EndpointCount, MissKind
from sidecar.errors import BadParamsError, RequestError
from sidecar.messages.vendor_usage import Usage
from sidecar.tasks import wait_or_fall_back
from sidecar.workspace.sessions import DEFAULT_ID, LONG_AGO
from sidecar.workspace.views import NO_CONTEXT
from sidecar.workspace.workspace import Event

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.counting.counts import Counts
    from sidecar.counting.tokenizer_choice import CounterChoice
    from sidecar.endpoints.endpoints import Endpoints
    from sidecar.workspace.sessions import SessionRegistry
    from sidecar.workspace.shared_services import SharedServices
    from sidecar.workspace.workspace import Workspace


logger = logging.getLogger(__name__)

T = TypeVar("T")


class Conversations:
    """A workspace's conversations."""

    def __init__(
        self, services: SharedServices, workspace: Workspace, sessions: SessionRegistry
    ) -> None:
        self.services, self.workspace, self.sessions = services, workspace, sessions
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._restoring = asyncio.Lock()
        self._is_restored = False
        self._run = services.workers.run
        self._sections = SectionCounts(services.counts, services.documents)
        self._saving = asyncio.Lock()
        self._saved_layouts: dict[str, int] = {}
        self._missed: dict[str, Hashable] = {}
        """The endpoint's fingerprint when it last failed to count, keyed by conversation ID."""

    # -- changes ----------------------------------------------------------------------------

    async def apply(self, change: Change[T]) -> tuple[Conversation, T]:
        """Apply a change. Returns the updated conversation and the result of the change.

        Raises:
            RequestError: The change cannot be applied. The conversation is unchanged.
        """
        await self.restore()
        name = self.sessions.id_to_change(change.session)
        async with self._lock(name):
            before = self.sessions.conversations.get(name)
            state, settings = self.sessions.state_of(name), self.workspace.settings
            named = None if change.model == "" else state.named_model
            change = await change.read(self.services.workers, self.model_of(name), named, settings)
            base, answered = before, change.answered_model or state.answered_model
            model = change.model or named or answered or self.sessions.default_model
            if change.version is not None:
                model = change.version.model
                if not _is_same(before, change.version):
                    base = change.version
            await self.services.counts.load_window_and_price(model, settings)
            draft = await self._make_draft(name, base, model)
            outcome = await self._run(partial(apply_to_draft, draft, change))
            conversation = draft.conversation
            if self._is_stale(conversation):  # for example, because of a new section
                self._follow_documents(conversation)
                await self._count_sections(conversation)
                await self._run(conversation.total)
            if base is not before:  # the conversation has changed since
                if base and before and state.asked_layout == base.layout:
                    self._ask_later(before)  # after a fit or an undo, nothing else asks
                return conversation, outcome.result
            if before is None and isinstance(change, Recount):  # dropped meanwhile
                return conversation, outcome.result
            self._commit(change, conversation, outcome)
        return await self._publish(conversation, before, outcome), outcome.result

    def _commit(self, change: Change[T], conversation: Conversation, outcome: Outcome[T]) -> None:
        state = self.sessions.put(conversation)
        if change.model is not None:
            state.named_model = change.model or None
        if change.answered_model is not None:
            state.answered_model = change.answered_model
        if outcome.refused_limit is not None:
            state.refused_limits[conversation.model] = outcome.refused_limit
        if outcome.sample is not None or outcome.reply_sample is not None:
            state.calibration = self.sessions.calibration_of(conversation)
            if outcome.sample is not None:
                state.calibration.update(outcome.sample)
            if outcome.reply_sample is not None:
                state.calibration.add_reply(*outcome.reply_sample)
            self.services.counts.calibration_changed()
        if conversation.is_empty:  # it has no reports any more
            state.calibration = None
        if outcome.spent is not None:
            self.services.update_costs(self.workspace, outcome.spent)

    async def _publish(
        self, conversation: Conversation, before: Conversation | None, outcome: Outcome[T]
    ) -> Conversation:
        if self._is_stale(conversation, self.model_of(conversation.id)):
            # The settings have changed since the count started.
            self.services.publish(Event("document", self.workspace))
        if self.workspace.settings.endpoints and (outcome.asks_endpoint or outcome.usage):
            asking = self._ask(conversation, before, outcome)
            try:
                conversation = await wait_or_fall_back(asking, self.sessions.publish)
            finally:
                self.sessions.publish()
        else:
            self.sessions.publish()
        usage = self.sessions.shown_usage(conversation) if outcome.warnings else None
        for kind, message in outcome.warnings:
            self.sessions.warn(kind, message, usage)
        await self._warn_of_threshold(conversation)
        await self._save()
        return conversation

    async def _warn_of_threshold(self, conversation: Conversation) -> None:
        usage = self.sessions.shown_usage(conversation)
        state = self.sessions.state_of(conversation.id)
        warn_at, before = self.workspace.settings.context.warn_at, state.warned_level
        state.warned_level, is_crossed = crossed(before, usage, warn_at)
        if not is_crossed:
            return
        message = budget_message(usage)
        if usage.over and usage.tokens is not None:
            message = await self._run(partial(self.alternatives(conversation).message, usage))
        self.sessions.warn("budget", message, usage)

    def is_changing(self, session_id: str | None) -> bool:
        """Return whether a request that changes or creates this conversation is in progress."""
        lock = self._locks.get(session_id or self.sessions.id_to_change(None))
        return lock is not None and lock.locked()

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    async def refresh(self) -> None:
        """Update the displayed conversation after documents, settings or endpoints have changed."""
        shown = self.sessions.find(None)
        if not isinstance(shown, Conversation):
            self.sessions.publish()
            return
        model = self.model_of(shown.id)
        if shown.model != model:
            await self._ask_window(model, shown, None)
        await self._sections.ask(shown, model, self.workspace.settings)
        is_probed_again = self._is_probed_again(shown)
        if is_probed_again or self._is_stale(shown, model):
            await self.apply(Recount(session=shown.id, asks_endpoint=is_probed_again))
        self.sessions.publish()
        current = self.sessions.conversations.get(shown.id)
        if current is not None:
            await self._warn_of_threshold(current)

    async def recount(self, session_id: str | None = None) -> None:
        """Recount all conversations that have outdated counts, or only the named one of them."""
        await self.restore()
        for conversation in [*self.sessions.conversations.values()]:
            name = conversation.id
            if session_id in (None, name) and self._is_stale(conversation, self.model_of(name)):
                await self.apply(Recount(session=name))

    # -- drafts -----------------------------------------------------------------------------

    async def _make_draft(self, name: str, before: Conversation | None, model: str) -> Draft:
        conversation = before.copy() if before else Conversation(name, self.counter(model))
        if conversation.model != model or self._has_other_tokenizer(conversation):
            conversation.counter = self.counter(model)
        self._follow_documents(conversation)
        calibration = self.sessions.calibration_of(conversation).copy()
        window = self.sessions.window_of(conversation)
        await self._count_sections(conversation)
        return Draft(conversation, window, calibration, before.updated_at if before else LONG_AGO)

    def _follow_documents(self, conversation: Conversation) -> None:
        latest = self.services.documents.latest
        conversation.sections = [
            msgspec.structs.replace(section, source=latest(section.source))
            if isinstance(section.source, FollowedText)
            else section
            for section in conversation.sections
        ]

    async def _count_sections(self, conversation: Conversation) -> None:
        await self._sections.refresh(conversation, self.workspace.settings)

    def _has_other_tokenizer(self, conversation: Conversation) -> bool:
        return not conversation.counter.is_like(self.counter(conversation.model))

    def _is_stale(self, conversation: Conversation, model: str | None = None) -> bool:
        """Return whether the counts are outdated.

        Args:
            conversation: The conversation.
            model: The model to count for. Defaults to the conversation's model.
        """
        model, settings = model or conversation.model, self.workspace.settings
        if conversation.model != model or self._has_other_tokenizer(conversation):
            return True
        return any(
            self._sections.is_stale(section, model, settings) for section in conversation.sections
        )

    async def draft_for_preflight(self, session_id: str | None, model: str | None) -> Draft:
        """Return a draft that will never be committed.

        The draft includes all earlier changes to the conversation. An agent's session is
        represented by a single prompt of the same size because its messages are not
        available.
        """
        await self.restore()
        async with self._lock(session_id or self.sessions.id_to_change(None)):
            pass
        session = self.sessions.find(session_id)
        if isinstance(session, StoredSession):
            model = model or session.model or self.workspace.model
            await self.look_up_window(model)
            return await self._make_draft_of_size(session, model)
        name = session_id or DEFAULT_ID if session is None else session.id
        model = model or self.model_of(name)
        await self.look_up_window(model)
        return await self._make_draft(name, session, model)

    async def _make_draft_of_size(self, session: StoredSession, model: str) -> Draft:
        conversation = Conversation(session.id, self.counter(model))
        conversation.limit = session.limit if model == session.model else None
        size = session.tokens or 0
        usage = Usage(input_tokens=size, prompt_tokens=size)
        await self._run(partial(conversation.apply_reply_usage, usage))
        calibration = self.sessions.calibration_of(conversation).copy()
        window = self.sessions.window_of(conversation)
        return Draft(conversation, window, calibration, session.updated_at)

    # -- queries ----------------------------------------------------------------------------

    async def find_counted(self, session_id: str | None) -> Conversation | StoredSession | None:
        """Return a session with up-to-date counts."""
        await self.restore()
        session = self.sessions.find(session_id)
        if isinstance(session, StoredSession) and session.unread_names:
            from sidecar.agents.session_index import read_name

            with_prompts = self.workspace.settings.agents.labels == "first-prompt"
            session = await self._run(partial(read_name, session, with_prompts=with_prompts))
            self.sessions.set_name(session)
        if not isinstance(session, Conversation):
            return session
        model = self.model_of(session.id)
        await self.services.counts.load_window_and_price(model, self.workspace.settings)
        if not self._is_stale(session, model):
            return session
        draft = await self._make_draft(session.id, session, model)
        await self._run(draft.conversation.total)
        return draft.conversation

    async def look_up_window(self, model: str) -> None:
        """Look up a model's window and price, and ask its endpoint for the window if necessary."""
        counts, settings = self.services.counts, self.workspace.settings
        await counts.load_window_and_price(model, settings)
        await counts.ask_window_if_due(model, settings)

    @property
    def _endpoints(self) -> Endpoints:
        return self.services.counts.endpoints(self.workspace.settings)

    def model_of(self, session_id: str) -> str:
        return self.sessions.model_of(session_id)

    def counter(self, model: str) -> Counter:
        tokenizer = self.services.counts.tokenizers(self.workspace.settings).for_model(model)
        return Counter(model, tokenizer)

    def id_with_text(self, session_id: str | None) -> str:
        """Return the ID of a conversation whose messages are available.

        Raises:
            BadParamsError: The session does not exist.
            RequestError: `noText`. The session belongs to an agent, so its messages are not
                available.
        """
        session = self.sessions.find(session_id)
        if session is None and self.is_changing(session_id):
            return session_id or self.sessions.id_to_change(None)
        if session is None:
            missing = "this workspace has no such session" if session_id else NO_CONTEXT
            raise BadParamsError(missing)
        if isinstance(session, StoredSession):
            raise RequestError(
                "noText",
                "this session belongs to a coding agent, so only its token counts are known",
            )
        return session.id

    def alternatives(self, conversation: Conversation) -> AlternativeModels:
        """Return an object that finds other models for the conversation."""
        capabilities = tuple(self._endpoints.capabilities())
        return AlternativeModels(
            conversation.model, conversation.counter, conversation.tools, capabilities
        )

    # -- endpoints --------------------------------------------------------------------------

    async def _ask(
        self, conversation: Conversation, before: Conversation | None, outcome: Outcome[T]
    ) -> Conversation:
        """Ask the endpoint for its window and, if the change needs it, for its count."""
        if not outcome.asks_endpoint:
            await self._ask_window(conversation.model, before, outcome.usage)
            return conversation
        self._missed.pop(conversation.id, None)
        self.sessions.state_of(conversation.id).asked_layout = conversation.layout
        try:
            await self._ask_window(conversation.model, before, outcome.usage)
            return await self._ask_count(conversation)
        except asyncio.CancelledError:
            self._ask_later(conversation)
            raise
        except BaseException:
            self._ask_later(conversation, "unreachable")
            raise

    async def _ask_window(
        self, model: str, before: Conversation | None, usage: Usage | None
    ) -> None:
        if usage is not None or (before is not None and before.model != model):
            tokens = usage.prompt_tokens + usage.output_tokens if usage else 0
            await self._endpoints.refresh_window(model, tokens)
        await self.look_up_window(model)

    async def _ask_count(self, conversation: Conversation) -> Conversation:
        """Request an endpoint's count of a conversation, and apply the result."""
        settings, counts, model = self.workspace.settings, self.services.counts, conversation.model
        await self._sections.ask(conversation, model, settings)
        change, misses = await _count_chat(counts, conversation, settings)
        if any(counts.report_miss(model, settings, kind) for kind in misses):
            self._note_missed_count(conversation)
        elif misses and settings != self.workspace.settings:
            self._ask_later(conversation)  # the settings change may have closed the connection
        counted, _ = await self.apply(change)
        return counted

    async def retry_missed_counts(self, model: str) -> None:
        """Retry the counts that a model's endpoint failed to provide."""
        for name in [*self._missed]:
            conversation = self.sessions.conversations.get(name)
            if conversation is None:
                self._missed.pop(name, None)
            elif conversation.model == model and name in self._missed:
                await self.apply(Recount(session=name, asks_endpoint=True))
                if name in self._missed and name in self.sessions.conversations:
                    break  # failed again; the next retry starts with another conversation

    def _is_probed_again(self, conversation: Conversation) -> bool:
        if conversation.id not in self._missed:
            return False
        fingerprint = self._endpoints.fingerprint(conversation.model)
        return fingerprint is not None and fingerprint != self._missed[conversation.id]

    def _ask_later(self, conversation: Conversation, kind: MissKind = "interrupted") -> None:
        self._note_missed_count(conversation)
        self.services.counts.report_miss(conversation.model, self.workspace.settings, kind)

    def _note_missed_count(self, conversation: Conversation) -> None:
        self._missed[conversation.id] = self._endpoints.fingerprint(conversation.model)

    # -- persistence ------------------------------------------------------------------------

    async def restore(self) -> None:
        """Restore the saved conversations. Does nothing if called again."""
        if not self._is_restored:
            await self.restore_in_order()

    async def restore_in_order(self) -> None:
        """Restore the saved conversations, and let calls continue in the order they were made."""
        async with self._restoring:
            await self._restore()

    async def _restore(self) -> None:
        if self._is_restored:
            return
        uri = self.workspace.uri
        calibrations = self.services.calibrations
        if calibrations.known is None:
            calibrations.finish_sync(await self._run(calibrations.begin_sync()))
        saved = await self._run(partial(self.services.state.sessions, uri)) if uri else []
        for one in saved:
            state = self.sessions.put(restore(one, self.counter(one.model)), is_restored=True)
            self._saved_layouts[one.id] = -1
            if one.model_named:
                state.named_model = one.model
        self._is_restored = True

    async def _save(self) -> None:
        async with self._saving:
            conversations = [one for one in self.sessions.conversations.values() if one.persist]
            layouts = {one.id: one.layout for one in conversations}
            if self.workspace.uri is None or layouts == self._saved_layouts:
                return
            saved = [
                save(one, model_named=self.sessions.state_of(one.id).named_model is not None)
                for one in conversations
            ]
            own_ids, write = {*self._saved_layouts, *layouts}, self.services.state.save_sessions
            try:
                if own_ids:
                    await self._run(partial(write, self.workspace.uri, saved, own_ids))
                self._saved_layouts = layouts
            except Exception as exc:
                logger.warning("conversations were not saved: %s", type(exc).__name__)


def _is_same(conversation: Conversation | None, other: Conversation) -> bool:
    """Return whether both conversations have the same turns and model."""
    return conversation is not None and (conversation.layout, conversation.model) == (
        other.layout,
        other.model,
    )


async def _count_chat(
    counts: Counts, conversation: Conversation, settings: Settings
) -> tuple[ApplyCounts, list[MissKind]]:
    """Request an endpoint's count of a chat, or of its new turns one by one if that fails.

    Returns:
        The change that applies the counts, and the reasons for missing counts.
    """
    endpoints, model = counts.endpoints(settings), conversation.model
    change = ApplyCounts(session=conversation.id, version=conversation)
    if conversation.has_turns_without_text or not counts.is_served(model, settings):
        return change, []
    copied, run = conversation.copy(), counts.workers.run
    chat = await run(partial(msgspec.to_builtins, copied.with_system(copied.turns)))
    tools = getattr(copied.tools, "tools", None)
    answer = await endpoints.count_chat(model, chat, tools, counts.seconds)
    if isinstance(answer, EndpointCount):
        return replace(change, total=answer.tokens), []
    misses = [answer.kind]
    if not counts.asks_endpoint(model, settings):
        return change, misses
    texts, server, loop = dict[int, int](), "", asyncio.get_running_loop()
    deadline = loop.time() + counts.seconds
    for index, text in (await run(partial(uncounted_texts, copied))).items():
        seconds_left = max(0.0, deadline - loop.time())
        answer = await endpoints.count_text(model, text, seconds_left)
        if isinstance(answer, EndpointCount):
            texts[index], server = answer.tokens, answer.name
        elif answer.kind == "late" or endpoints.fingerprint(model) is None:
            misses.append(answer.kind)
            break
    return replace(change, texts=texts, server=server), misses


class SectionCounts:
    """Counts the sections of a workspace's conversations."""

    def __init__(self, counts: Counts, documents: Documents) -> None:
        self._counts, self._documents = counts, documents

    def is_stale(self, section: Section, model: str, settings: Settings) -> bool:
        count, source = section.document_count, section.source
        if isinstance(source, RestoredPart):
            return False
        if isinstance(source, FollowedText) and self._documents.is_stale(source):
            return True
        if count is None or count.source is not source or count.model != model:
            return True
        if count.cache_key != self._counts.count_cache_key(model, settings):
            return True
        return not count.final and self._counts.has_answer(source.snapshot, model, settings)

    async def ask(self, conversation: Conversation, model: str, settings: Settings) -> None:
        """Ask the endpoint to count the outdated sections. `refresh` applies the counts."""
        if self._counts.asks_endpoint(model, settings):
            sources = [
                self._documents.latest(section.source)
                if isinstance(section.source, FollowedText)
                else section.source
                for section in conversation.sections
                if not isinstance(section.source, RestoredPart)
            ]
            asked = [
                self._counts.choose_counter(source.snapshot, model, settings) for source in sources
            ]
            await asyncio.gather(*asked)

    async def refresh(self, conversation: Conversation, settings: Settings) -> None:
        """Recount a draft's outdated sections, preferably with the endpoint's counts."""
        model, sections = conversation.model, conversation.sections
        stale = [
            index
            for index, section in enumerate(sections)
            if self.is_stale(section, model, settings)
        ]
        counted = [self._count(sections[index], model, settings) for index in stale]
        for index, (now, then) in zip(stale, await asyncio.gather(*counted), strict=True):
            conversation.update_section(index, now, then)

    async def _count(
        self, section: Section, model: str, settings: Settings
    ) -> tuple[SectionCount, SectionCount | None]:
        counts, source = self._counts, section.source
        snapshot = source.snapshot
        choice = counts.choose_counter_now(snapshot, model, settings)
        cache_key = counts.count_cache_key(model, settings)
        measure = await counts.measure(snapshot, choice)
        is_final = choice.whole is not None or not counts.asks_endpoint(model, settings)
        now = SectionCount(model, measure, source, cache_key, is_final)
        then = section.reported
        if then is None or isinstance(then.source, RestoredPart):
            return now, None
        return now, await self._recount_reported(then, now, choice, settings)

    async def _recount_reported(
        self, then: SectionCount, now: SectionCount, choice: CounterChoice, settings: Settings
    ) -> SectionCount:
        if then.source is now.source:
            return now
        if then.is_like(now):
            return then
        snapshot = then.source.snapshot
        if choice.whole is not None:  # the tokenizer is scaled to match the endpoint's count
            choice = choice._replace(whole=None)
        else:
            choice = self._counts.choose_local_counter(snapshot, now.model, settings)
        measure = await self._counts.measure(snapshot, choice)
        return SectionCount(now.model, measure, then.source, now.cache_key, now.final)
