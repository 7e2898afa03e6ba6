"""One endpoint of the user's: its connection, and what is known of each model there."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from cachetools import TLRUCache

from sidecar.endpoints import address, plausible
from sidecar.endpoints.clouds.base import bearer
from sidecar.endpoints.clouds.table import find_cloud
from sidecar.endpoints.http import Connection, hurry
from sidecar.endpoints.names import matches
from sidecar.endpoints.outcome import Capability, EndpointCount, Fault, Status, TooSlow
from sidecar.endpoints.probe import Ability, Binding, list_models, probe, probe_cloud
from sidecar.endpoints.servers import lmstudio
from sidecar.endpoints.servers.base import ReadTokens, Request, Server, refuse_unless_ok

if TYPE_CHECKING:
    from sidecar.config.settings import Endpoint as EndpointSettings
    from sidecar.endpoints.chats import Message, Tools

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
MODELS_KEPT = 256
FIRST_BACKOFF, LONGEST_BACKOFF = 5.0, 300.0
LIFETIMES: Mapping[Status, float] = {"auth": 300.0, "loading": 2.0, "unknown": 15.0}
"""How long an outcome stands, in seconds; what is not here stands for the session."""

BIG_BYTES = 128 * 1024
"""A request larger than this that runs out of time tells nothing of the server."""
_INLINE_CHARACTERS = 16_384
_SPECIAL = re.compile(
    r"<\|[^|\s]{1,40}\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]"
)
What: TypeAlias = Literal["text", "chat"]
Asking: TypeAlias = Callable[[Server, Binding], tuple[Request, ReadTokens]]


class _ServerChangedError(Exception):
    """The server was started again with other models: what was known of it is void."""


class DeclaredEndpoint:
    """Counts of one endpoint. Methods that count raise Fault, and nothing else."""

    def __init__(self, settings: EndpointSettings, environment: Mapping[str, str]) -> None:
        self.models = settings.models
        self._url = settings.url
        self._cloud = find_cloud(address.host_of(settings.url))
        root = address.root_of(settings.url, self._cloud.suffixes if self._cloud else ("/v1",))
        self.root = address.shown(root)
        self._no_key: Fault | None = None
        headers: Mapping[str, str] = {}
        try:
            key = address.key_from(settings.api_key_env, environment)
            headers = self._cloud.headers(key) if self._cloud else bearer(key)
        except Fault as fault:
            self._no_key = fault
        # Proxies of the environment are for the world outside, never for a server at hand.
        self._connection = Connection(root, headers, trust_environment=self._cloud is not None)
        self._sdk = lmstudio.SdkCounter(root)
        self._bindings: TLRUCache[str, Binding] = TLRUCache(MODELS_KEPT, _expires, time.monotonic)
        self._asked: dict[str, Binding] = {}
        self._probes: dict[str, asyncio.Task[Binding]] = {}
        self._message_costs: dict[str, int] = {}
        self._failures = 0

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
        plain = [glob for glob in self.models if not re.search(r"[*?\[]", glob)]
        if self._asked or plain or self._cloud or self._no_key:
            return list(dict.fromkeys([*self._asked, *plain])) or [self.models[0]]
        try:
            listed = list_models(await self._connection.get("/v1/models"))
        except Fault:
            return [self.models[0]]
        fitting = [entry.id for entry in listed if matches(entry.id, self.models)]
        return fitting[:1] or [self.models[0]]

    def known(self, model: str) -> Binding | None:
        """What is known and still stands."""
        return self._bindings.get(model)

    def capabilities(self) -> list[Capability]:
        """One row for each model asked about; the globs where none was."""
        rows = [self._row(model, binding) for model, binding in self._asked.items()]
        return rows or [self._row(glob, None) for glob in self.models]

    async def binding(self, model: str) -> Binding:
        """What this endpoint can do for the model; those who ask together share one probe."""
        known = self._bindings.get(model)
        if known is not None:
            return known
        task = self._probes.get(model)
        if task is None:
            task = self._probes[model] = asyncio.create_task(self._probe(model))
            task.add_done_callback(lambda _: self._probes.pop(model, None))
        return await asyncio.shield(task)

    async def probe_again(self, model: str) -> Binding:
        """Forget what is known of the model, and ask."""
        self._bindings.pop(model, None)
        return await self.binding(model)

    async def count_text(self, model: str, text: str) -> EndpointCount:
        """Tokens in `text`: one request where the binding is known, none for an empty text."""
        if not text:
            return EndpointCount(tokens=0, server="", endpoint=self.root, model=model)
        binding = await self._bound(model, "text")
        server = _server(binding)
        if server.parses_specials and await _has_specials(text):
            # These kinds of server cannot be told to take them for plain characters.
            raise Fault("unsupported", f"{server.name} would count special tokens in the text")
        tokens = await self._text_tokens(model, server, text)
        if not plausible.possible(text, tokens):
            size = len(text)
            fault = Fault("lying", f"{server.name} counts {tokens} tokens in {size} characters")
            self._remember(model, Binding.failed(model, fault, server))
            raise fault
        return EndpointCount(tokens=tokens, server=server.name, endpoint=self.root, model=model)

    async def count_chat(
        self, model: str, messages: Sequence[Message], tools: Tools
    ) -> EndpointCount:
        """Tokens of a whole request: messages and tools by the model's own template."""
        tokens = await self._counted(model, "chat", _chat_asking(messages, tools))
        binding = self._asked[model]
        name = _server(binding).name
        return EndpointCount(tokens=tokens, server=name, endpoint=self.root, model=model)

    async def aclose(self) -> None:
        """Close the connection; counts from now on fault."""
        probes = list(self._probes.values())
        for task in probes:
            task.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await self._sdk.aclose()
        await self._connection.aclose()

    async def _probe(self, model: str) -> Binding:
        if self._no_key:
            return self._remember(model, Binding.failed(model, self._no_key))
        try:
            await self._connection.open()
            hurry(PROBE_SECONDS)
            binding = await self._probed(model)
        except Fault as fault:
            binding = Binding.failed(model, fault)
        except Exception as error:
            log.exception("probing %s failed", self.root)
            reason = f"probing failed ({type(error).__name__})"
            binding = Binding.failed(model, Fault("unknown", reason))
        return self._remember(model, binding)

    async def _probed(self, model: str) -> Binding:
        if self._cloud:
            return await probe_cloud(self._connection, self._cloud, model)
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
            return Ability(fault.kind, fault.reason)
        return Ability("supported")

    def _remember(self, model: str, binding: Binding) -> Binding:
        """Keep an outcome for as long as one of its kind stands."""
        kinds = {binding.text.status, binding.chat.status}
        self._failures = self._failures + 1 if "unreachable" in kinds else 0
        lifetimes = [LIFETIMES[kind] for kind in kinds if kind in LIFETIMES]
        if self._failures:
            doubled = FIRST_BACKOFF * 2.0 ** min(self._failures - 1, 10)
            lifetimes.append(min(LONGEST_BACKOFF, doubled))
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

    async def _bound(self, model: str, what: What) -> Binding:
        binding = await self.binding(model)
        ability = binding.text if what == "text" else binding.chat
        if ability.status != "supported":
            raise Fault(ability.status, ability.reason)
        return binding

    async def _text_tokens(self, model: str, server: Server, text: str) -> int:
        if server is lmstudio.SERVER:
            return await self._sdk_tokens(model, server, text)
        if not server.text_by_chat:
            return await self._counted(model, "text", _text_asking(text))
        if model not in self._message_costs:
            # A full stop is one token in every vocabulary: the rest is what a message costs.
            around = await self._counted(model, "chat", _chat_asking(_message("."), ()))
            self._message_costs[model] = around - 1
        whole = await self._counted(model, "chat", _chat_asking(_message(text), ()))
        return max(1, whole - self._message_costs[model])

    async def _sdk_tokens(self, model: str, server: Server, text: str) -> int:
        try:
            return await self._sdk.count(model, text)
        except Fault as fault:
            self._remember(model, Binding.failed(model, fault, server))
            raise

    async def _counted(self, model: str, what: What, asking: Asking) -> int:
        """Count; once more where the server turned out to be another one by now."""
        for _ in range(2):
            binding = await self._bound(model, what)
            request, read = asking(_server(binding), binding)
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
            if not _is_of_this_request(fault):
                self._remember(model, _after(binding, model, fault))
            raise
        self._failures = 0
        return tokens

    async def _check_still_same(self, binding: Binding) -> None:
        """A server that was started again may have other models: one GET tells."""
        if binding.listed and list(binding.listed) != list_models(
            await self._connection.get("/v1/models")
        ):
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
        )


async def _has_specials(text: str) -> bool:
    if len(text) > _INLINE_CHARACTERS:
        return bool(await asyncio.to_thread(_SPECIAL.search, text))
    return bool(_SPECIAL.search(text))


def _expires(_: str, binding: Binding, now: float) -> float:
    return now + binding.lifetime


def _server(binding: Binding) -> Server:
    if binding.server is None:
        raise Fault("unsupported", "the server is of no known kind")
    return binding.server


def _after(binding: Binding, model: str, fault: Fault) -> Binding:
    """What is known once a count has failed: the window stays, where the server is only away."""
    failed = Binding.failed(model, fault, binding.server)
    away = fault.kind in ("unreachable", "loading")
    return replace(failed, limit=binding.limit) if away else failed


def _is_of_this_request(fault: Fault) -> bool:
    """Whether the next request may fare better: what was sent was wrong or big, not the server."""
    if isinstance(fault, TooSlow):
        return fault.sent > BIG_BYTES
    return fault.kind == "unsupported" and "HTTP 4" in fault.reason


def _text_asking(text: str) -> Asking:
    def asking(server: Server, binding: Binding) -> tuple[Request, ReadTokens]:
        if server.text is None or server.read_text is None:
            raise Fault("unsupported", f"{server.name} counts no texts")
        return server.text(binding.model, text), server.read_text

    return asking


def _chat_asking(messages: Sequence[Message], tools: Tools) -> Asking:
    def asking(server: Server, binding: Binding) -> tuple[Request, ReadTokens]:
        if server.chat is None or server.read_chat is None:
            raise Fault("unsupported", f"{server.name} counts no chats")
        try:
            return server.chat(binding.model, messages, tools), server.read_chat
        except (TypeError, AttributeError, ValueError) as error:
            reason = f"messages or tools have no known form ({type(error).__name__})"
            raise Fault("unsupported", reason) from None

    return asking


def _message(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
