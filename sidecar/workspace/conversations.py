"""A workspace's conversations: one at a time on a worker thread, their numbers for the status."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sidecar.context.errors import ContextError
from sidecar.context.occupancy import context_usage, heaviest_tools
from sidecar.context.persist import restore, save
from sidecar.context.preflight import fitting
from sidecar.context.results import Alternative, ContextUsage, ContextWarning
from sidecar.context.session import Session
from sidecar.context.store import DEFAULT_ID, Conversation
from sidecar.context.thresholds import budget_message, crossed, severity
from sidecar.context.window import Limit, Window, resolve_limit
from sidecar.counting import catalogue
from sidecar.counting.calibration import ConversationCalibration
from sidecar.endpoints.outcome import EndpointCount
from sidecar.workspace.errors import RequestError
from sidecar.workspace.model_counter import ModelCounter

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.context.params import ResponseParams
    from sidecar.context.session import Sample
    from sidecar.cost.caps import CostVerdict
    from sidecar.endpoints.reply import Reply
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NO_CHAT = re.compile(
    "embed|transcri|realtime|audio|tts|speech|whisper|image|dall-e|moderation|rerank|ocr"
    "|computer-use|instruct|davinci|babbage|search|deep-research|voxtral|veo|imagen|live"
)
"""Models that hold no conversation like this one, by what their names say."""


class ConversationRoom:
    """Everything that `context/*` needs of one workspace; made for one request."""

    def __init__(self, services: Services, workspace: Workspace) -> None:
        self.services = services
        self.workspace = workspace
        self.talk = workspace.talk
        self.warnings: list[ContextWarning] = []

    async def run(self, work: Callable[[], T]) -> T:
        """Do counting work on a worker thread; call it while holding the lock.

        Raises:
            RequestError: for what the conversation refuses.
        """
        for source in self.talk.followed():
            source.refresh()
        from sidecar.cost.ledger import LedgerError

        try:
            return await self.services.counting.run(work)
        except ContextError as exc:
            raise RequestError(exc.kind, str(exc)) from None
        except LedgerError as exc:
            raise RequestError("storage", str(exc), retryable=True) from None

    async def restore(self) -> None:
        """Once: take in the sessions that a client asked to keep, by their counts."""
        talk, uri = self.talk, self.workspace.uri
        if talk.restored or uri is None:
            return
        talk.restored = True
        await self.run(partial(self._restore, uri))

    def _restore(self, uri: str) -> None:
        for saved in self.services.state.sessions(uri):
            self.talk.conversations.add(restore(saved, self.counter(saved.model)))
            self.talk.kept[saved.id] = -1
            if saved.model_named:
                self.talk.models[saved.id] = saved.model

    async def keep(self) -> None:
        """Write what is to outlive the server, where it changed. A full disk fails no request."""
        try:
            await self.services.counting.run(self._keep)
        except Exception as exc:
            logger.warning("sessions were not kept: %s", type(exc).__name__)

    def _keep(self) -> None:
        talk, uri = self.talk, self.workspace.uri
        self.services.state.save()
        sessions = [one.session for one in talk.conversations if one.session.persist]
        layouts = {session.id: session.layout for session in sessions}
        if uri is None or layouts == talk.kept:
            return
        saved = [
            msgspec.structs.replace(save(session), model_named=session.id in talk.models)
            for session in sessions
        ]
        self.services.state.save_sessions(uri, saved, {*talk.kept, *layouts})
        talk.kept = layouts

    def model_of(self, session_id: str | None) -> str:
        """The model that a session counts for."""
        found = self.talk.conversations.get(session_id)
        named = None if found is None else self.talk.models.get(found.session.id)
        return named or self.workspace.model

    def counter(self, model: str) -> ModelCounter:
        """How a conversation with `model` is counted."""
        tokenizer = self.services.tokenizers(self.workspace).for_model(model)
        return ModelCounter(model, tokenizer)

    def open(self, session_id: str | None, model: str | None = None) -> Conversation:
        """The conversation named, or the current one, made if need be, counting for its model."""
        wanted = model or self.model_of(session_id)
        found = self.talk.conversations.open(session_id, lambda: self.counter(wanted))
        if model is not None:
            self.talk.models[found.session.id] = model
        self.use_model(found.session, wanted)
        return found

    def existing_or_new(self, session_id: str | None) -> Conversation:
        """The conversation named, or the current one; where there is none, one that is not kept:
        a question makes no session."""
        found = self.talk.conversations.get(session_id)
        if found is None:
            counter = self.counter(self.model_of(session_id))
            return Conversation(Session(session_id or DEFAULT_ID, counter))
        self.use_model(found.session, self.model_of(found.session.id))
        return found

    def open_unnoticed(self, session_id: str | None) -> Conversation:
        """As `open`, but a session that is made by this does not become the current one."""
        known = self.talk.conversations.get(session_id) is not None
        found = self.open(session_id)
        if not known:
            found.session.updated_at = datetime.min.replace(tzinfo=UTC)
        return found

    def use_model(self, session: Session, model: str) -> None:
        """Count a session for a model; its turns are counted again when a number is asked for."""
        if session.model != model:
            session.counter = self.counter(model)

    def calibration(self, session: Session) -> ConversationCalibration:
        """What reported usage has taught about this session's estimates."""
        known = self.talk.calibrations.get(session.id)
        tokenizer = session.counter.tokenizer
        if known is None:
            shared = self.services.state.calibrations()
            known = ConversationCalibration(shared, session.model, tokenizer)
            self.talk.calibrations[session.id] = known
        known.switch(session.model, tokenizer)
        return known

    def learn(self, session: Session, sample: Sample) -> None:
        """Teach the calibration what a reported number told."""
        calibration = self.calibration(session)
        calibration.learn(sample.estimated, sample.reported)
        self.services.state.calibrations_changed()
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "conversation: %d characters, estimated %d, real %d, factor %.3f",
                sum(len(str(message.get("content") or "")) for message in chat_of(session)),
                sample.estimated,
                sample.reported,
                calibration.factor,
            )

    def limit(self, session: Session, model: str | None = None) -> Limit:
        """The window in force; loads the catalogue, so only on a worker thread."""
        name = model or session.model
        return resolve_limit(
            request=session.limit,
            endpoint=self.talk.refused_limits.get(name)
            or self.services.endpoints(self.workspace).known_limit(name),
            catalogue=catalogue.window_of(name),
            setting=self.workspace.settings.context.limit,
        )

    def window(self, session: Session, model: str | None = None) -> Window:
        """The limit with the reply's reserve taken off."""
        reserve = session.reserve
        if reserve is None:
            reserve = self.workspace.settings.context.reserve
        return Window(self.limit(session, model), reserve)

    def usage(self, conversation: Conversation) -> ContextUsage:
        """How full the context is, and a warning where a threshold was crossed."""
        session = conversation.session
        warn_at = self.workspace.settings.context.warn_at
        usage = context_usage(
            session,
            self.window(session),
            warn_at=warn_at,
            calibration=self.calibration(session),
            cost_usd=self.services.cost_of_session(self.workspace, session.id),
        )
        if crossed(session, usage, warn_at):
            self.warn("budget", self._budget_message(session, usage), usage)
        return usage

    def _budget_message(self, session: Session, usage: ContextUsage) -> str:
        if not usage.over or usage.tokens is None:
            return budget_message(usage)
        return budget_message(usage, self.offers(session, usage), heaviest_tools(session))

    def offers(self, session: Session, usage: ContextUsage) -> list[Alternative]:
        """The models whose window would hold the conversation, the smallest first."""
        models = self.alternatives(session)
        return fitting(models, usage.tokens or 0, session.model, usage.reserve or 0)

    def alternatives(self, session: Session) -> list[Alternative]:
        """Models that could be switched to: of the same provider, or on the user's endpoints."""
        provider = catalogue.provider_of(session.model)
        found = [
            Alternative(model=info.id, context_window=info.context_window)
            for info in catalogue.search()
            if info.provider == provider and info.context_window and not _NO_CHAT.search(info.id)
        ]
        endpoints = self.services.endpoints(self.workspace)
        return found + [
            Alternative(model=row.model, context_window=row.limit)
            for row in endpoints.capabilities()
            if row.model and row.limit
        ]

    def warn(
        self, kind: Any, message: str, usage: ContextUsage | None, session: str | None = None
    ) -> None:
        """Note a warning to send when the request is done."""
        session = usage.session.id if usage and usage.session else session
        self.warnings.append(
            ContextWarning(
                workspace=self.workspace.uri,
                session=session,
                kind=kind,
                message=message,
                usage=usage,
            )
        )

    def learn_reply(self, session: Session, reply: Reply) -> None:
        """Teach the calibration what a reply's own text came to, where all of it is sent back."""
        usage = reply.usage
        if usage is None or usage.reasoning_tokens or reply.tool_calls or not reply.content:
            return
        estimate = session.counter.text(reply.content).tokens
        self.calibration(session).replied(estimate, usage.output_tokens)

    def record_reply(
        self, session: Session, reply: Reply, params: ResponseParams, estimate: int | None
    ) -> None:
        """Bill a reply, once by the vendor's own id."""
        if reply.usage is None:
            return
        self.services.spending(self.workspace).record_reply(
            session.id,
            reply,
            model=params.model or self.talk.models.get(session.id) or reply.model or session.model,
            category=params.category or "main",
            request_id=params.request_id or reply.request_id,
            raw=params.response,
            estimate=estimate,
        )

    def judge_cost(
        self, model: str, prompt_tokens: int, output_tokens: int, session: str
    ) -> CostVerdict:
        """What a call would cost, and what the caps say; a new crossing of a cap is a warning."""
        spending = self.services.spending(self.workspace)
        verdict = spending.preflight(model, prompt_tokens, output_tokens, session)
        capped = [reason.message for reason in verdict.reasons if reason.kind.endswith("Cap")]
        if capped and not spending.warned:
            self.warn("cap", " ".join(capped), self.talk.shown)
        spending.warned = bool(capped)
        return verdict

    def show(self) -> ContextUsage | None:
        """Work out what the status shows of the current conversation."""
        current = self.talk.conversations.current()
        if current is None:
            self.talk.shown, self.talk.severity = None, "ok"
            return None
        usage = self.usage(current)
        self.talk.shown = usage
        warn_at = self.workspace.settings.context.warn_at
        self.talk.severity = severity(usage.tokens, usage.usable or 1, warn_at)
        return usage

    async def ask_limit(self, model: str) -> None:
        """Let the endpoint that serves a model say its window, once; later it is known."""
        endpoints = self.services.endpoints(self.workspace)
        if endpoints.serves(model):
            await endpoints.limit(model)

    async def count_chat(self, conversation: Conversation, first: int) -> None:
        """Have the endpoint count the whole chat, where it can: one request for an append."""
        session = conversation.session
        endpoints = self.services.endpoints(self.workspace)
        if session.known_by_counts or not endpoints.serves(session.model):
            return
        messages = chat_of(session)
        tools = getattr(session.tools, "tools", None)
        layout = session.layout
        counted = await endpoints.count_chat(session.model, messages, tools)
        if isinstance(counted, EndpointCount) and session.layout == layout:
            work = partial(session.chat_counted, counted.tokens, first, len(session.turns))
            await self.run(work)


def chat_of(session: Session) -> list[dict[str, Any]]:
    """The conversation as messages: the system prompt first, then the turns."""
    system = getattr(session.system, "turn", None)
    turns = session.turns if system is None else [system, *session.turns]
    return [msgspec.to_builtins(turn) for turn in turns]
