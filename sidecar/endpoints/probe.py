"""Determines an endpoint's capabilities for one model, with at most twelve requests.

The server is recognized by its list of models, its greeting or the format of its counts. The server
then counts two known strings, to detect servers that return constants or nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b

import msgspec

from sidecar.endpoints import local_servers
from sidecar.endpoints.clouds import Cloud
from sidecar.endpoints.counting_requests import (
    Aspect,
    ListedModel,
    Server,
    counting_request,
    first_window,
    is_model_name,
    list_entries,
    refuse_unless_ok,
    reports_loading,
    single_message,
)
from sidecar.endpoints.http import Connection, HttpAnswer, without_secrets
from sidecar.endpoints.outcome import (
    URL_IN_DOUBT,
    WINDOW_ONLY,
    AbilityStatus,
    EndpointError,
    ModelAsleepError,
)
from sidecar.models.names import same_model

PROBE_TEXTS = (
    "hello world",
    "The quick brown fox jumps over the lazy dog, 24 times in 2048 steps;\n"
    "def answer(question: str) -> int:\n    return 42 if question else 0\n",
)
"""Two strings whose token counts clearly differ in every tokenizer."""

_SPECIALS = 4  # maximum number of tokens that a server may add around the text
_BYTES_PER_TOKEN = 512  # the longest tokens of any vocabulary are runs of about 128 spaces


def check_texts(counts: Sequence[int], server: str) -> None:
    """Raise EndpointError if the counts of `PROBE_TEXTS` are not plausible."""
    for text, tokens in zip(PROBE_TEXTS, counts, strict=True):
        if not is_possible_count(text, tokens):
            raise EndpointError(
                "lying",
                f"{server} counted {tokens} tokens in {len(text)} characters, which is implausible",
            )
    check_chats(counts, server)


def is_possible_count(text: str, tokens: int) -> bool:
    """Return whether a server could return this count for the text.

    A token has 1 to 512 bytes, and the server may add up to four tokens.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    return size // _BYTES_PER_TOKEN <= tokens <= size + _SPECIALS


def check_chats(counts: Sequence[int], server: str) -> None:
    """Raise EndpointError unless the counts are plausible.

    Each count belongs to a chat that contains one of `PROBE_TEXTS`.
    """
    short, long = counts
    if long < short + 8:
        raise EndpointError(
            "lying",
            f"{server} counts {short} tokens in short text, but only {long} in long text",
        )


_OWNERS: Mapping[str, Server] = {
    "llamacpp": local_servers.LLAMACPP,
    "vllm": local_servers.VLLM,
    "sglang": local_servers.SGLANG,
    "koboldcpp": local_servers.KOBOLDCPP,
    "library": local_servers.OLLAMA,
}
# This proxy starts a server for the requested model, so counting would load the model.
_LOADS_WHEN_ASKED = ("llama-swap",)


def server_from_listing(answer: HttpAnswer, listed: Sequence[ListedModel]) -> Server | None:
    """Recognize a server by its response to `/v1/models`.

    Raises:
        EndpointError: Counting would make the server load a model.
    """
    if answer.headers.get("server", "").lower() == "llama.cpp":
        return local_servers.LLAMACPP
    if any(name.startswith("x-litellm-") for name in answer.headers):
        return local_servers.LITELLM
    for owner in {entry.owned_by for entry in listed if entry.owned_by}:
        if owner in _LOADS_WHEN_ASKED:
            raise EndpointError("unsupported", f"{owner} would have to load the model to count")
        if owner in _OWNERS:
            return _OWNERS[owner]
    if any(entry.id.startswith("koboldcpp/") for entry in listed):
        return local_servers.KOBOLDCPP
    return None


async def server_from_greeting(connection: Connection) -> Server | None:
    """Recognize servers that must not receive a POST request.

    LM Studio responds to every request with HTTP 200, and LocalAI loads the model that a request
    names.
    """
    greeting = await connection.get("/lmstudio-greeting")
    if isinstance(greeting.body, Mapping) and greeting.body.get("lmstudio") is True:
        return local_servers.LMSTUDIO
    front = await connection.get("/")
    if front.status == 200 and front.text.startswith("Ollama is running"):
        return local_servers.OLLAMA
    system = await connection.get("/system")
    if isinstance(system.body, Mapping) and "loaded_models" in system.body:
        return local_servers.LOCALAI
    return None


async def _server_from_count(connection: Connection, model: str) -> tuple[Server, int | None]:
    """Recognize a server by its responses to counting requests.

    llama.cpp, vLLM and TGI are recognized by one request that all three accept.

    Returns:
        The server, and its count of the first probe text. The count is None if another request
        identified the server.

    Raises:
        EndpointError: The server does not support any known counting request.
    """
    body: dict[str, object] = {}
    for server in (local_servers.LLAMACPP, local_servers.VLLM, local_servers.TGI):
        if server.text:
            body |= server.text.build(model, PROBE_TEXTS[0]).body
    answer = await connection.post("/tokenize", body)
    found = _server_by_answer(answer.body)
    if answer.status == 200 and found and found.text:
        return found, found.text.read(answer.body)
    if answer.status not in (404, 405, 501):
        refuse_unless_ok(answer, without_secrets(connection.root))
    return await _server_from_path(connection, model), None


def _server_by_answer(body: object) -> Server | None:
    if isinstance(body, list) and body and isinstance(body[0], Mapping) and "id" in body[0]:
        return local_servers.TGI
    if not isinstance(body, Mapping):
        return None
    if "count" in body:
        return local_servers.VLLM
    return local_servers.LLAMACPP if isinstance(body.get("tokens"), list) else None


async def _server_from_path(connection: Connection, model: str) -> Server:
    for server in (local_servers.KOBOLDCPP, local_servers.LLAMACPP_PYTHON):
        if server.text:
            request = server.text.build(model, PROBE_TEXTS[0])
            answer = await connection.post(request.path, request.body)
            if answer.status == 200 and isinstance(answer.body, Mapping):
                return server
    reason = f"{without_secrets(connection.root)} does not support any known counting request"
    raise EndpointError("unsupported", reason, URL_IN_DOUBT)


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Ability:
    """Whether an endpoint can count text or chats, and if not, why."""

    status: AbilityStatus
    reason: str = ""
    step: str = ""
    """Advice that replaces the usual advice for the status."""

    @classmethod
    def failed(cls, error: EndpointError) -> Ability:
        return cls(error.status, error.reason, error.step)


@dataclass(frozen=True)
class ProbeResult:
    """An endpoint's capabilities for one model."""

    model: str
    """The model's name on the server."""
    server: Server | None = None
    text: Ability = Ability("unknown", "not probed yet")
    chat: Ability = Ability("unknown", "not probed yet")
    limit: int | None = None
    listed: bytes = b""
    """A digest of the server's model list; empty if there is no list."""
    listed_models: tuple[str, ...] = ()
    """The first models in the server's model list."""
    extra_tokens: int = 0
    """The tokens that the server adds to each string. They are subtracted from the counts."""
    checked_at: str = field(default_factory=_utc_now)

    @property
    def statuses(self) -> set[AbilityStatus]:
        return {self.text.status, self.chat.status}

    @classmethod
    def failed(cls, model: str, error: EndpointError, server: Server | None = None) -> ProbeResult:
        """Return the result for a server that can count neither text nor chats."""
        ability = Ability.failed(error)
        return cls(model=model, server=server, text=ability, chat=ability)


async def probe_cloud(connection: Connection, cloud: Cloud, model: str) -> ProbeResult:
    """Probe a vendor's API. A single GET request verifies the key and the model."""
    path = cloud.show_path(model)
    limit = None
    if path:
        try:
            answer = await connection.get(path)
            refuse_unless_ok(answer, without_secrets(connection.root))
        except EndpointError as error:
            return ProbeResult.failed(model, error, cloud.server)
        limit = first_window(answer.body, *cloud.limit_fields)
    server = cloud.server
    none = Ability("unsupported", f"{server.name} cannot count this kind of input")
    can_text = server.text is not None or server.text_by_chat
    return ProbeResult(
        model=model,
        server=server,
        text=Ability("supported") if can_text else none,
        chat=Ability("supported") if server.chat else none,
        limit=limit,
    )


async def probe(connection: Connection, model: str) -> ProbeResult:
    """Recognize a model server, and have it count two strings and two chats."""
    server: Server | None = None
    listed: list[ListedModel] = []
    try:
        answer = await connection.get("/v1/models")
        listed = list_models(answer)
        server = server_from_listing(answer, listed)
        named = find_listed_model(model, listed)
        if listed and named is None:
            raise EndpointError("unknown", f"the server has {_names_of(listed)}, but not {model}")
        first = None
        if server is None:
            # All servers that have a greeting (LM Studio, Ollama, LocalAI) list their models.
            server = await server_from_greeting(connection) if listed else None
        if server is None:
            name = named.id if named else model
            server, first = await _server_from_count(connection, name)
        loaded = await server.loaded(connection, listed)
        entry = find_listed_model(model, loaded)
        if entry is None and (listed or loaded):
            raise EndpointError("unknown", f"{server.name} does not have {model} loaded")
    except EndpointError as error:
        return replace(
            ProbeResult.failed(model, error, server), listed_models=_listed_names(listed)
        )
    name = entry.id if entry else model
    limit = await _read_limit(connection, server, name, entry)
    try:
        await refuse_if_asleep(connection, server, name)
    except EndpointError as error:
        failed = ProbeResult.failed(name, error, server)
        return replace(failed, limit=limit, listed_models=_listed_names(listed))
    text, extra_tokens = await _try_counting(connection, server, "text", name, first)
    chat, _ = await _try_counting(connection, server, "chat", name)
    return ProbeResult(
        model=name,
        server=server,
        text=chat if server.text_by_chat else text,
        chat=chat,
        limit=limit,
        listed=digest_of_list(listed),
        listed_models=_listed_names(listed),
        extra_tokens=extra_tokens,
    )


async def refuse_if_asleep(connection: Connection, server: Server, model: str) -> None:
    """Raise ModelAsleepError if the server has put the model to sleep."""
    if await server.is_asleep(connection, model):
        raise ModelAsleepError(model)


async def probe_window(connection: Connection, model: str) -> ProbeResult:
    """Determine only the context window, without sending any text."""
    server: Server | None = None
    try:
        answer = await connection.get("/v1/models")
        listed = list_models(answer)
        named = find_listed_model(model, listed)
        server = (
            server_from_listing(answer, listed)
            or await server_from_greeting(connection)
            or local_servers.VLLM
        )
        limit = await _read_limit(connection, server, named.id if named else model, named)
    except EndpointError as error:
        return ProbeResult.failed(model, error, server)
    off = Ability("unknown", WINDOW_ONLY)
    listed_models = _listed_names(listed)
    return ProbeResult(
        model=model, server=server, text=off, chat=off, limit=limit, listed_models=listed_models
    )


def list_models(answer: HttpAnswer) -> list[ListedModel]:
    """Return the models in a response to `/v1/models`. The list is empty if the server does not
    support this request.

    Raises:
        EndpointError: The server needs a key, is loading a model, or has failed.
    """
    if answer.status in (404, 405, 501):
        return []
    if answer.status != 200 or reports_loading(answer.body):
        refuse_unless_ok(answer, "the server")
    return [entry for entry in list_entries(answer, "data", ListedModel) if is_model_name(entry.id)]


OFFERED = 100
"""Maximum number of models to offer in a picker for one server."""


def _listed_names(listed: Sequence[ListedModel]) -> tuple[str, ...]:
    return tuple(entry.id for entry in listed[:OFFERED])


def digest_of_list(listed: Sequence[ListedModel]) -> bytes:
    """Return a 16-byte digest of a list of models, or empty bytes if the list is empty."""
    written = msgspec.json.encode(listed)
    return blake2b(written, digest_size=16).digest() if listed else b""


def find_listed_model(model: str, loaded: Sequence[ListedModel]) -> ListedModel | None:
    """Return the listed model with this id or alias, or None. Exact matches take precedence."""
    for entry in loaded:
        if model in entry.names:
            return entry
    return next((e for e in loaded if any(same_model(model, name) for name in e.names)), None)


def _names_of(listed: Sequence[ListedModel]) -> str:
    names = ", ".join(entry.id for entry in listed[:3])
    return names if len(listed) <= 3 else f"{names} and {len(listed) - 3} more"


async def _read_limit(
    connection: Connection, server: Server, model: str, entry: ListedModel | None
) -> int | None:
    try:
        return await server.limit(connection, model, entry)
    except EndpointError:
        return None


async def _try_counting(
    connection: Connection, server: Server, what: Aspect, model: str, first: int | None = None
) -> tuple[Ability, int]:
    """Count each of `PROBE_TEXTS`, either as plain text or as a chat with one message.

    Returns whether the server can count, and how many tokens it adds to each string.
    """
    counts, extra_tokens = [] if first is None else [first], 0
    try:
        if what == "text":
            extra_tokens = await _empty_text_tokens(connection, server, model)
        for text in PROBE_TEXTS[len(counts) :]:
            content = text if what == "text" else single_message(text)
            request, read = counting_request(server, model, content)
            answer = await connection.post(request.path, request.body)
            refuse_unless_ok(answer, without_secrets(connection.root))
            counts.append(read(answer.body) - extra_tokens)
        (check_texts if what == "text" else check_chats)(counts, server.name)
    except EndpointError as error:
        return Ability.failed(error), 0
    return Ability("supported"), extra_tokens


async def _empty_text_tokens(connection: Connection, server: Server, model: str) -> int:
    """Return the server's count of an empty string, which may include a begin-of-text token."""
    if not server.counts_empty or server.text is None:
        return 0
    request = server.text.build(model, "")
    answer = await connection.post(request.path, request.body)
    refuse_unless_ok(answer, server.name)
    body = answer.body
    numbers = [n for n in body.values() if type(n) is int] if isinstance(body, Mapping) else []
    return numbers[0] if numbers and numbers[0] in (0, 1, 2) else 0
