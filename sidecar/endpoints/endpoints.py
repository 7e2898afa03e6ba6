"""Gets counts, context windows and capabilities from the endpoints in the user's settings.

No method raises. Nothing is sent while `use_endpoint` is off. Text is sent only to endpoints that
declare the model.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sidecar.config.settings import Endpoint as EndpointSettings
from sidecar.endpoints.chats import ChatMessage, Tools
from sidecar.endpoints.endpoint import DELAYS, DeclaredEndpoint
from sidecar.endpoints.http import IsWanted, abandon_unless, always
from sidecar.endpoints.outcome import (
    ENDPOINTS_OFF,
    LARGEST_CHARACTERS,
    TOO_LONG,
    Capability,
    EndpointCount,
    EndpointError,
    Miss,
    MissKind,
    RequestAbandonedError,
    explain,
    undeclared_reason,
)
from sidecar.endpoints.servers import Aspect
from sidecar.errors import log_defect
from sidecar.models.names import matches
from sidecar.tasks import SharedTasks

DEFAULT_SECONDS = 2.0

_TEMPORARY: tuple[MissKind, ...] = ("late", "unreachable", "loading")
_UNSENT = Miss(RequestAbandonedError().reason, "late")

T = TypeVar("T")


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
        if not self._asks or self._closed:
            return False
        declared = self._endpoints_for(model)
        return any(one.result_for(model) is None and not one.known_limit(model) for one in declared)

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
