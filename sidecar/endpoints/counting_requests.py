"""How a model server counts: its requests, with messages in its format, and its answers.

Responses are validated. A missing or invalid token count raises EndpointError. An invalid context
window is treated as unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from sidecar import typed
from sidecar.endpoints.http import Connection, HttpAnswer
from sidecar.endpoints.outcome import URL_IN_DOUBT, EndpointError
from sidecar.messages.messages import Block, read_message, read_tools
from sidecar.text.printable import printable

ChatMessage: TypeAlias = Mapping[str, Any]
Tools: TypeAlias = Sequence[Mapping[str, Any]]


class Chat(NamedTuple):
    """The messages and tools of one request."""

    messages: Sequence[ChatMessage]
    tools: Tools = ()


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


# Writing messages and tools

_OPENAI_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_ROLES = {"model": "assistant", "developer": "system"}


@dataclass
class PlainMessage:
    """A message with text, tool calls and tool results, in a vendor-neutral format."""

    role: str
    text: str = ""
    calls: list[Block] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)


class ToolResult(NamedTuple):
    id: str
    name: str
    text: str


def openai_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Convert messages to OpenAI's chat format.

    Raises:
        EndpointError: A message contains a part other than text, such as an image.
    """
    return [out for message in messages for out in _openai_message(message)]


def _openai_message(message: ChatMessage) -> list[dict[str, Any]]:
    message = {key: value for key, value in message.items() if value or key == "content"}
    if _is_openai(message):
        return [{key: message[key] for key in _OPENAI_KEYS if key in message}]
    turn = plain_message(message)
    tools = [{"role": "tool", "tool_call_id": r.id, "content": r.text} for r in turn.results]
    if turn.results and not turn.text:
        return tools
    out: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if message.get("name"):
        out["name"] = message["name"]
    if turn.calls:
        out["content"] = turn.text or None
        out["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments or "{}"},
            }
            for c in turn.calls
        ]
    return [*tools, out]


def _is_openai(message: ChatMessage) -> bool:
    content = message.get("content")
    if "toolCalls" in message or "toolCallId" in message or "parts" in message:
        return False
    if any("function" not in call for call in _list_or_empty(message.get("tool_calls"))):
        return False
    if content is None or isinstance(content, str):
        return message.get("role") not in _ROLES
    return all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in _list_or_empty(content)
    )


def openai_tools(tools: Tools) -> list[dict[str, Any]]:
    """Convert tool schemas to OpenAI's chat format."""
    if all("function" in tool for tool in tools):
        return [dict(tool) for tool in tools]
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in read_tools(tools)
    ]


def plain_message(message: ChatMessage) -> PlainMessage:
    """Convert a message from any vendor's format.

    Raises:
        EndpointError: The message contains a part other than text, such as an image.
    """
    read = read_message(message)
    role = read.role or "user"
    plain = PlainMessage(_ROLES.get(role, role))
    for block in read.blocks:
        if block.kind == "call":
            plain.calls.append(block)
        elif block.kind == "result":
            text = "".join([_text_of_block(inner) for inner in block.inner])
            plain.results.append(ToolResult(block.id or block.name, block.name or block.id, text))
        else:
            plain.text += _text_of_block(block)
    return plain


def split_system(messages: Sequence[ChatMessage]) -> tuple[list[PlainMessage], str]:
    """Separate the text of system messages from the other messages."""
    turns = [plain_message(message) for message in messages]
    system = "\n\n".join(turn.text for turn in turns if turn.role == "system" and turn.text)
    return [turn for turn in turns if turn.role != "system"], system


def openai_body(chat: Chat, **more: Any) -> dict[str, Any]:
    """Return a request body in OpenAI's format. `more` contains additional fields.

    Raises:
        EndpointError: A message contains a part other than text, such as an image.
    """
    body = {**more, "messages": openai_messages(chat.messages)}
    return {**body, "tools": openai_tools(chat.tools)} if chat.tools else body


def call_arguments(call: Block) -> dict[str, Any]:
    """Return a tool call's arguments as an object, for vendors that do not accept JSON text."""
    try:
        return typed.decode(call.arguments or "{}", dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {"arguments": call.arguments}


def _text_of_block(block: Block) -> str:
    if block.kind in ("thinking", "nothing"):
        return ""
    if block.kind != "text":
        raise EndpointError(
            "unsupported", "a message contains a part other than text, such as an image"
        )
    return block.text


def _list_or_empty(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


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
