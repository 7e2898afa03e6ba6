"""Finding out what an endpoint is and can do for one model, in at most eight requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from sidecar.endpoints import plausible
from sidecar.endpoints.address import without_secrets
from sidecar.endpoints.outcome import WINDOWS_ALONE, AbilityStatus, Fault
from sidecar.endpoints.recognise import by_asking, by_greeting, by_listing
from sidecar.endpoints.servers import vllm
from sidecar.endpoints.servers.base import (
    ChatRequest,
    Listed,
    ReadTokens,
    Request,
    Server,
    entries,
    is_name,
    refuse_unless_ok,
    says_loading,
)
from sidecar.models.names import same_model

if TYPE_CHECKING:
    from sidecar.endpoints.clouds.base import Cloud
    from sidecar.endpoints.http import Answer, Connection


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Ability:
    """Whether something can be counted; why not, where it cannot."""

    status: AbilityStatus
    reason: str = ""
    step: str = ""
    """What can be done about it, where that is more than its status tells."""

    @classmethod
    def failed(cls, fault: Fault) -> Ability:
        """What a fault has shown."""
        return cls(fault.kind, fault.reason, fault.step)


@dataclass(frozen=True)
class Binding:
    """What is known of one model at one endpoint."""

    model: str
    """The name that the server itself knows the model by."""
    server: Server | None = None
    text: Ability = Ability("unknown", "not asked yet")
    chat: Ability = Ability("unknown", "not asked yet")
    limit: int | None = None
    listed: bytes = b""
    """Identifies the server's list of models; empty where it has none."""
    offered: tuple[str, ...] = ()
    """The first of the models in that list."""
    around: int = 0
    """Tokens that the server's count adds around each text."""
    lifetime: float = math.inf
    """Seconds for which this stands."""
    checked_at: str = field(default_factory=_now)

    @classmethod
    def failed(cls, model: str, fault: Fault, server: Server | None = None) -> Binding:
        """Neither texts nor chats, for one reason."""
        ability = Ability.failed(fault)
        return cls(model=model, server=server, text=ability, chat=ability)


async def probe_cloud(connection: Connection, cloud: Cloud, model: str) -> Binding:
    """A vendor of the table: what it counts is known, one GET shows whether key and model are."""
    path = cloud.show_path(model)
    limit = None
    if path:
        try:
            answer = await connection.get(path)
            refuse_unless_ok(answer, without_secrets(connection.root))
        except Fault as fault:
            return Binding.failed(model, fault, cloud.server)
        limit = cloud.read_limit(answer.body)
    server = cloud.server
    none = Ability("unsupported", f"{server.name} has no such count")
    can_text = server.text is not None or server.text_by_chat
    return Binding(
        model=model,
        server=server,
        text=Ability("supported") if can_text else none,
        chat=Ability("supported") if server.chat else none,
        limit=limit,
    )


async def probe(connection: Connection, model: str) -> Binding:
    """Any other endpoint: list, recognise, check the model, then try two texts and two chats."""
    server: Server | None = None
    listed: list[Listed] = []
    try:
        answer = await connection.get("/v1/models")
        listed = list_models(answer)
        server = by_listing(answer, listed)
        named = find(model, listed)
        if listed and named is None:
            raise Fault("unknown", f"the server has {_names_of(listed)}, not {model}")
        first = None
        if server is None:
            # LM Studio, Ollama and LocalAI, which greet, all list their models.
            name = named.id if named else model
            recognised = await by_asking(connection, name, greets=bool(listed))
            server, first = recognised.server, recognised.first_count
        entry = find(model, await server.loaded(connection, listed))
        if listed and entry is None:
            raise Fault("unknown", f"{server.name} does not have {model} loaded")
    except Fault as fault:
        return replace(Binding.failed(model, fault, server), offered=_offered(listed))
    binding = Binding(
        model=entry.id if entry else model,
        server=server,
        listed=digest(listed),
        offered=_offered(listed),
    )
    binding = replace(binding, limit=await _limit(connection, server, binding.model, entry))
    binding = await _try_text(connection, server, binding, first)
    return await _try_chat(connection, server, binding)


async def probe_window(connection: Connection, model: str) -> Binding:
    """The window alone: nothing is counted, and no text but the model's name is sent."""
    server: Server | None = None
    try:
        answer = await connection.get("/v1/models")
        listed = list_models(answer)
        named = find(model, listed)
        server = by_listing(answer, listed) or await by_greeting(connection) or vllm.SERVER
        limit = await _limit(connection, server, named.id if named else model, named)
    except Fault as fault:
        return Binding.failed(model, fault, server)
    off = Ability("unknown", WINDOWS_ALONE)
    offered = _offered(listed)
    return Binding(model=model, server=server, text=off, chat=off, limit=limit, offered=offered)


def list_models(answer: Answer) -> list[Listed]:
    """The models of `/v1/models` that have a name; empty where the server has no such list.

    Raises Fault where the server is not to be asked further: it wants a key, loads, or is broken.
    """
    if answer.status in (404, 405, 501):
        return []
    if answer.status != 200 or says_loading(answer.body):
        refuse_unless_ok(answer, "the server")
    return [entry for entry in entries(answer, "data", Listed) if is_name(entry.id)]


OFFERED = 100
"""Models of a server's list that a picker offers."""


def _offered(listed: Sequence[Listed]) -> tuple[str, ...]:
    return tuple(entry.id for entry in listed[:OFFERED])


def digest(listed: Sequence[Listed]) -> bytes:
    """16 bytes for a whole list, which may hold long names; none for an empty one."""
    written = msgspec.json.encode(listed)
    return blake2b(written, digest_size=16).digest() if listed else b""


def find(model: str, loaded: Sequence[Listed]) -> Listed | None:
    """The loaded model that is the one asked for, by id or alias; the exact name first."""
    for entry in loaded:
        if model in entry.names:
            return entry
    return next((e for e in loaded if any(same_model(model, name) for name in e.names)), None)


def _names_of(listed: Sequence[Listed]) -> str:
    names = ", ".join(entry.id for entry in listed[:3])
    return names if len(listed) <= 3 else f"{names} and {len(listed) - 3} more"


async def _limit(
    connection: Connection, server: Server, model: str, entry: Listed | None
) -> int | None:
    try:
        return await server.limit(connection, model, entry)
    except Fault:
        return None


async def _try_text(
    connection: Connection, server: Server, binding: Binding, first: int | None
) -> Binding:
    if server.text is None or server.read_text is None:
        return _text_otherwise(server, binding)
    try:
        around = await _around(connection, server, binding.model)
        counts = [] if first is None else [first]
        for text in plausible.TEXTS[len(counts) :]:
            request = server.text(binding.model, text)
            counts.append(await ask(connection, request, server.read_text) - around)
        plausible.check_texts(counts, server.name)
    except Fault as fault:
        return replace(binding, text=Ability.failed(fault))
    return replace(binding, text=Ability("supported"), around=around)


def _text_otherwise(server: Server, binding: Binding) -> Binding:
    if server.text_by_chat:
        return binding  # decided by whether chats are counted
    reason = f"{server.name} has no request that counts a text"
    return replace(binding, text=Ability("unsupported", reason))


async def _around(connection: Connection, server: Server, model: str) -> int:
    """What the server counts in an empty text: its begin-of-text token."""
    if not server.counts_empty or server.text is None or server.read_text is None:
        return 0
    request = server.text(model, "")
    answer = await connection.post(request.path, request.body)
    refuse_unless_ok(answer, server.name)
    body = answer.body
    numbers = [n for n in body.values() if type(n) is int] if isinstance(body, Mapping) else []
    return numbers[0] if numbers and numbers[0] in (0, 1, 2) else 0


async def _try_chat(connection: Connection, server: Server, binding: Binding) -> Binding:
    if server.chat is None or server.read_chat is None:
        reason = f"{server.name} has no request that counts a chat"
        return replace(binding, chat=Ability("unsupported", reason))
    ability = await _chat_ability(connection, server, server.chat, server.read_chat, binding.model)
    if server.text_by_chat:
        return replace(binding, chat=ability, text=ability)
    return replace(binding, chat=ability)


async def _chat_ability(
    connection: Connection, server: Server, chat: ChatRequest, read: ReadTokens, model: str
) -> Ability:
    counts = []
    try:
        for text in plausible.TEXTS:
            request = chat(model, [{"role": "user", "content": text}], ())
            counts.append(await ask(connection, request, read))
        plausible.check_chats(counts, server.name)
    except Fault as fault:
        return Ability.failed(fault)
    return Ability("supported")


async def ask(connection: Connection, request: Request, read: ReadTokens) -> int:
    """Send one counting request and read its answer. Raises Fault."""
    answer = await connection.post(request.path, request.body)
    refuse_unless_ok(answer, without_secrets(connection.root))
    return read(answer.body)
