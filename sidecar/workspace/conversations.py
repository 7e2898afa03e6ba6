"""Applies changes to a workspace's conversations: the only module that does.

A worker applies a change to a draft, a copy of the conversation, and counts its new parts. One step
on the event loop, which awaits nothing, replaces the conversation by the draft. The effects follow:
publish, ask an endpoint, warn, save. Changes of one conversation are applied in their order;
questions and other conversations do not wait for them. A change that is cancelled before its commit
has no effect.

A conversation shows an estimate while an endpoint is asked. The endpoint's answer is another
change. It is dropped if the conversation has changed since, because every change asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from sidecar.context.conversation import Conversation, uncounted_texts
from sidecar.context.counter import ModelCounter
from sidecar.context.persist import restore, save
from sidecar.context.sections import RestoredPart, Section, SectionCount, SectionSource
from sidecar.context.thresholds import budget_message, crossed
from sidecar.endpoints.outcome import EndpointCount, Miss
from sidecar.errors import BadParamsError, RequestError
from sidecar.messages.usage import Usage
from sidecar.waiting import wait_or_fall_back
from sidecar.workspace.changes import ApplyCounts, Change, Draft, Outcome, Recount
from sidecar.workspace.documents import Documents, FollowedText, Snapshot
from sidecar.workspace.models import Alternatives
from sidecar.workspace.sessions import DEFAULT_ID, LONG_AGO, CountedSession
from sidecar.workspace.wording import NO_CONTEXT
from sidecar.workspace.workspace import Event

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.response import WarningKind
    from sidecar.endpoints.registry import Endpoints
    from sidecar.workspace.counter_choice import CounterChoice
    from sidecar.workspace.counts import Counts
    from sidecar.workspace.sessions import SessionRegistry
    from sidecar.workspace.shared import Shared
    from sidecar.workspace.workspace import Workspace


logger = logging.getLogger(__name__)

T = TypeVar("T")


class Effects(NamedTuple):
    """The effects of a committed change."""

    conversation: Conversation
    before: Conversation | None
    asks_chat: bool
    """Whether to ask the endpoint for a count of the whole chat."""
    usage: Usage | None = None
    """Usage reported with the change, if an endpoint is declared."""
    warnings: Sequence[tuple[WarningKind, str]] = ()


class Conversations:
    """Changes and questions about one workspace's conversations. For the event loop."""

    def __init__(self, services: Shared, workspace: Workspace, sessions: SessionRegistry) -> None:
        self.services, self.workspace, self.sessions = services, workspace, sessions
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._restoring = asyncio.Lock()
        self._is_restored = False
        self._run = services.workers.run
        self._sections = SectionCounts(services.counts, services.documents)
        self._saving = asyncio.Lock()
        self._saved_layouts: dict[str, int] = {}
        self._missed: dict[str, Hashable] = {}
        """Endpoint fingerprints at the miss, by conversation that still needs a count."""

    # -- changes ----------------------------------------------------------------------------

    async def apply(self, change: Change[T]) -> tuple[Conversation, T]:
        """Apply a change, and return the new conversation with the change's result.

        Raises:
            RequestError: The change is not possible; nothing was changed.
        """
        await self.restore()
        name = self.sessions.id_to_change(change.session)
        is_answer, is_recount = isinstance(change, ApplyCounts), isinstance(change, Recount)
        if change.needs_window:
            await self.look_up_window(change.model or self.model_of(name))
        # A recount does not wait for earlier changes: it is dropped if one of them commits first.
        async with nullcontext() if is_recount else self._lock(name):
            before = base = self.sessions.conversations.get(name)
            if change.version is not None and not _is_same(before, change.version):
                base = change.version
            named = self.sessions.state_of(name).named_model
            settings = self.workspace.settings
            if change.must_prepare:
                prepare = partial(change.prepare, self.model_of(name), named, settings)
                change = await self._run(prepare)
            model = change.model or named or change.answered_model or self.model_of(name)
            if is_answer and base is not None:
                model = base.model
            await self.services.counts.look_up(model, settings)
            draft = await self._make_draft(name, base, model)
            outcome = await self._change_on_worker(draft, change)
            is_outdated = is_recount and self.sessions.conversations.get(name) is not before
            if base is not before or is_outdated:
                if is_answer and before is not None and self._needs_endpoint_count(before):
                    self._ask_later(before)  # fits and undos do not ask the endpoint themselves
                return draft.conversation, outcome.result
            effects = self._commit(change, draft, outcome, before)
        if is_answer:  # the change that has asked runs the effects
            return draft.conversation, outcome.result
        return await self._run_effects(effects), outcome.result

    async def _change_on_worker(self, draft: Draft, change: Change[T]) -> Outcome[T]:
        """Change a draft on a worker, then bring its documents up to date."""
        outcome = await self._run(partial(_apply_to_draft, draft, change))
        if self._is_stale(draft.conversation):
            self._follow_documents(draft.conversation)
            await self._count_sections(draft.conversation)
            await self._run(draft.conversation.total)
        return outcome

    def _commit(
        self, change: Change[T], draft: Draft, outcome: Outcome[T], before: Conversation | None
    ) -> Effects:
        """Replace the conversation by its draft, in one step."""
        conversation = draft.conversation
        if not change.makes_current:
            conversation.updated_at = before.updated_at if before else LONG_AGO
        state = self.sessions.put(conversation)
        if isinstance(change, ApplyCounts):
            state.counted_layout = conversation.layout
        if change.model is not None:
            state.named_model = change.model
        if change.answered_model is not None:
            state.answered_model = change.answered_model
        if outcome.refused_limit is not None:
            state.refused_limits[conversation.model] = outcome.refused_limit
        if change.forgets_calibration:
            state.calibration = None
        self._learn(conversation, outcome)
        if outcome.spent is not None:
            self.services.show_spent(self.workspace, outcome.spent)
        has_endpoints = bool(self.workspace.settings.endpoints)
        asks_chat = has_endpoints and change.asks_endpoint
        usage = outcome.usage if has_endpoints else None
        if not (asks_chat or usage):
            self.sessions.publish()
        return Effects(conversation, before, asks_chat, usage, outcome.warnings)

    def _learn(self, conversation: Conversation, outcome: Outcome[T]) -> None:
        """Update the conversation's calibration with what was reported."""
        if not outcome.samples and outcome.reply_sample is None:
            return
        state, counts = self.sessions.state_of(conversation.id), self.services.counts
        state.calibration = self.sessions.calibration_of(conversation)
        for sample in outcome.samples:
            sample.apply_to(state.calibration, conversation.ledger())
        if outcome.reply_sample is not None:
            state.calibration.add_reply(*outcome.reply_sample)
        counts.calibration_changed()
        tokenizer = counts.tokenizers(self.workspace.settings).for_model(conversation.model)
        if any(sample.kind for sample in outcome.samples) and tokenizer.method != "exact":
            self.services.publish(Event("endpoint"))  # documents of all roots count differently

    async def _run_effects(self, effects: Effects) -> Conversation:
        """Publish, ask an endpoint, warn and save. Returns the counted conversation."""
        conversation = effects.conversation
        if self._is_stale(conversation):  # the settings have changed since
            self.services.publish(Event("document", self.workspace))
        if effects.asks_chat or effects.usage is not None:
            try:
                conversation = await wait_or_fall_back(self._ask(effects), self.sessions.publish)
            finally:
                self.sessions.publish()
        usage = self.sessions.shown_usage(conversation) if effects.warnings else None
        for kind, message in effects.warnings:
            self.sessions.warn(kind, message, usage)
        await self._warn_of_threshold(conversation)
        await self._save()
        return conversation

    async def _warn_of_threshold(self, conversation: Conversation) -> None:
        """Warn if a change has crossed a threshold; over the window, with what the user can do."""
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
        """Whether an earlier request is changing a conversation, which may create it."""
        lock = self._locks.get(session_id or self.sessions.id_to_change(None))
        return lock is not None and lock.locked()

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    async def refresh(self) -> None:
        """Bring the shown conversation up to date with documents, settings and endpoints."""
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
            change = Recount(session=shown.id, version=shown, asks_endpoint=is_probed_again)
            await self.apply(change)
        self.sessions.publish()
        current = self.sessions.conversations.get(shown.id)
        if current is not None:
            await self._warn_of_threshold(current)

    async def recount(self, session_id: str | None = None) -> None:
        """Count one conversation, or all, by current settings and documents."""
        await self.restore()
        for conversation in [*self.sessions.conversations.values()]:
            name = conversation.id
            if session_id in (None, name) and self._is_stale(conversation, self.model_of(name)):
                await self.apply(Recount(session=name, version=conversation))

    # -- drafts -----------------------------------------------------------------------------

    async def _make_draft(self, name: str, before: Conversation | None, model: str) -> Draft:
        """Copy or begin a conversation, with current documents and counted sections."""
        conversation = before.copy() if before else Conversation(name, self.counter(model))
        if conversation.model != model or self._has_other_tokenizer(conversation):
            conversation.counter = self.counter(model)
        self._follow_documents(conversation)
        calibration = self.sessions.calibration_of(conversation).copy()
        draft = Draft(conversation, self.sessions.window_of(conversation), calibration)
        await self._count_sections(conversation)
        return draft

    def _follow_documents(self, conversation: Conversation) -> None:
        """Give a draft's sections the current text of the documents that they follow."""
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
        """Whether the settings now choose another tokenizer for the conversation's model."""
        counter = conversation.counter
        return isinstance(counter, ModelCounter) and not counter.is_like(
            self.counter(conversation.model)
        )

    def _is_stale(self, conversation: Conversation, model: str | None = None) -> bool:
        """Whether settings, documents or endpoint answers have changed counts.

        `model`: the model to count for; the conversation's by default.
        """
        model, settings = model or conversation.model, self.workspace.settings
        if conversation.model != model or self._has_other_tokenizer(conversation):
            return True
        return any(
            self._sections.is_stale(section, model, settings) for section in conversation.sections
        )

    async def draft_for_preflight(self, session_id: str | None, model: str | None) -> Draft:
        """Return a draft that is never committed, of an empty conversation if there is none.

        It includes earlier changes of the conversation. An agent's session, whose texts are not
        known, becomes one prompt of its size.
        """
        await self.restore()
        async with self._lock(session_id or self.sessions.id_to_change(None)):
            pass
        session = self.sessions.find(session_id)
        if isinstance(session, CountedSession):
            model = model or session.model or self.workspace.model
            await self.look_up_window(model)
            return await self._make_draft_of_size(session, model)
        name = session_id or DEFAULT_ID if session is None else session.id
        model = model or self.model_of(name)
        await self.look_up_window(model)
        return await self._make_draft(name, session, model)

    async def _make_draft_of_size(self, session: CountedSession, model: str) -> Draft:
        conversation = Conversation(session.id, self.counter(model))
        conversation.limit = session.limit if model == session.model else None
        size = session.tokens or 0
        usage = Usage(input_tokens=size, prompt_tokens=size)
        await self._run(partial(conversation.apply_reply_usage, usage))
        calibration = self.sessions.calibration_of(conversation).copy()
        return Draft(conversation, self.sessions.window_of(conversation), calibration)

    # -- questions --------------------------------------------------------------------------

    async def find_counted(self, session_id: str | None) -> Conversation | CountedSession | None:
        """Return a session, counted by current settings and documents."""
        await self.restore()
        session = self.sessions.find(session_id)
        if not isinstance(session, Conversation):
            return session
        model = self.model_of(session.id)
        await self.services.counts.look_up(model, self.workspace.settings)
        if not self._is_stale(session, model):
            return session
        draft = await self._make_draft(session.id, session, model)
        await self._run(draft.conversation.total)
        return draft.conversation

    async def look_up_window(self, model: str) -> None:
        """Look up a model's window and price, and ask an endpoint that serves it for its window."""
        await self.services.counts.look_up(model, self.workspace.settings)
        endpoints = self._endpoints
        if endpoints.reports_window(model) and endpoints.known_limit(model) is None:
            await endpoints.limit(model)

    @property
    def _endpoints(self) -> Endpoints:
        return self.services.counts.endpoints(self.workspace.settings)

    def model_of(self, session_id: str) -> str:
        """Return the model that a conversation is counted for."""
        return self.sessions.model_of(session_id)

    def counter(self, model: str) -> ModelCounter:
        """Return the counter of a model."""
        tokenizer = self.services.counts.tokenizers(self.workspace.settings).for_model(model)
        return ModelCounter(model, tokenizer)

    def id_with_text(self, session_id: str | None) -> str:
        """Return the id of a conversation whose messages are available.

        It may still be in creation by an earlier request.

        Raises:
            BadParamsError: There is no such conversation.
            RequestError: `noText`. It belongs to an agent, so only its counts are known.
        """
        session = self.sessions.find(session_id)
        if session is None and self.is_changing(session_id):
            return session_id or self.sessions.id_to_change(None)
        if session is None:
            missing = "this workspace has no such session" if session_id else NO_CONTEXT
            raise BadParamsError(missing)
        if isinstance(session, CountedSession):
            raise RequestError(
                "noText", "this session belongs to a coding agent: only its token counts are known"
            )
        return session.id

    def alternatives(self, conversation: Conversation) -> Alternatives:
        """Return the models that could hold the conversation, for a worker to compute."""
        capabilities = tuple(self._endpoints.capabilities())
        return Alternatives(
            conversation.model, conversation.counter, conversation.tools, capabilities
        )

    # -- endpoints --------------------------------------------------------------------------

    async def _ask(self, effects: Effects) -> Conversation:
        """Ask an endpoint for the window and, if the change needs it, a count of the chat."""
        conversation, before = effects.conversation, effects.before
        if not effects.asks_chat:
            await self._ask_window(conversation.model, before, effects.usage)
            return conversation
        with self._mark_asking(conversation):
            await self._ask_window(conversation.model, before, effects.usage)
            first_new = 0 if before is None else len(before.turns)
            return await self._ask_count(conversation, first_new)

    async def _ask_window(
        self, model: str, before: Conversation | None, usage: Usage | None
    ) -> None:
        """Look up a window, again if the server may have reloaded the model."""
        if usage is not None or (before is not None and before.model != model):
            tokens = usage.prompt_tokens + usage.output_tokens if usage else 0
            await self._endpoints.refresh_window(model, tokens)
        await self.look_up_window(model)

    async def _ask_count(self, conversation: Conversation, first_new: int) -> Conversation:
        """Ask the endpoint to count a conversation, and apply its answer.

        Args:
            conversation: The version to count.
            first_new: Index of the first turn that the change has added.
        """
        settings = self.workspace.settings
        await self._sections.ask(conversation, conversation.model, settings)
        draft = await self._make_draft(conversation.id, conversation, conversation.model)
        answer = await _count_chat(self.services.counts, draft.conversation, settings)
        if answer.is_due:
            self._note_missed_count(conversation)
        elif answer.is_missing and settings != self.workspace.settings:
            self._ask_later(conversation)  # the endpoint's connection may have been closed
        change = ApplyCounts(
            session=conversation.id,
            version=conversation,
            total=answer.total,
            texts=answer.texts,
            server=answer.server,
            first_new=first_new,
        )
        counted, _ = await self.apply(change)
        return counted

    async def retry_missed_counts(self, model: str) -> None:
        """Ask again for a model's missed counts, one after another, until one is missed again."""
        for name in [*self._missed]:
            conversation = self.sessions.conversations.get(name)
            if conversation is None:
                self._missed.pop(name, None)
            elif conversation.model == model and name in self._missed:
                change = Recount(session=name, version=conversation, asks_endpoint=True)
                await self.apply(change)
                if name in self._missed:
                    break  # it is last now, so the others are tried first next time

    def _is_probed_again(self, conversation: Conversation) -> bool:
        """Whether the endpoint was probed again since it missed the conversation's count."""
        if conversation.id not in self._missed:
            return False
        fingerprint = self._endpoints.fingerprint(conversation.model)
        return fingerprint is not None and fingerprint != self._missed[conversation.id]

    def _needs_endpoint_count(self, conversation: Conversation) -> bool:
        """Whether no request for this version of the conversation has been sent."""
        state = self.sessions.state_of(conversation.id)
        return state.asking == 1 and state.counted_layout != conversation.layout

    @contextmanager
    def _mark_asking(self, conversation: Conversation) -> Iterator[None]:
        """Mark the conversation as being counted; a count that is cancelled is missed."""
        state = self.sessions.state_of(conversation.id)
        self._missed.pop(conversation.id, None)
        state.asking += 1
        try:
            yield
        except BaseException:
            self._ask_later(conversation)
            raise
        finally:
            state.asking -= 1

    def _ask_later(self, conversation: Conversation) -> None:
        """Ask again soon, although the endpoint may be available."""
        self._note_missed_count(conversation)
        self.services.counts.report_miss(conversation.model, self.workspace.settings, "late")

    def _note_missed_count(self, conversation: Conversation) -> None:
        self._missed[conversation.id] = self._endpoints.fingerprint(conversation.model)

    # -- persistence ------------------------------------------------------------------------

    async def restore(self) -> None:
        """Restore saved conversations, once."""
        if self._is_restored:  # requests that still wait for the lock came later
            return
        async with self._restoring:
            await self._restore()

    async def _restore(self) -> None:
        if self._is_restored:
            return
        uri = self.workspace.uri
        await self.services.calibrations.load(self._run)
        saved = await self._run(partial(self.services.state.sessions, uri)) if uri else []
        for one in saved:
            state = self.sessions.put(restore(one, self.counter(one.model)), is_restored=True)
            self._saved_layouts[one.id] = -1
            if one.model_named:
                state.named_model = one.model
        self._is_restored = True

    async def _save(self) -> None:
        """Save changed conversations that asked for it. A full disk fails no request."""
        async with self._saving:
            conversations = [one for one in self.sessions.conversations.values() if one.persist]
            layouts = {one.id: one.layout for one in conversations}
            if self.workspace.uri is None or layouts == self._saved_layouts:
                return
            saved = [
                msgspec.structs.replace(
                    save(one), model_named=self.sessions.state_of(one.id).named_model is not None
                )
                for one in conversations
            ]
            own_ids, write = {*self._saved_layouts, *layouts}, self.services.state.save_sessions
            try:
                if own_ids:
                    await self._run(partial(write, self.workspace.uri, saved, own_ids))
                self._saved_layouts = layouts
            except Exception as exc:
                logger.warning("conversations were not saved: %s", type(exc).__name__)


def _apply_to_draft(draft: Draft, change: Change[T]) -> Outcome[T]:
    """Apply a change to a draft, and count its new parts except for sections. Blocking."""
    outcome = change.apply(draft)
    if not draft.conversation.has_uncounted_sections:
        draft.conversation.total()
    return outcome


def _is_same(conversation: Conversation | None, other: Conversation) -> bool:
    """Whether both have the same turns for the same model, so that counts of one hold for both."""
    return conversation is not None and (conversation.layout, conversation.model) == (
        other.layout,
        other.model,
    )


class _ChatCount(NamedTuple):
    """An endpoint's count of a conversation: of the whole chat, or of single texts."""

    total: int | None = None
    texts: Mapping[int, int] = MappingProxyType({})
    """Tokens by turn, from an endpoint that counts texts only."""
    server: str = ""
    """The server that counted the texts."""
    is_due: bool = False
    """Whether to ask again, because a text was not counted in time."""
    is_missing: bool = False
    """Whether the endpoint was asked and gave no count of the chat."""


async def _count_chat(counts: Counts, conversation: Conversation, settings: Settings) -> _ChatCount:
    """Ask the endpoint to count the whole chat, or else the texts of new turns, one request each.

    `conversation` is a copy that only this call uses.
    """
    endpoints, model = counts.endpoints(settings), conversation.model
    if conversation.known_by_counts or not endpoints.serves(model):
        return _ChatCount()
    chat = await counts.workers.run(partial(_messages_of, conversation))
    tools = getattr(conversation.tools, "tools", None)
    answer = await endpoints.count_chat(model, chat, tools, counts.seconds)
    if isinstance(answer, EndpointCount):
        return _ChatCount(answer.tokens)
    is_due = counts.report_miss(model, settings, answer.kind)
    if not counts.asks_endpoint(model, settings):
        return _ChatCount(is_due=is_due, is_missing=True)
    texts, server, miss = await _count_texts(counts, conversation, endpoints)
    if miss is not None:
        is_due = counts.report_miss(model, settings, miss.kind) or is_due
    return _ChatCount(None, texts, server, is_due, is_missing=True)


async def _count_texts(
    counts: Counts, conversation: Conversation, endpoints: Endpoints
) -> tuple[dict[int, int], str, Miss | None]:
    """Count texts until the time is over.

    Returns:
        Tokens by turn, the server's name, and why the other texts have no count.
    """
    counted: dict[int, int] = {}
    server, loop = "", asyncio.get_running_loop()
    deadline = loop.time() + counts.seconds
    for index, text in (await counts.workers.run(partial(uncounted_texts, conversation))).items():
        seconds_left = max(0.0, deadline - loop.time())
        answer = await endpoints.count_text(conversation.model, text, seconds_left)
        if isinstance(answer, EndpointCount):
            counted[index], server = answer.tokens, answer.name
        elif answer.kind == "late" or endpoints.fingerprint(conversation.model) is None:
            return counted, server, answer
    return counted, server, None


def _messages_of(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the system prompt and the turns as messages."""
    system = getattr(conversation.system, "turn", None)
    turns = conversation.turns if system is None else [system, *conversation.turns]
    return [msgspec.to_builtins(turn) for turn in turns]


class SectionCounts:
    """Counts sections of one workspace's conversations. For the event loop."""

    def __init__(self, counts: Counts, documents: Documents) -> None:
        self._counts, self._documents = counts, documents
        self._snapshots: WeakKeyDictionary[SectionSource, Snapshot] = WeakKeyDictionary()
        """Snapshots of sections given as texts, whose pieces remember their counts."""

    def is_stale(self, section: Section, model: str, settings: Settings) -> bool:
        """Whether a section must be counted again."""
        count, source = section.document_count, section.source
        if isinstance(source, RestoredPart):
            return False
        if isinstance(source, FollowedText) and self._documents.is_stale(source):
            return True
        if count is None or count.source is not source or count.model != model:
            return True
        if count.cache_key != self._counts.count_cache_key(model, settings):
            return True
        return not count.final and self._counts.has_answer(
            self._snapshot_of(source), model, settings
        )

    async def ask(self, conversation: Conversation, model: str, settings: Settings) -> None:
        """Await the endpoint's counts of sections, which `refresh` then uses."""
        if self._counts.asks_endpoint(model, settings):
            sources = [
                self._documents.latest(section.source)
                if isinstance(section.source, FollowedText)
                else section.source
                for section in conversation.sections
                if not isinstance(section.source, RestoredPart)
            ]
            asked = [
                self._counts.choose_counter(self._snapshot_of(source), model, settings)
                for source in sources
            ]
            await asyncio.gather(*asked)

    async def refresh(self, conversation: Conversation, settings: Settings) -> None:
        """Count the stale sections of a draft, with the endpoint's counts that are known."""
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
        """Count a section, and the text it had at the last report, in the same way."""
        counts, source = self._counts, section.source
        snapshot = self._snapshot_of(source)
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
        """Count a reported text in the same way as the current one."""
        if then.source is now.source:
            return now
        if then.is_like(now):
            return then
        snapshot = self._snapshot_of(then.source)
        if choice.whole is not None:  # the endpoint's number for one text corrects the other
            choice = choice._replace(whole=None)
        else:
            choice = self._counts.choose_local_counter(snapshot, now.model, settings)
        measure = await self._counts.measure(snapshot, choice)
        return SectionCount(now.model, measure, then.source, now.cache_key, now.final)

    def _snapshot_of(self, source: SectionSource) -> Snapshot:
        if isinstance(source, FollowedText):
            return source.snapshot
        snapshot = self._snapshots.get(source)
        if snapshot is None:
            snapshot = self._snapshots[source] = Snapshot(text=source.text())
        return snapshot
