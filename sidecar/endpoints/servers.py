"""Describes how each kind of model server counts tokens and reports context windows.

Responses are validated. A missing or invalid token count raises EndpointError. An invalid context
window is treated as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from sidecar import typed
from sidecar.endpoints.chats import Chat, openai_body
from sidecar.endpoints.http import Connection, HttpAnswer
from sidecar.endpoints.outcome import URL_IN_DOUBT, EndpointError
from sidecar.models.names import same_model
from sidecar.text.printable import printable

T = TypeVar("T")
Content = TypeVar("Content", str, Chat)

LISTED = 1000
"""Maximum number of entries to read from a server's list. A router for hosted models may list
several hundred.
"""
NAME_CHARACTERS = 256
"""Maximum number of characters in a model's name."""
MOST_TOKENS = 10**9
"""Maximum value of a token count or a context window. Larger numbers are invalid."""


class Meta(msgspec.Struct):
    """llama.cpp's metadata for a listed model. The sizes distinguish models that share a name."""

    n_ctx: int | None = None
    n_vocab: int | None = None
    n_ctx_train: int | None = None
    n_params: int | None = None


class LoadState(msgspec.Struct):
    """Whether a model is in memory, as reported by llama.cpp's router."""

    value: str = "loaded"


class ListedModel(msgspec.Struct):
    """A model in a response to `/v1/models`, with the fields that servers add to
    OpenAI's format.
    """

    id: str = ""
    aliases: list[str] = []
    owned_by: str | None = None
    max_model_len: int | None = None
    max_input_tokens: int | None = None
    meta: Meta | None = None
    status: LoadState | None = None

    @property
    def names(self) -> list[str]:
        """The model's id and its aliases."""
        return [self.id, *(alias for alias in self.aliases[:LISTED] if is_model_name(alias))]


def is_model_name(name: str) -> bool:
    """Return whether a model name is printable and short enough."""
    return 0 < len(name) <= NAME_CHARACTERS and printable(name) == name


class Request(NamedTuple):
    """A POST request that asks a server for a token count."""

    path: str
    body: Mapping[str, Any]


ReadTokens: TypeAlias = Callable[[object], int]
"""Reads the token count from a response body. Raises EndpointError if it is missing or invalid."""


class Counting(NamedTuple, Generic[Content]):
    """Builds the request that asks a server for a token count, and reads the response."""

    build: Callable[[str, Content], Request]
    """Builds the request.

    The arguments are the server's name for the model, and the text or the chat.
    """
    read: ReadTokens


Aspect: TypeAlias = Literal["text", "chat"]

FindLimit: TypeAlias = Callable[[Connection, str, ListedModel | None], Awaitable[int | None]]
"""Finds the context window that the server allocates to a model."""


async def listed_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    """Return a model's context window from the server's list, or None if it is missing."""
    del connection, model
    return valid_window(listed and (listed.max_model_len or listed.max_input_tokens))


async def all_listed(
    connection: Connection, listed: Sequence[ListedModel]
) -> Sequence[ListedModel]:
    """Return all listed models. Some servers list only models that are in memory."""
    del connection
    return listed


async def always_awake(connection: Connection, model: str) -> bool:
    """Return False: most servers do not put a loaded model to sleep."""
    del connection, model
    return False


@dataclass(frozen=True)
class Server:
    """A kind of model server.

    Attributes:
        text: How the server counts text, or None if it cannot.
        chat: How the server counts messages and tools, or None if it cannot.
        loaded: Selects the listed models that are in memory. No other model is used, because
            counting must not load a model.
        is_asleep: Asks whether the server has unloaded a listed model while idle. A request to
            count would load it again.
        parses_specials: Whether the server treats strings such as `<|im_end|>` as special tokens.
            Text that contains such strings is not sent.
        text_by_chat: Whether text is counted as a chat with one message. The count of an empty
            message is then subtracted.
        loads_itself: Whether the server loads a model on the first request for it. Until then, the
            context window is unknown.
        counts_empty: Whether counts include tokens that the server adds. The count of an empty
            string is then subtracted.
    """

    name: str
    text: Counting[str] | None = None
    chat: Counting[Chat] | None = None
    limit: FindLimit = listed_limit
    loaded: Callable[[Connection, Sequence[ListedModel]], Awaitable[Sequence[ListedModel]]] = (
        all_listed
    )
    is_asleep: Callable[[Connection, str], Awaitable[bool]] = always_awake
    parses_specials: bool = True
    text_by_chat: bool = False
    loads_itself: bool = False
    counts_empty: bool = False


def counting_request(server: Server, model: str, content: str | Chat) -> tuple[Request, ReadTokens]:
    """Return a request for a token count, and a function that reads the count from the response.

    Args:
        server: The server.
        model: The server's name for the model.
        content: The text or the chat to count.

    Raises:
        EndpointError: The server cannot count this, or a message has an unknown format.
    """
    if isinstance(content, str):
        if server.text is None:
            raise EndpointError("unsupported", f"{server.name} cannot count plain text")
        return server.text.build(model, content), server.text.read
    if server.chat is None:
        raise EndpointError("unsupported", f"{server.name} cannot count chats")
    try:
        return server.chat.build(model, content), server.chat.read
    except (TypeError, AttributeError, ValueError) as error:
        reason = f"messages or tools are in an unknown format ({type(error).__name__})"
        raise EndpointError("unsupported", reason) from None


def single_message(text: str) -> Chat:
    return Chat([{"role": "user", "content": text}])


# Reading answers


def refuse_unless_ok(answer: HttpAnswer, sender: str) -> None:
    """Raise EndpointError if the response has an error status or contains an error.

    Args:
        answer: The server's response.
        sender: The server's name, for the error message.
    """
    status, body = answer.status, answer.body
    if status in (401, 403):
        raise _authorization_error(answer, sender)
    if status == 503 and reports_loading(body):
        raise EndpointError("loading", f"{sender} is loading its model")
    if status == 429 or status >= 500:
        raise EndpointError("unreachable", f"{sender} returned HTTP {status}")
    if status == 400 and _error_mentions(body, "not loaded", "not running", "no model"):
        raise EndpointError("unknown", f"{sender} does not have the model loaded")
    if status != 200:
        raise EndpointError(
            "unsupported",
            f"{sender} returned HTTP {status}",
            URL_IN_DOUBT if status == 404 else "",
            is_request_specific=400 <= status < 500,
        )
    if body is None:
        raise EndpointError("unsupported", f"{sender} sent a response that is not JSON")
    if isinstance(body, Mapping) and body.get("error"):
        raise EndpointError("unsupported", f"{sender} returned an error with HTTP 200")


def _authorization_error(answer: HttpAnswer, sender: str) -> EndpointError:
    if answer.key_from is None:
        return EndpointError("auth", f"{sender} needs a key (HTTP {answer.status})")
    step = f"does {answer.key_from} contain the server's key?"
    return EndpointError("auth", f"{sender} refused the key (HTTP {answer.status})", step)


def reports_loading(body: object) -> bool:
    """Return whether an error means that the model is still loading."""
    return _error_mentions(body, "loading")


def _error_mentions(body: object, *words: str) -> bool:
    error = body.get("error") if isinstance(body, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return isinstance(message, str) and any(word in message.lower() for word in words)


def field_of(body: object, name: str) -> Any:
    """Return a field of a JSON object, or None if the body is not an object."""
    return body.get(name) if isinstance(body, Mapping) else None


def token_count(value: object) -> int:
    """Return the value after checking that it can be a token count.

    Raises:
        EndpointError: The value is not a positive whole number, or is too large.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
        raise EndpointError("unsupported", "the response does not contain a valid token count")
    return value


def read_number(name: str) -> ReadTokens:
    """Return a function that reads a token count from a field of the response."""
    return lambda body: token_count(field_of(body, name))


def read_ids(name: str) -> ReadTokens:
    """Return a function that counts the token ids in a field of the response."""
    return lambda body: count_ids(field_of(body, name))


def count_ids(tokens: object) -> int:
    """Return the length of a list of token ids or of objects with an id.

    Raises:
        EndpointError: The value is not such a list.
    """
    if not isinstance(tokens, list):
        raise EndpointError("unsupported", "the response does not contain a list of tokens")
    kinds = set(map(type, tokens))  # a Python loop over up to 100,000 ids would be too slow
    if kinds <= {int} or (kinds == {dict} and all(map(_has_token_id, tokens))):
        return token_count(len(tokens))
    raise EndpointError(
        "unsupported", "the list in the response contains values that are not tokens"
    )


def _has_token_id(token: Mapping[str, object]) -> bool:
    return type(token.get("id", token.get("token_id"))) is int


def decode_as(answer: HttpAnswer, form: type[T]) -> T | None:
    """Convert the body of a response to the given type.

    Returns None if the response has an error status, or if the body does not match the type.
    """
    return _convert(answer.body, form) if answer.status == 200 else None


def _convert(value: object, form: type[T]) -> T | None:
    try:
        return typed.convert(value, form)
    except (msgspec.ValidationError, RecursionError):
        return None


def list_entries(answer: HttpAnswer, name: str, form: type[T]) -> list[T]:
    """Return the entries of the given type from a list in the response.

    Only the first `LISTED` entries are read.
    """
    entries = field_of(answer.body, name)
    if answer.status != 200 or not isinstance(entries, list):
        return []
    converted = [_convert(entry, form) for entry in entries[:LISTED]]
    return [entry for entry in converted if entry is not None]


def valid_window(value: object) -> int | None:
    """Return a context window in tokens, or None if the value is invalid.

    Cohere sends it as a floating-point number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 1 <= value <= MOST_TOKENS else None


def first_window(body: object, *names: str) -> int | None:
    """Return the first valid context window in these fields of a response, or None."""
    windows = (valid_window(field_of(body, name)) for name in names)
    return next((window for window in windows if window), None)


def limit_at(path: str, *names: str) -> FindLimit:
    """Return a function that finds the context window in the response to a GET request."""

    async def find(connection: Connection, model: str, listed: ListedModel | None) -> int | None:
        del model, listed
        answer = await connection.get(path)
        return first_window(answer.body, *names) if answer.status == 200 else None

    return find


def text_counting(path: str, field: str, read: ReadTokens, **more: Any) -> Counting[str]:
    """Return a counting request that contains the model and the text in a JSON object.

    Args:
        path: The POST request's path.
        field: The field for the text.
        read: Reads the token count from the response.
        more: Additional fields.
    """
    return Counting(lambda model, text: Request(path, {"model": model, field: text, **more}), read)


def openai_chat_counting(path: str, read: ReadTokens, **more: Any) -> Counting[Chat]:
    """Return a counting request that contains messages and tools in OpenAI's format.

    Args:
        path: The POST request's path.
        read: Reads the token count from the response.
        more: Additional fields.
    """
    return Counting(lambda model, chat: Request(path, openai_body(chat, model=model, **more)), read)


# By default, llama.cpp's router loads the model that a request names.
_NO_LOAD = "autoload=false"


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _Settings | None = None
    is_sleeping: bool = False


def _llamacpp_chat(model: str, chat: Chat) -> Request:
    """Build a request that counts with the model's chat template.

    If the last message is from the assistant, llama.cpp tries to continue it, which fails if it
    contains tool calls. An empty result is therefore appended for each call. The next request must
    contain these results anyway.
    """
    body = openai_body(chat, model=model)
    turns = body["messages"]
    calls = turns[-1].get("tool_calls") if turns else None
    for call in calls or ():
        turns.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": ""})
    return Request(f"/v1/chat/completions/input_tokens?{_NO_LOAD}", body)


async def _llamacpp_props(connection: Connection, model: str) -> _Props | None:
    """Return a model's properties. This request does not wake a sleeping model."""
    answer = await connection.get(f"/props?model={quote(model, safe='')}&{_NO_LOAD}")
    return decode_as(answer, _Props)


async def _llamacpp_is_asleep(connection: Connection, model: str) -> bool:
    props = await _llamacpp_props(connection, model)
    return props is not None and props.is_sleeping


async def _llamacpp_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    props = await _llamacpp_props(connection, model)
    settings = props.default_generation_settings if props else None
    window = valid_window(settings.n_ctx) if settings else None
    return window or (valid_window(listed.meta.n_ctx) if listed and listed.meta else None)


async def _llamacpp_loaded(
    connection: Connection, listed: Sequence[ListedModel]
) -> Sequence[ListedModel]:
    del connection
    return [model for model in listed if model.status is None or model.status.value == "loaded"]


LLAMACPP = Server(
    name="llamacpp",
    text=text_counting(
        f"/tokenize?{_NO_LOAD}",
        "content",
        read_ids("tokens"),
        add_special=False,
        parse_special=False,
    ),
    chat=Counting(_llamacpp_chat, read_number("input_tokens")),
    limit=_llamacpp_limit,
    loaded=_llamacpp_loaded,
    is_asleep=_llamacpp_is_asleep,
    parses_specials=False,
)

LLAMACPP_PYTHON = Server(
    name="llama-cpp-python",
    text=text_counting("/extras/tokenize/count", "input", read_number("count")),
    counts_empty=True,
)

VLLM = Server(
    name="vllm",
    text=text_counting("/tokenize", "prompt", read_number("count"), add_special_tokens=False),
    chat=openai_chat_counting("/tokenize", read_number("count"), add_generation_prompt=True),
)
SGLANG = replace(VLLM, name="sglang")


def _read_tgi_chat(body: object) -> int:
    return count_ids(body.get("tokenize_response") if isinstance(body, Mapping) else body)


TGI = Server(
    name="tgi",
    text=text_counting("/tokenize", "inputs", count_ids, add_special_tokens=False),
    chat=openai_chat_counting("/chat_tokenize", _read_tgi_chat),
    limit=limit_at("/info", "max_total_tokens", "max_input_tokens"),
)

KOBOLDCPP = Server(
    name="koboldcpp",
    text=text_counting("/api/extra/tokencount", "prompt", read_number("value"), special=False),
    limit=limit_at("/api/extra/true_max_context_length", "value"),
    counts_empty=True,
)


class _Loaded(msgspec.Struct):
    id: str = ""


async def _localai_loaded(
    connection: Connection, listed: Sequence[ListedModel]
) -> Sequence[ListedModel]:
    answer = await connection.get("/system")
    names = [model.id for model in list_entries(answer, "loaded_models", _Loaded)]
    return [model for model in listed if any(same_model(model.id, name) for name in names)]


LOCALAI = Server(
    name="localai",
    text=text_counting("/v1/tokenize", "content", read_ids("tokens")),
    loaded=_localai_loaded,
)


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
    """Return a model's context window without loading the model.

    If the model is not in memory, returns the window that it would get, or None if that depends on
    the machine.
    """
    del listed
    answer = await connection.get("/api/ps")
    for running in list_entries(answer, "models", _Running):
        if same_model(model, running.name) or same_model(model, running.model):
            return valid_window(running.context_length)
    description = decode_as(await connection.post("/api/show", {"model": model}), _Show)
    return _window_from_show(description) if description else None


_LEAST_OLLAMA_WINDOW = 4_096
"""The window that Ollama gives to a model without `num_ctx` on a GPU with less than 24 GiB of
memory, since version 0.15.5. With more memory, the window is larger.
"""


def _window_from_show(description: _Show) -> int | None:
    """Return the smaller of `num_ctx` and the model's maximum.

    Without `num_ctx`, only a maximum that every machine can provide is known to be the window.
    """
    configured = _NUM_CTX.search(description.parameters or "")
    entries = islice((description.model_info or {}).items(), LISTED)
    most = [n for key, n in entries if key.endswith(".context_length") and isinstance(n, int)]
    wanted = int(configured[1]) if configured else None
    if wanted is None and min(most, default=MOST_TOKENS) > _LEAST_OLLAMA_WINDOW:
        return None
    return valid_window(min([*most, *filter(None, [wanted])]))


OLLAMA = Server(name="ollama", limit=_ollama_limit, loads_itself=True)


_LOCAL_SOURCES = ("local_estimate", "local_tokenizer", "local")
"""The sources that LiteLLM reports if it has estimated a count itself."""


def _read_litellm(body: object) -> int:
    """Return the `total_tokens` field of LiteLLM's response.

    Raises:
        EndpointError: LiteLLM estimated the count, or does not say how it counted.
    """
    source = field_of(body, "count_source") or field_of(body, "litellm_count_source")
    if not isinstance(source, str) or source in _LOCAL_SOURCES:
        raise EndpointError("unsupported", "LiteLLM only estimates token counts for this model")
    return token_count(field_of(body, "total_tokens"))


LITELLM = Server(
    name="litellm",
    chat=openai_chat_counting("/utils/token_counter?call_endpoint=true", _read_litellm),
    text_by_chat=True,
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
