"""Gets counts, context windows and capabilities from the endpoints in the user's settings.

`DeclaredEndpoint` is one of them: its connection, and what is known about its models. `Endpoints`
asks all that declare a model, and never raises. Nothing is sent while `use_endpoint` is off. Text
is sent only to endpoints that declare the model.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from cachetools import LRUCache

from sidecar.config.settings import Endpoint as EndpointSettings
from sidecar.endpoints import http
from sidecar.endpoints.clouds import bearer, find_cloud
from sidecar.endpoints.counting_requests import (
    Aspect,
    Chat,
    ChatMessage,
    Server,
    Tools,
    counting_request,
    refuse_unless_ok,
    single_message,
)
from sidecar.endpoints.http import (
    Connection,
    IsWanted,
    abandon_unless,
    always,
    detach_from_caller,
    set_deadline,
)
from sidecar.endpoints.local_servers import LMSTUDIO, SdkCounter, sdk_is_installed
from sidecar.endpoints.outcome import (
    ENDPOINTS_OFF,
    LARGEST_CHARACTERS,
    TOO_LONG,
    WINDOW_ONLY,
    AbilityStatus,
    Capability,
    EndpointCount,
    EndpointError,
    Miss,
    MissKind,
    ModelAsleepError,
    RequestAbandonedError,
    explain,
    undeclared_reason,
)
from sidecar.endpoints.probe import (
    PROBE_TEXTS,
    Ability,
    ProbeResult,
    check_texts,
    digest_of_list,
    is_possible_count,
    list_models,
    probe,
    probe_cloud,
    probe_window,
    refuse_if_asleep,
)
from sidecar.errors import SidecarError, how_to_install, log_defect
from sidecar.messages.messages import read_message
from sidecar.models.names import matches
from sidecar.tasks import SharedTasks, backoff

_log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_SECONDS = 2.0
_INLINE_CHARACTERS = 16_384
_SPECIAL = re.compile(
    r"<\|[^|\s]{1,40}\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]"
)


async def has_specials(text: str) -> bool:
    """Return whether text contains strings that look like special tokens."""
    if len(text) > _INLINE_CHARACTERS:
        return bool(await asyncio.to_thread(_SPECIAL.search, text))
    return bool(_SPECIAL.search(text))


def require_server(result: ProbeResult) -> Server:
    """Return the recognized server. Raises EndpointError if it is unknown."""
    if result.server is None:
        raise EndpointError("unsupported", "the server software is unknown")
    return result.server


PROBE_SECONDS = 2.0
AWAKE_SECONDS = 1.0
"""How long to rely on a server's answer that its model is awake. Counting does not keep it awake.
"""
MODELS_KEPT = 256
DELAYS: Mapping[AbilityStatus, tuple[float, float]] = {
    "unreachable": (5.0, 300.0),
    "unsupported": (60.0, 3_600.0),
    "auth": (300.0, 300.0),
    "loading": (2.0, 2.0),
    "unknown": (15.0, 15.0),
}
"""The shortest and longest time, in seconds, before a server with one of these statuses is asked
again. The time doubles with each consecutive failure of the same kind. Other results do not expire.
"""

_TEMPORARY: tuple[MissKind, ...] = ("late", "unreachable", "loading")
_UNSENT = Miss(RequestAbandonedError().reason, "late")
_AWAY: frozenset[AbilityStatus] = frozenset(("unreachable", "loading"))

ALIKE_CHARACTERS = 64
"""Equal counts of two inputs are suspicious only if the lengths of the inputs differ greatly. The
longer input must have at least twice as many characters as the shorter one, plus this number.
"""


class _ServerChangedError(SidecarError):
    """The server now has other models, so earlier probe results are invalid."""


@dataclass(eq=False)
class ModelState:
    """What is known about one model at one endpoint. Times are of the monotonic clock."""

    result: ProbeResult
    """The last probe result, which may have expired."""
    valid_until: float = 0.0
    failures: int = 0
    """The number of consecutive results of the same kind."""
    awake_until: float = 0.0
    """Until this time, the server is not asked again whether the model is asleep."""
    message_tokens: int | None = None
    """The tokens that a message has besides its text, if the server counts only chats."""
    last: dict[Aspect, tuple[int, int]] = field(default_factory=dict)
    """The size and token count of the last input."""
    misses: dict[Aspect, tuple[int, float, int]] = field(default_factory=dict)
    """How many counts failed temporarily, with pauses between them, the end of the last pause, and
    the smallest size that failed. A smaller count's success does not end the series.
    """

    def remember(self, result: ProbeResult) -> None:
        """Store a result, and determine how long it is valid."""
        now, kinds = time.monotonic(), result.statuses
        self.failures = self.failures + 1 if kinds == self.result.statuses else 1
        delays = list[float]()
        for kind in kinds & DELAYS.keys():
            first, longest = DELAYS[kind]
            if kind == "unsupported" and "supported" in kinds:
                first = longest  # the server works, so this will hardly change
            delays.append(backoff(self.failures, first, longest))
        self.result, self.valid_until = result, now + min(delays, default=math.inf)
        if "supported" in kinds:
            self.awake_until = now + AWAKE_SECONDS

    def record_count(self, what: Aspect, size: int) -> None:
        """Record a count, which ends a series of failures of inputs that are not larger."""
        if what in self.misses and size >= self.misses[what][2]:
            del self.misses[what]

    def record_miss(self, what: Aspect, size: int) -> None:
        """Record a temporary failure to count, and determine when to request the count again."""
        now = time.monotonic()
        number, pause_until, smallest = self.misses.get(what, (0, 0.0, size))
        if now >= pause_until:
            number += 1
            pause_until = now + backoff(number, *DELAYS["unreachable"])
        self.misses[what] = number, pause_until, min(size, smallest)

    def seconds_left(self) -> float:
        """Return how long the result is still valid, in seconds, or 0.0 if it has expired."""
        return max(0.0, self.valid_until - time.monotonic())


class DeclaredEndpoint:
    """A configured endpoint with its connection. The counting methods raise only EndpointError."""

    def __init__(
        self, settings: EndpointSettings, environment: Mapping[str, str], *, counts: bool = True
    ) -> None:
        """Create an endpoint.

        Args:
            settings: The `[[endpoint]]` table in the user's settings.
            environment: The environment variables, which may contain the API key.
            counts: Whether text may be sent. Otherwise, only context windows are requested.
        """
        self.models, self._counts = settings.models, counts
        self._url = settings.url
        self._cloud = find_cloud(http.host_of(settings.url))
        root = http.root_of(settings.url, self._cloud.suffixes if self._cloud else http.BASES)
        self.root = http.without_secrets(root)
        self._no_key: EndpointError | None = None
        headers: Mapping[str, str] = {}
        try:
            key = http.key_from(settings.api_key_env, environment)
            headers = self._cloud.headers(key) if self._cloud else bearer(key)
        except EndpointError as error:
            self._no_key = error
        # Local servers are never accessed through the proxies in the environment.
        proxied = self._cloud is not None
        self._connection = Connection(root, headers, proxied, key_from=settings.api_key_env)
        self._sdk = SdkCounter(root)
        self._models: LRUCache[str, ModelState] = LRUCache(MODELS_KEPT)
        self._probes = SharedTasks[str, ModelState]("probing", outlives_waiters=True)
        self._offered: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        return self._connection.requests

    def is_named(self, url: str) -> bool:
        """Return whether a URL, with or without its secrets, is this endpoint's URL."""
        return url.rstrip("/") in (self._url.rstrip("/"), self.root)

    async def models_to_probe(self) -> list[str]:
        """Return the models to probe if the user does not name one.

        These are the models that were used before and the declared names without wildcards. If
        there are none, the first listed model that matches a declared pattern is returned.
        """
        named = self.named_models()
        if named or self._cloud or self._no_key:
            return named or [self.models[0]]
        try:
            listed = list_models(await self._connection.get("/v1/models"))
        except EndpointError:
            return [self.models[0]]
        fitting = [entry.id for entry in listed if matches(entry.id, self.models)]
        return fitting[:1] or [self.models[0]]

    def named_models(self) -> list[str]:
        """Return previously used models, and declared names that contain no wildcards."""
        plain = [glob for glob in self.models if not re.search(r"[*?\[]", glob)]
        return list(dict.fromkeys([*self._models, *plain]))

    @property
    def matching_models(self) -> list[str]:
        """The listed models that match one of the endpoint's patterns."""
        return [name for name in self._offered if matches(name, self.models)]

    def result_for(self, model: str) -> ProbeResult | None:
        """Return the last probe result for a model if it is still valid, else None."""
        state = self._models.get(model)
        return state.result if state and state.seconds_left() else None

    def unavailable_for(self, model: str) -> float | None:
        """Return how many seconds remain until an unreachable or loading server is asked again.

        Returns None if the server is neither unreachable nor loading.
        """
        result = self.result_for(model)
        if result is None or result.statuses.isdisjoint(_AWAY):
            return None
        return self._models[model].seconds_left()

    def record_count(self, model: str, what: Aspect, size: int) -> None:
        """Record a count of a text of `size` characters, or of a chat of `size` messages."""
        if model in self._models:
            self._models[model].record_count(what, size)

    def record_miss(self, model: str, what: Aspect, size: int) -> None:
        """Record a temporary failure to count, unless the server has its own time to ask again."""
        result = self.result_for(model)
        if result is not None:
            ability = result.text if what == "text" else result.chat
            if ability.status in _AWAY:
                return
        if model in self._models:
            self._models[model].record_miss(what, size)

    def seconds_paused(self, model: str) -> float:
        """Return how many seconds to wait before a missed count is requested again."""
        state = self._models.get(model)
        if state is None:
            return DELAYS["unreachable"][0]
        now = time.monotonic()
        pauses = [pause_until - now for _, pause_until, _ in state.misses.values()]
        return max([0.0, self.unavailable_for(model) or 0.0, *pauses])

    def known_limit(self, model: str) -> int | None:
        """Return the last context window that the server reported for a model, or None."""
        state = self._models.get(model)
        return state.result.limit if state else None

    async def refresh_window(self, model: str, tokens: int) -> None:
        """After a reply or a model change, request the context window again if it may have changed.

        Args:
            model: The conversation's model.
            tokens: The reply's prompt and output tokens, or 0 if there is no reply.
        """
        state = self._models.get(model)
        last = state.result if state else None
        if last is None or last.server is None:
            return
        if last.server.loads_itself:
            limit = await last.server.limit(self._connection, last.model, None)
            if limit and limit != last.limit:
                self._remember(model, replace(last, limit=limit))
        elif last.limit and tokens > last.limit:
            await self.probe_again(model)

    def capabilities(self) -> list[Capability]:
        """Return the capabilities for each model that was used.

        If no model was used, returns unknown capabilities for each declared pattern.
        """
        rows = [self._capability_row(model, state.result) for model, state in self._models.items()]
        return rows or [self._capability_row(glob, None) for glob in self.models]

    async def ensure_probed(self, model: str) -> ProbeResult:
        """Return the last probe result for a model. Probe the model if there is no valid result.

        Concurrent calls share one probe.
        """
        return (await self._probed_state(model)).result

    async def probe_again(self, model: str) -> ProbeResult:
        """Probe a model, even if its last result is still valid."""
        self._expire(model)
        return await self.ensure_probed(model)

    async def _probed_state(self, model: str) -> ModelState:
        state = self._models.get(model)
        if state is not None and state.seconds_left():
            return state
        return await self._probes.run(model, partial(self._probe_model, model))

    def _expire(self, *models: str) -> None:
        for model in models:
            if model in self._models:
                self._models[model].valid_until = 0.0

    async def count_text(self, model: str, text: str) -> EndpointCount:
        """Return the text's token count. If the model has been probed, this sends one request."""
        if not text:
            return EndpointCount(tokens=0, server="", endpoint=self.root, model=model)
        state = await self._require(model, "text")
        server = require_server(state.result)
        if server.parses_specials and await has_specials(text):
            # Servers of this kind cannot treat special tokens as plain text.
            raise EndpointError(
                "unsupported", f"{server.name} would interpret special tokens in the text"
            )
        tokens = await self._text_tokens(model, state, server, text)
        if not is_possible_count(text, tokens):
            size = len(text)
            error = EndpointError(
                "lying",
                f"{server.name} counted {tokens} tokens in {size} characters, which is implausible",
            )
            self._remember(model, ProbeResult.failed(model, error, server))
            raise error
        await self._check_varies(model, "text", len(text), tokens)
        return EndpointCount(tokens=tokens, server=server.name, endpoint=self.root, model=model)

    async def count_chat(
        self, model: str, messages: Sequence[ChatMessage], tools: Tools
    ) -> EndpointCount:
        """Return a whole request's token count, using the model's chat template."""
        tokens = await self._count(model, Chat(messages, tools))
        # Reading a long conversation on the event loop would delay other requests.
        size = await asyncio.to_thread(_characters_in, messages)
        await self._check_varies(model, "chat", size, tokens)
        name = require_server(self._models[model].result).name
        return EndpointCount(tokens=tokens, server=name, endpoint=self.root, model=model)

    async def _check_varies(self, model: str, what: Aspect, size: int, tokens: int) -> None:
        """Probe again if the last two counts are equal although the inputs differ greatly in size.

        Raises:
            EndpointError: The server returns the same count for any input.
        """
        last = self._models[model].last
        before, counted = last.get(what, (size, -1))
        last[what] = size, tokens
        if tokens == counted and max(size, before) >= 2 * min(size, before) + ALIKE_CHARACTERS:
            self._expire(model)
            await self._require(model, what)

    async def aclose(self) -> None:
        """Close the connection. Later counts fail."""
        await self._probes.aclose()
        await self._sdk.aclose()
        await self._connection.aclose()

    async def _probe_model(self, model: str) -> ModelState:
        if self._no_key:
            return self._remember(model, ProbeResult.failed(model, self._no_key))
        detach_from_caller()
        try:
            await self._connection.open()
            set_deadline(PROBE_SECONDS)
            result = await self._run_probe(model)
        except EndpointError as error:
            result = ProbeResult.failed(model, error)
        except Exception as error:
            log_defect(error, f"probing {self.root}")
            reason = f"probing failed ({type(error).__name__})"
            result = ProbeResult.failed(model, EndpointError("unknown", reason))
        return self._remember(model, result)

    async def _run_probe(self, model: str) -> ProbeResult:
        if self._cloud:
            return await probe_cloud(self._connection, self._cloud, model)
        if not self._counts:
            return await probe_window(self._connection, model)
        result = await probe(self._connection, model)
        if result.server is LMSTUDIO:
            return replace(result, text=await self._probe_sdk_counting(result.model))
        return result

    async def _probe_sdk_counting(self, model: str) -> Ability:
        if not sdk_is_installed():
            return Ability("unsupported", f"to count with LM Studio, {how_to_install('lmstudio')}")
        try:
            counts = [await self._sdk.count(model, text) for text in PROBE_TEXTS]
            check_texts(counts, LMSTUDIO.name)
        except EndpointError as error:
            return Ability.failed(error)
        return Ability("supported")

    def _remember(self, model: str, result: ProbeResult) -> ModelState:
        self._offered = result.listed_models or self._offered
        state = self._models.get(model)
        if state is None:
            state = self._models[model] = ModelState(ProbeResult(model))
        state.remember(result)
        _log.debug(
            "%s for %s: %s, text %s, chat %s, limit %s",
            self.root,
            model,
            result.server.name if result.server else "unknown server",
            result.text.status,
            result.chat.status,
            result.limit,
        )
        return state

    async def _require(self, model: str, what: Aspect) -> ModelState:
        state = await self._probed_state(model)
        ability = state.result.text if what == "text" else state.result.chat
        if ability.status != "supported":
            raise EndpointError(ability.status, ability.reason, ability.step)
        return state

    async def _text_tokens(self, model: str, state: ModelState, server: Server, text: str) -> int:
        if server is LMSTUDIO:
            return await self._sdk_tokens(model, server, text)
        if not server.text_by_chat:
            return await self._count(model, text)
        if state.message_tokens is None:
            # A full stop is one token in every vocabulary. The other tokens come from the chat
            # template.
            state.message_tokens = await self._count(model, single_message(".")) - 1
        return max(1, await self._count(model, single_message(text)) - state.message_tokens)

    async def _sdk_tokens(self, model: str, server: Server, text: str) -> int:
        try:
            return await self._sdk.count(model, text)
        except EndpointError as error:
            self._remember(model, ProbeResult.failed(model, error, server))
            raise

    async def _count(self, model: str, content: str | Chat) -> int:
        """Send a counting request, and repeat it once if the server has been replaced."""
        what: Aspect = "text" if isinstance(content, str) else "chat"
        for _ in range(2):
            state = await self._require(model, what)
            result = state.result
            request, read = await asyncio.to_thread(
                counting_request, require_server(result), result.model, content
            )
            reconnections = self._connection.reconnections
            try:
                if time.monotonic() >= state.awake_until:
                    await refuse_if_asleep(self._connection, require_server(result), result.model)
                    state.awake_until = time.monotonic() + AWAKE_SECONDS
                answer = await self._connection.post(request.path, request.body)
                if self._connection.reconnections > reconnections and not self._cloud:
                    await self._check_still_same(result)
                refuse_unless_ok(answer, self.root)
                tokens = read(answer.body)
            except _ServerChangedError:
                self._expire(*self._models)
                continue
            except EndpointError as error:
                if not error.is_request_specific:
                    self._remember(model, _result_after_failure(result, model, error))
                raise
            return tokens - (result.extra_tokens if what == "text" else 0)
        raise EndpointError("unknown", f"{self.root} keeps changing its models")

    async def _check_still_same(self, result: ProbeResult) -> None:
        if not result.listed:
            return
        try:
            listed = list_models(await self._connection.get("/v1/models"))
        except BaseException:  # includes cancellation, because the next count must probe again
            self._expire(*self._models)
            raise
        if digest_of_list(listed) != result.listed:
            raise _ServerChangedError

    def _capability_row(self, model: str, result: ProbeResult | None) -> Capability:
        return Capability(
            endpoint=self.root,
            model=model,
            server=result.server.name if result and result.server else None,
            text=result.text.status if result else "unknown",
            chat=result.chat.status if result else "unknown",
            limit=result.limit if result else None,
            checked_at=result.checked_at if result else None,
            reason=self._why_unusable(result),
        )

    def _why_unusable(self, result: ProbeResult | None) -> str | None:
        if result is None:
            return None if self._counts else ENDPOINTS_OFF
        if result.text.reason == WINDOW_ONLY:
            return WINDOW_ONLY
        without = [one for one in (result.text, result.chat) if one.status != "supported"]
        return explain(without[0].status, without[0].reason, without[0].step) if without else None


def _characters_in(messages: Sequence[ChatMessage]) -> int:
    return sum(len(text) for message in messages for text in read_message(message).texts)


def _result_after_failure(result: ProbeResult, model: str, error: EndpointError) -> ProbeResult:
    """Return the probe result that applies after a failed count.

    If the server is only temporarily unavailable, the result keeps the context window.
    """
    failed = ProbeResult.failed(model, error, result.server)
    away = error.status in ("unreachable", "loading") or isinstance(error, ModelAsleepError)
    return replace(failed, limit=result.limit) if away else failed


class Endpoints:
    """Requests counts and context windows from the endpoints in the user's settings."""

    def __init__(
        self,
        endpoints: Sequence[EndpointSettings],
        use_endpoint: bool,
        environment: Mapping[str, str] | None = None,
        *,
        window: bool = False,
    ) -> None:
        """Create an instance for a user's endpoints.

        Args:
            endpoints: The `[[endpoint]]` tables in the user's settings.
            use_endpoint: Whether text may be sent.
            environment: The environment variables that contain API keys. By default, the
                environment of the process is used.
            window: Whether context windows may be requested even if `use_endpoint` is off.
        """
        variables = os.environ if environment is None else environment
        self._use, self._asks = use_endpoint, use_endpoint or window
        self._closed = False
        self._endpoints = [
            DeclaredEndpoint(settings, variables, counts=use_endpoint) for settings in endpoints
        ]
        self._asking = SharedTasks[object, Any]("asking an endpoint", outlives_waiters=True)

    @property
    def requests(self) -> int:
        return sum(endpoint.requests for endpoint in self._endpoints)

    def serves(self, model: str) -> bool:
        """Return whether a usable endpoint declares a model. Sends no request."""
        return self._use and any(self._endpoints_for(model))

    def reports_window(self, model: str) -> bool:
        """Return whether a model's context window may be requested from an endpoint.

        This sends no request.
        """
        return self._asks and any(self._endpoints_for(model))

    async def count_text(
        self,
        model: str,
        text: str,
        seconds: float = DEFAULT_SECONDS,
        wanted: IsWanted = always,
    ) -> EndpointCount | Miss:
        """Return the text's token count from a server that has the model in memory.

        If the model has been probed, this sends one request. The request continues after the time
        limit, so that failures of the server are still detected.

        Args:
            model: The model's name.
            text: The text. It is not sent if it is longer than `LARGEST_CHARACTERS`.
            seconds: How long to wait for the response.
            wanted: Called before the request is sent. Returns whether the count is still needed.
        """
        if len(text) > LARGEST_CHARACTERS:
            return Miss(TOO_LONG, "too-large")
        return await self._count_at_first(
            model, "text", len(text), lambda e: e.count_text(model, text), seconds, wanted
        )

    async def count_chat(
        self,
        model: str,
        messages: Sequence[ChatMessage],
        tools: Tools | None = None,
        seconds: float = DEFAULT_SECONDS,
    ) -> EndpointCount | Miss:
        """Return a whole request's token count, using the model's chat template."""
        return await self._count_at_first(
            model,
            "chat",
            len(messages),
            lambda e: e.count_chat(model, messages, tools or ()),
            seconds,
        )

    async def limit(self, model: str, seconds: float = DEFAULT_SECONDS) -> int | None:
        """Return the context window that a server allocates to a model, or None if unknown."""
        for endpoint in self._endpoints_for(model) if self._asks and not self._closed else ():
            result = await self._await_within(partial(endpoint.ensure_probed, model), seconds)
            if not isinstance(result, Miss) and result.limit:
                return result.limit
        return None

    def known_limit(self, model: str) -> int | None:
        """Return a model's context window if it is already known, without a request."""
        known = (endpoint.known_limit(model) for endpoint in self._endpoints_for(model))
        return next((limit for limit in known if limit), None)

    def is_window_due(self, model: str) -> bool:
        """Return whether a model's context window should be requested from a server.

        This sends no request.
        """
        if not self._asks or self._closed or self.known_limit(model) is not None:
            return False
        return any(one.result_for(model) is None for one in self._endpoints_for(model))

    async def refresh_window(self, model: str, tokens: int = 0) -> None:
        """After a reply or a model change, request the context window again if it may have changed.

        Args:
            model: The conversation's model.
            tokens: The reply's prompt and output tokens, or 0 if there is no reply.
        """
        for endpoint in self._endpoints_for(model) if self._asks and not self._closed else ():
            await self._await_within(
                partial(endpoint.refresh_window, model, tokens), DEFAULT_SECONDS
            )

    def fingerprint(self, model: str) -> Hashable | None:
        """Return a key that identifies the endpoint that counts for a model.

        Returns None if no endpoint can count. The key changes when the endpoint is probed again.
        """
        for endpoint in self._endpoints_for(model) if self._use else ():
            result = endpoint.result_for(model)
            if result is not None and result.text.status == "supported":
                return endpoint.root, result.model, result.checked_at
        return None

    def unavailable_for(self, model: str) -> float | None:
        """Return how many seconds remain until an unavailable server is asked to count again.

        Returns None if all of the model's servers are available, or if one of them can count. This
        sends no request.
        """
        if not self._use or self._closed or self.fingerprint(model) is not None:
            return None
        times = [endpoint.unavailable_for(model) for endpoint in self._endpoints_for(model)]
        return min((seconds for seconds in times if seconds is not None), default=None)

    def retry_delay(self, model: str, kind: MissKind) -> float | None:
        """Return how many seconds to wait before repeating a failed count, or None to give up.

        The time increases with each consecutive failure. An interrupted count is repeated at once
        unless other counts have failed.
        """
        away = self.unavailable_for(model)
        if away is not None or kind not in (*_TEMPORARY, "interrupted"):
            return away
        pauses = [one.seconds_paused(model) for one in self._endpoints_for(model)]
        if pauses and kind != "interrupted":
            pauses.append(DELAYS["unreachable"][0])
        return max(pauses, default=None)

    async def probe_if_due(self, model: str) -> None:
        """Probe those of a model's servers that have no valid probe result."""
        for endpoint in self._endpoints_for(model) if self._use and not self._closed else ():
            await self._await_within(partial(endpoint.ensure_probed, model), DEFAULT_SECONDS)

    async def probe(
        self, endpoint: str | None = None, model: str | None = None
    ) -> list[Capability]:
        """Probe every endpoint, or only the named one. Valid results are replaced as well.

        If `model` is None, the models that were used before and the models that are declared
        without wildcards are probed. If there are none, the first model in the server's list is
        probed. While endpoints are disabled, nothing is sent, and every status is `unknown`.
        """
        chosen = [each for each in self._endpoints if endpoint is None or each.is_named(endpoint)]
        if self._asks and not self._closed:
            await asyncio.gather(*(_probe_one(each, model) for each in chosen))
        return [row for each in chosen for row in each.capabilities()]

    def models(self) -> list[str]:
        """Return the models that were used, are declared without wildcards, or are listed by a
        server.
        """
        names = [name for endpoint in self._endpoints for name in endpoint.named_models()]
        listed = [name for endpoint in self._endpoints for name in endpoint.matching_models]
        return list(dict.fromkeys([*names, *listed]))

    def capabilities(self) -> list[Capability]:
        """Return the known capabilities of all endpoints, without a request."""
        return [row for endpoint in self._endpoints for row in endpoint.capabilities()]

    async def aclose(self) -> None:
        """Close all connections. Later counts return a `Miss`."""
        self._closed = True
        await self._asking.aclose()
        await asyncio.gather(*(endpoint.aclose() for endpoint in self._endpoints))

    def _endpoints_for(self, model: str) -> list[DeclaredEndpoint]:
        return [endpoint for endpoint in self._endpoints if matches(model, endpoint.models)]

    async def _count_at_first(
        self,
        model: str,
        what: Aspect,
        size: int,
        count: Callable[[DeclaredEndpoint], Awaitable[EndpointCount]],
        seconds: float,
        wanted: IsWanted = always,
    ) -> EndpointCount | Miss:
        """Return the count from the first endpoint that can count.

        If none can, the result contains the reason why the last endpoint could not.
        """
        if not self._use:
            return Miss(ENDPOINTS_OFF, "off")
        if self._closed:
            return Miss("the endpoints were closed", "closed")
        declared = self._endpoints_for(model)
        if not declared:
            return Miss(undeclared_reason(model), "undeclared")
        answer = await self._await_within(partial(self._try_all, declared, count), seconds, wanted)
        for endpoint in declared:
            if isinstance(answer, EndpointCount):
                endpoint.record_count(model, what, size)
            elif answer.kind in _TEMPORARY and answer is not _UNSENT:
                endpoint.record_miss(model, what, size)
        return answer

    async def _try_all(
        self,
        declared: Sequence[DeclaredEndpoint],
        count: Callable[[DeclaredEndpoint], Awaitable[EndpointCount]],
    ) -> EndpointCount | Miss:
        miss = Miss("no endpoint answered", "unknown")
        for endpoint in declared:
            try:
                return await count(endpoint)
            except RequestAbandonedError:
                return _UNSENT
            except EndpointError as error:
                miss = Miss(explain(error.status, error.reason, error.step), error.status)
            except Exception as error:  # callers expect a `Miss`, never an exception
                log_defect(error, f"counting at {endpoint.root}")
                miss = Miss(f"counting failed ({type(error).__name__})", "unknown")
        return miss

    async def _await_within(
        self, work: Callable[[], Awaitable[T]], seconds: float, wanted: IsWanted = always
    ) -> T | Miss:
        """Start work and wait at most `seconds` for it.

        After this time, a request that was already sent may still complete, but no new one is sent.
        """
        is_waiting, caller = True, asyncio.current_task()

        async def ask() -> T | Miss:
            try:
                return await work()
            except EndpointError as error:
                return Miss(error.reason, error.status)

        with abandon_unless(lambda: is_waiting and wanted()):
            try:
                answer: T | Miss = await self._asking.run(object(), ask, seconds)
            except TimeoutError:
                return Miss(f"no answer within {seconds:g} s", "late")
            except asyncio.CancelledError:
                if not self._closed or (caller is not None and caller.cancelling()):
                    raise
                return Miss("the endpoints were closed", "closed")
            finally:
                is_waiting = False
        return answer


async def _probe_one(endpoint: DeclaredEndpoint, model: str | None) -> None:
    if model is None:
        names = await endpoint.models_to_probe()
    else:
        names = [model] if matches(model, endpoint.models) else []
    for name in names:
        await endpoint.probe_again(name)
