"""The endpoints that the user declared: counts, limits and what each can do, asked once a session.

One `Endpoints` a server process. Nothing here raises, nothing is sent while `use_endpoint` is off,
and text goes only to endpoints whose globs name the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sidecar.defects import log_defect
from sidecar.endpoints.endpoint import DeclaredEndpoint, backoff
from sidecar.endpoints.outcome import (
    LARGEST_CHARACTERS,
    OFF,
    Capability,
    EndpointCount,
    Fault,
    Miss,
    MissKind,
    Unwanted,
    sentence,
    undeclared,
)
from sidecar.endpoints.turns import Wanted, always, while_wanted
from sidecar.models.names import matches

if TYPE_CHECKING:
    from sidecar.config.settings import Endpoint as EndpointSettings
    from sidecar.endpoints.chats import ChatMessage, Tools

DEFAULT_SECONDS = 2.0

_PASSING: tuple[MissKind, ...] = ("late", "unreachable", "loading")

T = TypeVar("T")


class Endpoints:
    """What the user's endpoints say. Use it from one event loop."""

    def __init__(
        self,
        endpoints: Sequence[EndpointSettings],
        use_endpoint: bool,
        environment: Mapping[str, str] | None = None,
        *,
        window: bool = False,
    ) -> None:
        """`window`: whether windows may be asked for though `use_endpoint` is off."""
        variables = os.environ if environment is None else environment
        self._use, self._asks = use_endpoint, use_endpoint or window
        self._closed = False
        self._endpoints = [
            DeclaredEndpoint(settings, variables, counts=use_endpoint) for settings in endpoints
        ]
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def requests(self) -> int:
        """How many HTTP requests were sent so far."""
        return sum(endpoint.requests for endpoint in self._endpoints)

    def serves(self, model: str) -> bool:
        """Whether an endpoint that may be used names this model. Sends nothing."""
        return self._use and any(self._declared(model))

    def reports_window(self, model: str) -> bool:
        """Whether an endpoint that may be asked for its window names this model. Sends nothing."""
        return self._asks and any(self._declared(model))

    async def count_text(
        self,
        model: str,
        text: str,
        seconds: float = DEFAULT_SECONDS,
        wanted: Wanted = always,
    ) -> EndpointCount | Miss:
        """Tokens in `text` by the server that has `model` loaded, within `seconds`.

        Exactly one request where the model's capabilities are known. A text of more than
        `LARGEST_CHARACTERS` is not sent. A request that is late is left to end by itself, so that
        the server's fault is found out and remembered; where it was not sent yet it never is.

        `wanted`: whether it is still to be sent, once it is its turn.
        """
        if len(text) > LARGEST_CHARACTERS:
            return Miss(f"the text is longer than {LARGEST_CHARACTERS} characters", "too-large")
        return await self._first(model, lambda e: e.count_text(model, text), seconds, wanted)

    async def count_chat(
        self,
        model: str,
        messages: Sequence[ChatMessage],
        tools: Tools | None = None,
        seconds: float = DEFAULT_SECONDS,
    ) -> EndpointCount | Miss:
        """Tokens of a whole request: messages and tools by the model's own template."""
        return await self._first(
            model, lambda e: e.count_chat(model, messages, tools or ()), seconds
        )

    async def limit(self, model: str, seconds: float = DEFAULT_SECONDS) -> int | None:
        """The window that a server has allocated to `model`, in tokens; None where none says."""
        for endpoint in self._declared(model) if self._asks and not self._closed else ():
            binding = await self._within(endpoint.binding(model), seconds)
            if not isinstance(binding, Miss) and binding.limit:
                return binding.limit
        return None

    def known_limit(self, model: str) -> int | None:
        """The same from what is known already: sends nothing and does not wait."""
        known = (endpoint.known_limit(model) for endpoint in self._declared(model))
        return next((limit for limit in known if limit), None)

    def window_due(self, model: str) -> bool:
        """Whether a server may be asked for the model's window and has not said it, or not lately
        refused to. Sends nothing."""
        if not self._asks or self._closed:
            return False
        declared = self._declared(model)
        return any(one.known(model) is None and not one.known_limit(model) for one in declared)

    async def replied(self, model: str, tokens: int = 0) -> None:
        """Have windows asked for again that a reply of so many tokens, prompt and output, or the
        choice of another model, may have changed."""
        for endpoint in self._declared(model) if self._asks and not self._closed else ():
            with contextlib.suppress(Fault):
                await self._within(endpoint.replied(model, tokens), DEFAULT_SECONDS)

    def standing(self, model: str) -> Hashable | None:
        """What the endpoint that counts this model's texts is known by; None where none is known
        to count. Another value after it was probed again."""
        for endpoint in self._declared(model) if self._use else ():
            binding = endpoint.known(model)
            if binding is not None and binding.text.status == "supported":
                return endpoint.root, binding.model, binding.checked_at
        return None

    def away_for(self, model: str) -> float | None:
        """After how many seconds a server that is away is worth asking again; None where none of
        the model's is, or another one counts. Sends nothing."""
        if not self._use or self._closed or self.standing(model) is not None:
            return None
        times = [endpoint.away_for(model) for endpoint in self._declared(model)]
        return min((seconds for seconds in times if seconds is not None), default=None)

    def again_in(self, model: str, kind: MissKind, tries: int) -> float | None:
        """After how many seconds what was missed is worth asking again, missed that often
        in a row; None where another answer is not to be expected. Sends nothing."""
        away = self.away_for(model)
        if away is not None or kind not in _PASSING:
            return away
        return backoff(tries)

    async def wake(self, model: str) -> None:
        """Ask what a model's servers can do, those that are due."""
        for endpoint in self._declared(model) if self._use and not self._closed else ():
            await self._within(endpoint.binding(model), DEFAULT_SECONDS)

    async def probe(
        self, endpoint: str | None = None, model: str | None = None
    ) -> list[Capability]:
        """Ask again, whatever is known: every declared endpoint, or the one named, for `model`.

        Without a model, for those asked about before, those that the globs name, else the first
        that the server lists. Sends nothing while endpoints are off; then all is `unknown`.
        """
        chosen = [each for each in self._endpoints if endpoint is None or each.is_named(endpoint)]
        if self._asks and not self._closed:
            await asyncio.gather(*(_probe_one(each, model) for each in chosen))
        return [row for each in chosen for row in each.capabilities()]

    def models(self) -> list[str]:
        """The models that were asked about, those that the settings name in full, and those that
        the servers listed when they were last asked."""
        names = [name for endpoint in self._endpoints for name in endpoint.named()]
        listed = [name for endpoint in self._endpoints for name in endpoint.listed]
        return list(dict.fromkeys([*names, *listed]))

    def capabilities(self) -> list[Capability]:
        """What is known, without asking."""
        return [row for endpoint in self._endpoints for row in endpoint.capabilities()]

    async def aclose(self) -> None:
        """Close all connections; counts from now on are misses."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(endpoint.aclose() for endpoint in self._endpoints))

    def _declared(self, model: str) -> list[DeclaredEndpoint]:
        return [endpoint for endpoint in self._endpoints if matches(model, endpoint.models)]

    async def _first(
        self,
        model: str,
        count: Callable[[DeclaredEndpoint], Awaitable[EndpointCount]],
        seconds: float,
        wanted: Wanted = always,
    ) -> EndpointCount | Miss:
        """The first declared endpoint that counts; else why the last one did not."""
        if not self._use:
            return Miss(OFF, "off")
        if self._closed:
            return Miss("the endpoints were closed", "closed")
        declared = self._declared(model)
        if not declared:
            return Miss(undeclared(model), "undeclared")
        return await self._within(self._try_all(declared, count), seconds, wanted)

    async def _try_all(
        self,
        declared: Sequence[DeclaredEndpoint],
        count: Callable[[DeclaredEndpoint], Awaitable[EndpointCount]],
    ) -> EndpointCount | Miss:
        miss = Miss("no endpoint answered", "unknown")
        for endpoint in declared:
            try:
                return await count(endpoint)
            except Unwanted as unsent:
                return Miss(unsent.reason, "late")
            except Fault as fault:
                miss = Miss(sentence(fault.kind, fault.reason, fault.step), fault.kind)
            except Exception as error:  # a count never raises: what is unforeseen is a miss too
                log_defect(error, f"counting at {endpoint.root}")
                miss = Miss(f"counting failed ({type(error).__name__})", "unknown")
        return miss

    async def _within(
        self, work: Awaitable[T], seconds: float, wanted: Wanted = always
    ) -> T | Miss:
        """Wait for at most `seconds`. A request of late work that was sent goes on without a
        listener; nothing more of it is sent."""
        is_waiting = True
        with while_wanted(lambda: is_waiting and wanted()):
            task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        finally:
            is_waiting = False
        if not done:
            return Miss(f"no answer within {seconds:g} s", "late")
        if task.cancelled():
            return Miss("the endpoints were closed", "closed")
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # there may be nobody else to ask for it


async def _probe_one(endpoint: DeclaredEndpoint, model: str | None) -> None:
    if model is None:
        names = await endpoint.models_to_ask()
    else:
        names = [model] if matches(model, endpoint.models) else []
    for name in names:
        await endpoint.probe_again(name)
