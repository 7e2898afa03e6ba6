"""One endpoint of the user's: its connection, and what is known of each model there."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from cachetools import LRUCache, TLRUCache

from sidecar.defects import log_defect
from sidecar.endpoints import address, plausible
from sidecar.endpoints.asking import (
    Asking,
    chat_asking,
    has_specials,
    one_message,
    server_of,
    text_asking,
)
from sidecar.endpoints.clouds.base import bearer
from sidecar.endpoints.clouds.table import find_cloud
from sidecar.endpoints.http import Connection, limit_time
from sidecar.endpoints.outcome import (
    OFF,
    WINDOWS_ALONE,
    AbilityStatus,
    Capability,
    EndpointCount,
    Fault,
    sentence,
)
from sidecar.endpoints.probe import (
    Ability,
    Binding,
    digest,
    list_models,
    probe,
    probe_cloud,
    probe_window,
)
from sidecar.endpoints.servers import lmstudio
from sidecar.endpoints.servers.base import ReadTokens, Request, Server, refuse_unless_ok
from sidecar.endpoints.turns import always_wanted
from sidecar.models.names import matches
from sidecar.waiting import SharedTasks

if TYPE_CHECKING:
    from sidecar.config.settings import Endpoint as EndpointSettings
    from sidecar.endpoints.chats import ChatMessage, Tools

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
MODELS_KEPT = 256
FIRST_BACKOFF, LONGEST_BACKOFF = 5.0, 300.0
FIRST_RETRY, LONGEST_RETRY = 60.0, 3_600.0
"""After how many seconds a server that cannot count is asked again; each time twice as many."""
LIFETIMES: Mapping[AbilityStatus, float] = {"auth": 300.0, "loading": 2.0, "unknown": 15.0}
"""How long an outcome stands, in seconds; what is not here stands for the session."""

ALIKE_CHARACTERS = 64
"""Texts that differ by less may well have the same number of tokens."""
Aspect: TypeAlias = Literal["text", "chat"]


class _ServerChangedError(Exception):
    """The server was started again with other models: what was known of it is void."""


class DeclaredEndpoint:
    """Counts of one endpoint. Methods that count raise Fault, and nothing else."""

    def __init__(
        self, settings: EndpointSettings, environment: Mapping[str, str], *, counts: bool = True
    ) -> None:
        """`counts`: whether it may be asked for more than the models' windows."""
        self.models, self._counts = settings.models, counts
        self._url = settings.url
        self._cloud = find_cloud(address.host_of(settings.url))
        root = address.root_of(settings.url, self._cloud.suffixes if self._cloud else address.BASES)
        self.root = address.without_secrets(root)
        self._no_key: Fault | None = None
        headers: Mapping[str, str] = {}
        try:
            key = address.key_from(settings.api_key_env, environment)
            headers = self._cloud.headers(key) if self._cloud else bearer(key)
        except Fault as fault:
            self._no_key = fault
        # Proxies of the environment are for the world outside, never for a server at hand.
        proxied = self._cloud is not None
        self._connection = Connection(root, headers, proxied, key_from=settings.api_key_env)
        self._sdk = lmstudio.SdkCounter(root)
        self._bindings: TLRUCache[str, Binding] = TLRUCache(MODELS_KEPT, _expires, time.monotonic)
        self._asked: dict[str, Binding] = {}
        self._probes = SharedTasks[str, Binding]("probing", outlives_waiters=True)
        self._message_costs: LRUCache[str, int] = LRUCache(MODELS_KEPT)
        self._offered: tuple[str, ...] = ()
        self._failures = 0
        self._refusals: LRUCache[str, int] = LRUCache(MODELS_KEPT)
        self._last: LRUCache[tuple[str, Aspect], tuple[int, int]] = LRUCache(MODELS_KEPT)
        """Size and count of what was counted last."""

    @property
    def requests(self) -> int:
        """How many HTTP requests were sent so far."""
        return self._connection.requests

    def is_named(self, url: str) -> bool:
        """Whether this is the endpoint with that address, as declared or as shown."""
        return url.rstrip("/") in (self._url.rstrip("/"), self.root)

    async def models_to_ask(self) -> list[str]:
        """The models to probe where none is named: those asked before and globs that name one,
        else the first that the server lists and a glob fits."""
        named = self.named()
        if named or self._cloud or self._no_key:
            return named or [self.models[0]]
        try:
            listed = list_models(await self._connection.get("/v1/models"))
        except Fault:
            return [self.models[0]]
        fitting = [entry.id for entry in listed if matches(entry.id, self.models)]
        return fitting[:1] or [self.models[0]]

    def named(self) -> list[str]:
        """The models that were asked about, and the globs that name one."""
        plain = [glob for glob in self.models if not re.search(r"[*?\[]", glob)]
        return list(dict.fromkeys([*self._asked, *plain]))

    @property
    def listed(self) -> list[str]:
        """The models that the server had when it was last asked, and that a glob names."""
        return [name for name in self._offered if matches(name, self.models)]

    def known(self, model: str) -> Binding | None:
        """What is known and still stands."""
        return self._bindings.get(model)

    def away_for(self, model: str) -> float | None:
        """For how many seconds a server that is away or loading is not asked; None for others."""
        known = self.known(model)
        return known.lifetime if known and known.text.status in ("unreachable", "loading") else None

    def known_limit(self, model: str) -> int | None:
        """The window as it was last reported, in tokens, however long ago that was."""
        last = self._asked.get(model)
        return last.limit if last else None

    async def replied(self, model: str, tokens: int) -> None:
        """Ask for the window again where a reply, or another model, may have changed it.

        Args:
            model: that is talked to.
            tokens: that a reply's prompt and output took, 0 where none came.
        """
        last = self._asked.get(model)
        if last is None or last.server is None:
            return
        if last.server.loads_itself:
            limit = await last.server.limit(self._connection, last.model, None)
            if limit and limit != last.limit:
                self._remember(model, replace(last, limit=limit))
        elif last.limit and tokens > last.limit:
            await self.probe_again(model)

    def capabilities(self) -> list[Capability]:
        """One row for each model asked about; the globs where none was."""
        rows = [self._row(model, binding) for model, binding in self._asked.items()]
        return rows or [self._row(glob, None) for glob in self.models]

    async def binding(self, model: str) -> Binding:
        """What this endpoint can do for the model; those who ask together share one probe."""
        known = self._bindings.get(model)
        if known is not None:
            return known
        return await self._probes.run(model, partial(self._probe, model))

    async def probe_again(self, model: str) -> Binding:
        """Forget what is known of the model, and ask."""
        self._bindings.pop(model, None)
        return await self.binding(model)

    async def count_text(self, model: str, text: str) -> EndpointCount:
        """Tokens in `text`: one request where the binding is known, none for an empty text."""
        if not text:
            return EndpointCount(tokens=0, server="", endpoint=self.root, model=model)
        binding = await self._bound(model, "text")
        server = server_of(binding)
        if server.parses_specials and await has_specials(text):
            # These kinds of server cannot be made to take them for plain characters.
            raise Fault("unsupported", f"{server.name} would count special tokens in the text")
        tokens = await self._text_tokens(model, server, text)
        if not plausible.possible(text, tokens):
            size = len(text)
            fault = Fault("lying", f"{server.name} counts {tokens} tokens in {size} characters")
            self._remember(model, Binding.failed(model, fault, server))
            raise fault
        await self._check_varies(model, "text", len(text), tokens)
        return EndpointCount(tokens=tokens, server=server.name, endpoint=self.root, model=model)

    async def count_chat(
        self, model: str, messages: Sequence[ChatMessage], tools: Tools
    ) -> EndpointCount:
        """Tokens of a whole request: messages and tools by the model's own template."""
        tokens = await self._counted(model, "chat", chat_asking(messages, tools))
        size = sum(len(str(message.get("content"))) for message in messages)
        await self._check_varies(model, "chat", size, tokens)
        binding = self._asked[model]
        name = server_of(binding).name
        return EndpointCount(tokens=tokens, server=name, endpoint=self.root, model=model)

    async def _check_varies(self, model: str, what: Aspect, size: int, tokens: int) -> None:
        """The same number for something of another size: is it probed as at the first use. Raises
        Fault where that finds it out."""
        before, counted = self._last.get((model, what), (size, -1))
        self._last[model, what] = size, tokens
        if tokens == counted and max(size, before) >= 2 * min(size, before) + ALIKE_CHARACTERS:
            self._bindings.pop(model, None)
            await self._bound(model, what)

    async def aclose(self) -> None:
        """Close the connection; counts from now on fault."""
        probes = self._probes.tasks()
        for task in probes:
            task.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await self._sdk.aclose()
        await self._connection.aclose()

    async def _probe(self, model: str) -> Binding:
        if self._no_key:
            return self._remember(model, Binding.failed(model, self._no_key))
        always_wanted()
        try:
            await self._connection.open()
            limit_time(PROBE_SECONDS)
            binding = await self._probed(model)
        except Fault as fault:
            binding = Binding.failed(model, fault)
        except Exception as error:
            log_defect(error, f"probing {self.root}")
            reason = f"probing failed ({type(error).__name__})"
            binding = Binding.failed(model, Fault("unknown", reason))
        return self._remember(model, binding)

    async def _probed(self, model: str) -> Binding:
        if self._cloud:
            return await probe_cloud(self._connection, self._cloud, model)
        if not self._counts:
            return await probe_window(self._connection, model)
        binding = await probe(self._connection, model)
        if binding.server is lmstudio.SERVER:
            return replace(binding, text=await self._sdk_ability(binding.model))
        return binding

    async def _sdk_ability(self, model: str) -> Ability:
        if not lmstudio.sdk_is_installed():
            return Ability("unsupported", "install token-sidecar[lmstudio] to count by LM Studio")
        try:
            counts = [await self._sdk.count(model, text) for text in plausible.TEXTS]
            plausible.check_texts(counts, lmstudio.SERVER.name)
        except Fault as fault:
            return Ability.failed(fault)
        return Ability("supported")

    def _remember(self, model: str, binding: Binding) -> Binding:
        """Keep an outcome for as long as one of its kind stands."""
        self._offered = binding.offered or self._offered
        kinds = {binding.text.status, binding.chat.status}
        self._failures = self._failures + 1 if "unreachable" in kinds else 0
        lifetimes = [LIFETIMES[kind] for kind in kinds if kind in LIFETIMES]
        if "unsupported" in kinds:
            refused = self._refusals[model] = self._refusals.get(model, 0) + 1
            waits = FIRST_RETRY * 2.0 ** min(refused - 1, 10)
            lifetimes.append(LONGEST_RETRY if "supported" in kinds else min(LONGEST_RETRY, waits))
        if self._failures:
            lifetimes.append(backoff(self._failures))
        kept = replace(binding, lifetime=min(lifetimes, default=float("inf")))
        self._bindings[model] = kept
        self._asked.pop(model, None)
        self._asked[model] = kept
        if len(self._asked) > MODELS_KEPT:
            self._asked.pop(next(iter(self._asked)))
        log.debug(
            "%s for %s: %s, text %s, chat %s, limit %s",
            self.root,
            model,
            kept.server.name if kept.server else "unknown server",
            kept.text.status,
            kept.chat.status,
            kept.limit,
        )
        return kept

    async def _bound(self, model: str, what: Aspect) -> Binding:
        binding = await self.binding(model)
        ability = binding.text if what == "text" else binding.chat
        if ability.status != "supported":
            raise Fault(ability.status, ability.reason, ability.step)
        return binding

    async def _text_tokens(self, model: str, server: Server, text: str) -> int:
        if server is lmstudio.SERVER:
            return await self._sdk_tokens(model, server, text)
        if not server.text_by_chat:
            return await self._counted(model, "text", text_asking(text))
        if model not in self._message_costs:
            # A full stop is one token in every vocabulary: the rest is what a message costs.
            around = await self._counted(model, "chat", chat_asking(one_message("."), ()))
            self._message_costs[model] = around - 1
        whole = await self._counted(model, "chat", chat_asking(one_message(text), ()))
        return max(1, whole - self._message_costs[model])

    async def _sdk_tokens(self, model: str, server: Server, text: str) -> int:
        try:
            return await self._sdk.count(model, text)
        except Fault as fault:
            self._remember(model, Binding.failed(model, fault, server))
            raise

    async def _counted(self, model: str, what: Aspect, asking: Asking) -> int:
        """Count; once more where the server turned out to be another one by now."""
        for _ in range(2):
            binding = await self._bound(model, what)
            request, read = asking(server_of(binding), binding)
            try:
                return await self._ask(model, binding, request, read)
            except _ServerChangedError:
                self._bindings.clear()
        raise Fault("unknown", f"{self.root} keeps changing its models")

    async def _ask(self, model: str, binding: Binding, request: Request, read: ReadTokens) -> int:
        try:
            answer = await self._connection.post(request.path, request.body)
            if answer.reconnected and not self._cloud:
                await self._check_still_same(binding)
            refuse_unless_ok(answer, self.root)
            tokens = read(answer.body) - (binding.around if "messages" not in request.body else 0)
        except Fault as fault:
            if not fault.is_of_this_request:
                self._remember(model, _after(binding, model, fault))
            raise
        self._failures = 0
        return tokens

    async def _check_still_same(self, binding: Binding) -> None:
        """A server that was started again may have other models: one GET shows it."""
        if not binding.listed:
            return
        try:
            listed = list_models(await self._connection.get("/v1/models"))
        except BaseException:  # given up too: what it has now is found out at the next count
            self._bindings.clear()
            raise
        if digest(listed) != binding.listed:
            raise _ServerChangedError

    def _row(self, model: str, binding: Binding | None) -> Capability:
        return Capability(
            endpoint=self.root,
            model=model,
            server=binding.server.name if binding and binding.server else None,
            text=binding.text.status if binding else "unknown",
            chat=binding.chat.status if binding else "unknown",
            limit=binding.limit if binding else None,
            checked_at=binding.checked_at if binding else None,
            reason=self._reason(binding),
        )

    def _reason(self, binding: Binding | None) -> str | None:
        if binding is None:
            return None if self._counts else OFF
        if binding.text.reason == WINDOWS_ALONE:
            return WINDOWS_ALONE
        without = [one for one in (binding.text, binding.chat) if one.status != "supported"]
        return sentence(without[0].status, without[0].reason, without[0].step) if without else None


def backoff(failures: int) -> float:
    """For how many seconds that is left alone which has failed so often in a row."""
    return min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures - 1, 10))


def _expires(_: str, binding: Binding, now: float) -> float:
    return now + binding.lifetime


def _after(binding: Binding, model: str, fault: Fault) -> Binding:
    """What is known once a count has failed: the window stays, where the server is only away."""
    failed = Binding.failed(model, fault, binding.server)
    away = fault.kind in ("unreachable", "loading")
    return replace(failed, limit=binding.limit) if away else failed
