"""What every kind of server has, and the careful reading of their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

from sidecar.endpoints.chats import Message, Tools
from sidecar.endpoints.http import Answer, Connection
from sidecar.endpoints.outcome import Fault

T = TypeVar("T")


class Meta(msgspec.Struct):
    """llama.cpp's part of a listed model; the sizes tell one model from another of its name."""

    n_ctx: int | None = None
    n_vocab: int | None = None
    n_ctx_train: int | None = None
    n_params: int | None = None


class Load(msgspec.Struct):
    """Whether a model is in memory, where a server can load several."""

    value: str = "loaded"


class Listed(msgspec.Struct):
    """One model of `/v1/models`, with what the servers add to OpenAI's form."""

    id: str = ""
    aliases: list[str] = []
    owned_by: str | None = None
    max_model_len: int | None = None
    max_input_tokens: int | None = None
    meta: Meta | None = None
    status: Load | None = None

    @property
    def names(self) -> list[str]:
        """Every name that it goes by."""
        return [self.id, *self.aliases]


@dataclass(frozen=True)
class Request:
    """One POST that counts."""

    path: str
    body: Mapping[str, Any]


TextRequest: TypeAlias = Callable[[str, str], Request]
"""(the server's name of the model, text) to the request that counts it."""
ChatRequest: TypeAlias = Callable[[str, Sequence[Message], Tools], Request]
ReadTokens: TypeAlias = Callable[[object], int]
"""The tokens in a body; raises Fault where it has another shape."""
FindLimit: TypeAlias = Callable[[Connection, str, Listed | None], Awaitable[int | None]]


async def no_limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """For servers that do not tell."""
    del connection, model, listed
    return None


async def everything_listed(connection: Connection, listed: Sequence[Listed]) -> Sequence[Listed]:
    """For servers that list only what they have loaded, or load nothing by being asked."""
    del connection
    return listed


@dataclass(frozen=True)
class Server:
    """A kind of server. What is None it does not do."""

    name: str
    text: TextRequest | None = None
    read_text: ReadTokens | None = None
    chat: ChatRequest | None = None
    read_chat: ReadTokens | None = None
    limit: FindLimit = no_limit
    loaded: Callable[[Connection, Sequence[Listed]], Awaitable[Sequence[Listed]]] = (
        everything_listed
    )
    """Which of the listed models are in memory: a count must never load one."""
    parses_specials: bool = True
    """`<|im_end|>` written in a text counts as one special token: such texts are not sent."""
    text_by_chat: bool = False
    """Where only chats are counted, a text is a chat of one message, less what a message costs."""
    counts_empty: bool = False
    """Counts of texts hold what the server puts around each: the count of "" is taken off."""


def refuse_unless_ok(answer: Answer, what: str) -> None:
    """Raise the Fault that a status, or an error inside a 200, means."""
    status, body = answer.status, answer.body
    if status in (401, 403):
        raise Fault("auth", f"{what} needs a key, or refused the one given (HTTP {status})")
    if status == 503 and says_loading(body):
        raise Fault("loading", f"{what} is loading its model")
    if status == 429 or status >= 500:
        raise Fault("unreachable", f"{what} answered HTTP {status}")
    if status == 400 and _says(body, "not loaded", "not running", "no model"):
        raise Fault("unknown", f"{what} does not have the model loaded")
    if status != 200:
        raise Fault("unsupported", f"{what} answered HTTP {status}")
    if body is None:
        raise Fault("unsupported", f"{what} answered something other than JSON")
    if isinstance(body, Mapping) and body.get("error"):
        raise Fault("unsupported", f"{what} answered an error in a 200")


def says_loading(body: object) -> bool:
    """Whether an error says that the model is still being loaded."""
    return _says(body, "loading")


def _says(body: object, *words: str) -> bool:
    error = body.get("error") if isinstance(body, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return isinstance(message, str) and any(word in message.lower() for word in words)


def whole(value: object) -> int:
    """A number of tokens of something that is not empty: above 0, and no bool."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Fault("unsupported", "the count in the answer is no positive whole number")
    return value


def field(name: str) -> ReadTokens:
    """Reads the number in this field."""

    def read(body: object) -> int:
        return whole(body.get(name) if isinstance(body, Mapping) else None)

    return read


def ids(body: object, name: str = "tokens") -> int:
    """The number of token ids (or objects that hold one) in this field."""
    tokens = body.get(name) if isinstance(body, Mapping) else None
    return length(tokens)


def length(tokens: object) -> int:
    """The number of token ids, or of objects that hold one, in a list of nothing else."""
    if not isinstance(tokens, list):
        raise Fault("unsupported", "the answer has no list of tokens")
    kinds = set(map(type, tokens))  # without a loop in Python: lists of 100,000 ids come
    if kinds <= {int} or (kinds == {dict} and all(map(_holds_id, tokens))):
        return whole(len(tokens))
    raise Fault("unsupported", "the answer's list holds something other than tokens")


def _holds_id(token: Mapping[str, object]) -> bool:
    return type(token.get("id", token.get("token_id"))) is int


def decode(body: object, form: type[T]) -> T | None:
    """`body` in this form; None where it has another."""
    try:
        return msgspec.convert(body, form)
    except (msgspec.ValidationError, RecursionError):
        return None


def positive(value: int | None) -> int | None:
    """A window in tokens; 0 and less mean that it is not known."""
    return value if value is not None and value > 0 else None
