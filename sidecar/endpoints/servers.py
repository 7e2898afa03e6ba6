"""Kinds of model server: how each counts, and which context window it allocates.

An unexpected answer, such as a field of another type or a number that cannot be a count, raises
EndpointError.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from sidecar import typed
from sidecar.endpoints.chats import (
    ChatMessage,
    Tools,
    openai_body,
    openai_messages,
    openai_tools,
)
from sidecar.endpoints.http import Answer, Connection
from sidecar.endpoints.outcome import URL_IN_DOUBT, EndpointError
from sidecar.models.names import same_model
from sidecar.text.printable import printable

T = TypeVar("T")

LISTED = 1000
"""Most entries to read of a server's list. Routers of hosted models list several hundred."""
NAME_CHARACTERS = 256
"""Longest name of a model."""
MOST_TOKENS = 10**9
"""Larger numbers are neither counts nor windows."""


class Meta(msgspec.Struct):
    """llama.cpp's metadata of a listed model. Its sizes distinguish models of the same name."""

    n_ctx: int | None = None
    n_vocab: int | None = None
    n_ctx_train: int | None = None
    n_params: int | None = None


class LoadState(msgspec.Struct):
    """Whether a model is in memory."""

    value: str = "loaded"


class ListedModel(msgspec.Struct):
    """A model of `/v1/models`, with the fields that servers add to OpenAI's format."""

    id: str = ""
    aliases: list[str] = []
    owned_by: str | None = None
    max_model_len: int | None = None
    max_input_tokens: int | None = None
    meta: Meta | None = None
    status: LoadState | None = None

    @property
    def names(self) -> list[str]:
        return [self.id, *(alias for alias in self.aliases[:LISTED] if is_model_name(alias))]


def is_model_name(name: str) -> bool:
    """Return whether a name is short enough and printable."""
    return 0 < len(name) <= NAME_CHARACTERS and printable(name) == name


@dataclass(frozen=True)
class Request:
    """A POST request for a count."""

    path: str
    body: Mapping[str, Any]


TextRequest: TypeAlias = Callable[[str, str], Request]
"""Builds the request that counts a text, from the server's name for the model and the text."""
ChatRequest: TypeAlias = Callable[[str, Sequence[ChatMessage], Tools], Request]
ReadTokens: TypeAlias = Callable[[object], int]
"""Returns the token count in a body. Raises EndpointError for an unexpected form."""
FindLimit: TypeAlias = Callable[[Connection, str, ListedModel | None], Awaitable[int | None]]


async def no_limit(connection: Connection, model: str, listed: ListedModel | None) -> int | None:
    """Return None, for servers that do not report their window."""
    del connection, model, listed
    return None


async def everything_listed(
    connection: Connection, listed: Sequence[ListedModel]
) -> Sequence[ListedModel]:
    """Return all models, for servers that only list loaded ones."""
    del connection
    return listed


@dataclass(frozen=True)
class Server:
    """A kind of server. Functions that are None are not supported."""

    name: str
    text: TextRequest | None = None
    read_text: ReadTokens | None = None
    chat: ChatRequest | None = None
    read_chat: ReadTokens | None = None
    limit: FindLimit = no_limit
    loaded: Callable[[Connection, Sequence[ListedModel]], Awaitable[Sequence[ListedModel]]] = (
        everything_listed
    )
    """Returns the listed models that are in memory, because a count must not load a model."""
    parses_specials: bool = True
    """Whether `<|im_end|>` in a text counts as one special token. Such texts are not sent."""
    text_by_chat: bool = False
    """Whether texts are counted as a one-message chat minus the tokens of an empty message."""
    loads_itself: bool = False
    """Whether the first request loads a model, whose window is unknown before that."""
    counts_empty: bool = False
    """Whether counts include tokens that the server adds. The count of "" is subtracted."""


def refuse_unless_ok(answer: Answer, what: str) -> None:
    """Raise EndpointError for an error status, or an error in a 200 response."""
    status, body = answer.status, answer.body
    if status in (401, 403):
        raise _unauthorized(answer, what)
    if status == 503 and reports_loading(body):
        raise EndpointError("loading", f"{what} is loading its model")
    if status == 429 or status >= 500:
        raise EndpointError("unreachable", f"{what} answered HTTP {status}")
    if status == 400 and _error_mentions(body, "not loaded", "not running", "no model"):
        raise EndpointError("unknown", f"{what} does not have the model loaded")
    if status != 200:
        step = URL_IN_DOUBT if status == 404 else ""
        raise EndpointError("unsupported", f"{what} answered HTTP {status}", step)
    if body is None:
        raise EndpointError("unsupported", f"{what} answered something other than JSON")
    if isinstance(body, Mapping) and body.get("error"):
        raise EndpointError("unsupported", f"{what} answered an error in a 200")


def _unauthorized(answer: Answer, what: str) -> EndpointError:
    if answer.key_from is None:
        return EndpointError("auth", f"{what} needs a key (HTTP {answer.status})")
    step = f"does {answer.key_from} hold the server's key?"
    return EndpointError("auth", f"{what} refused the key (HTTP {answer.status})", step)


def reports_loading(body: object) -> bool:
    """Return whether an error says that the model is still loading."""
    return _error_mentions(body, "loading")


def _error_mentions(body: object, *words: str) -> bool:
    error = body.get("error") if isinstance(body, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return isinstance(message, str) and any(word in message.lower() for word in words)


def token_count(value: object) -> int:
    """Return a value that can be the token count of a non-empty text.

    Raises:
        EndpointError: It is not a whole number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
        raise EndpointError("unsupported", "the count in the answer is no number of tokens")
    return value


def read_field(name: str) -> ReadTokens:
    """Return a function that reads the token count in this field."""

    def read(body: object) -> int:
        return token_count(body.get(name) if isinstance(body, Mapping) else None)

    return read


def count_ids_in(body: object, name: str = "tokens") -> int:
    """Return the number of token ids in the list in this field."""
    tokens = body.get(name) if isinstance(body, Mapping) else None
    return count_ids(tokens)


def count_ids(tokens: object) -> int:
    """Return the length of a list of token ids, or of objects with an id.

    Raises:
        EndpointError: It is not such a list.
    """
    if not isinstance(tokens, list):
        raise EndpointError("unsupported", "the answer has no list of tokens")
    kinds = set(map(type, tokens))  # no Python loop: lists have up to 100,000 ids
    if kinds <= {int} or (kinds == {dict} and all(map(_has_token_id, tokens))):
        return token_count(len(tokens))
    raise EndpointError("unsupported", "the answer's list holds something other than tokens")


def _has_token_id(token: Mapping[str, object]) -> bool:
    return type(token.get("id", token.get("token_id"))) is int


def decode_as(body: object, form: type[T]) -> T | None:
    """Convert a body to this type, or return None if it does not fit."""
    try:
        return typed.convert(body, form)
    except (msgspec.ValidationError, RecursionError):
        return None


def list_entries(answer: Answer, name: str, form: type[T]) -> list[T]:
    """Return the first entries of the list in this field that fit the type."""
    found = answer.body.get(name) if isinstance(answer.body, Mapping) else None
    if answer.status != 200 or not isinstance(found, list):
        return []
    made = [decode_as(entry, form) for entry in found[:LISTED]]
    return [entry for entry in made if entry is not None]


def valid_window(value: int | None) -> int | None:
    """Return a window in tokens, or None for an impossible number."""
    return value if value is not None and 0 < value <= MOST_TOKENS else None


# A router loads a request's model unless told not to; other servers ignore this.
_NO_LOAD = "autoload=false"


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _Settings | None = None


def _llamacpp_text(model: str, text: str) -> Request:
    body = {"model": model, "content": text, "add_special": False, "parse_special": False}
    return Request(f"/tokenize?{_NO_LOAD}", body)


def _llamacpp_chat(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    """POST /v1/chat/completions/input_tokens: the model's own chat template.

    llama.cpp continues an assistant's message at the end, and refuses one that calls tools. The
    next request must hold the results of these calls, so empty ones are appended.
    """
    turns = openai_messages(messages)
    calls = turns[-1].get("tool_calls") if turns else None
    for call in calls or ():
        turns.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": ""})
    body = {"model": model, "messages": turns}
    if tools:
        body["tools"] = openai_tools(tools)
    return Request(f"/v1/chat/completions/input_tokens?{_NO_LOAD}", body)


async def _llamacpp_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    answer = await connection.get(f"/props?model={quote(model, safe='')}&{_NO_LOAD}")
    props = decode_as(answer.body, _Props) if answer.status == 200 else None
    if props and props.default_generation_settings:
        found = valid_window(props.default_generation_settings.n_ctx)
        if found:
            return found
    return valid_window(listed.meta.n_ctx) if listed and listed.meta else None


async def _llamacpp_loaded(
    connection: Connection, listed: Sequence[ListedModel]
) -> Sequence[ListedModel]:
    del connection
    return [model for model in listed if model.status is None or model.status.value == "loaded"]


LLAMACPP = Server(
    name="llamacpp",
    text=_llamacpp_text,
    read_text=count_ids_in,
    chat=_llamacpp_chat,
    read_chat=read_field("input_tokens"),
    limit=_llamacpp_limit,
    loaded=_llamacpp_loaded,
    parses_specials=False,
)


def _llamacpp_python_text(model: str, text: str) -> Request:
    return Request("/extras/tokenize/count", {"model": model, "input": text})


LLAMACPP_PYTHON = Server(
    name="llama-cpp-python",
    text=_llamacpp_python_text,
    read_text=read_field("count"),
    counts_empty=True,
)


def _vllm_text(model: str, text: str) -> Request:
    return Request("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})


def _vllm_chat(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    body = openai_body(messages, tools, model=model, add_generation_prompt=True)
    return Request("/tokenize", body)


async def _vllm_limit(connection: Connection, model: str, listed: ListedModel | None) -> int | None:
    del connection, model
    return valid_window(listed.max_model_len) if listed else None


VLLM = Server(
    name="vllm",
    text=_vllm_text,
    read_text=read_field("count"),
    chat=_vllm_chat,
    read_chat=read_field("count"),
    limit=_vllm_limit,
)
SGLANG = replace(VLLM, name="sglang")


class _Info(msgspec.Struct):
    max_total_tokens: int | None = None
    max_input_tokens: int | None = None


def _tgi_text(model: str, text: str) -> Request:
    del model
    return Request("/tokenize", {"inputs": text, "add_special_tokens": False})


def _tgi_chat(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    return Request("/chat_tokenize", openai_body(messages, tools, model=model))


def _tgi_read_chat(body: object) -> int:
    return count_ids(body.get("tokenize_response") if isinstance(body, Mapping) else body)


async def _tgi_limit(connection: Connection, model: str, listed: ListedModel | None) -> int | None:
    del model, listed
    answer = await connection.get("/info")
    info = decode_as(answer.body, _Info) if answer.status == 200 else None
    return (
        (valid_window(info.max_total_tokens) or valid_window(info.max_input_tokens))
        if info
        else None
    )


TGI = Server(
    name="tgi",
    text=_tgi_text,
    read_text=count_ids,
    chat=_tgi_chat,
    read_chat=_tgi_read_chat,
    limit=_tgi_limit,
)


class _Value(msgspec.Struct):
    value: int | None = None


def _koboldcpp_text(model: str, text: str) -> Request:
    del model
    return Request("/api/extra/tokencount", {"prompt": text, "special": False})


async def _koboldcpp_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    del model, listed
    answer = await connection.get("/api/extra/true_max_context_length")
    found = decode_as(answer.body, _Value) if answer.status == 200 else None
    return valid_window(found.value) if found else None


KOBOLDCPP = Server(
    name="koboldcpp",
    text=_koboldcpp_text,
    read_text=read_field("value"),
    limit=_koboldcpp_limit,
    counts_empty=True,
)


class _Loaded(msgspec.Struct):
    id: str = ""


def _localai_text(model: str, text: str) -> Request:
    return Request("/v1/tokenize", {"model": model, "content": text})


async def _localai_loaded(
    connection: Connection, listed: Sequence[ListedModel]
) -> Sequence[ListedModel]:
    answer = await connection.get("/system")
    names = [model.id for model in list_entries(answer, "loaded_models", _Loaded)]
    return [model for model in listed if any(same_model(model.id, name) for name in names)]


LOCALAI = Server(name="localai", text=_localai_text, read_text=count_ids_in, loaded=_localai_loaded)


_NUM_CTX = re.compile(r"^[ \t]*num_ctx[ \t]+(\d{1,10})[ \t\r]*$", re.MULTILINE)


class _Running(msgspec.Struct):
    name: str = ""
    model: str = ""
    context_length: int | None = None


class _Show(msgspec.Struct):
    parameters: str | None = None
    model_info: dict[str, Any] | None = None


async def _ollama_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    """Return the running model's window, or the one it would get when loaded.

    Neither request loads a model.
    """
    del listed
    answer = await connection.get("/api/ps")
    for running in list_entries(answer, "models", _Running):
        if same_model(model, running.name) or same_model(model, running.model):
            return valid_window(running.context_length)
    answer = await connection.post("/api/show", {"model": model})
    answered = decode_as(answer.body, _Show) if answer.status == 200 else None
    return _window_from_show(answered) if answered else None


def _window_from_show(answered: _Show) -> int | None:
    """Return the smaller of the architecture's window and `num_ctx`, a line in `parameters`."""
    set_in = _NUM_CTX.search(answered.parameters or "")
    windows = [int(set_in[1])] if set_in else []
    for key, value in islice((answered.model_info or {}).items(), LISTED):
        if key.endswith(".context_length") and isinstance(value, int):
            windows.append(value)
    return valid_window(min(windows)) if windows else None


OLLAMA = Server(name="ollama", limit=_ollama_limit, loads_itself=True)


_LITELLM_PATH = "/utils/token_counter?call_endpoint=true"
_GUESSES = ("local_estimate", "local_tokenizer", "local")


def _litellm_chat(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    return Request(_LITELLM_PATH, openai_body(messages, tools, model=model))


def _litellm_read(body: object) -> int:
    """Return `total_tokens`, unless LiteLLM estimated it, as it does if it names no source."""
    if not isinstance(body, Mapping):
        raise EndpointError("unsupported", "the answer has no token count")
    source = body.get("count_source", body.get("litellm_count_source"))
    if not isinstance(source, str) or source in _GUESSES:
        raise EndpointError("unsupported", "LiteLLM guesses the tokens of this model itself")
    return token_count(body.get("total_tokens"))


async def _litellm_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    del connection, model
    return valid_window(listed.max_input_tokens) if listed else None


LITELLM = Server(
    name="litellm",
    chat=_litellm_chat,
    read_chat=_litellm_read,
    text_by_chat=True,
    limit=_litellm_limit,
)


class _Model(msgspec.Struct):
    id: str = ""
    state: str = ""
    loaded_context_length: int | None = None


async def _lmstudio_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    del listed
    answer = await connection.get("/api/v0/models")
    for entry in list_entries(answer, "data", _Model):
        if entry.state == "loaded" and same_model(model, entry.id):
            return valid_window(entry.loaded_context_length)
    return None


LMSTUDIO = Server(name="lmstudio", limit=_lmstudio_limit)
