"""What every kind of server has, and the careful reading of their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

from sidecar import typed
from sidecar.endpoints.chats import ChatMessage, Tools
from sidecar.endpoints.http import Answer, Connection
from sidecar.endpoints.outcome import URL_IN_DOUBT, Fault
from sidecar.text.printable import printable

T = TypeVar("T")

LISTED = 1000
"""Entries of a server's list that are looked at; routers of hosted models list some hundreds."""
NAME_CHARACTERS = 256
"""A model's name may have so many."""
MOST_TOKENS = 10**9
"""A count or a window above this is no number of tokens."""


class Meta(msgspec.Struct):
    """llama.cpp's part of a listed model; the sizes distinguish models of one name."""

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
        return [self.id, *(alias for alias in self.aliases[:LISTED] if is_name(alias))]


def is_name(name: str) -> bool:
    """Whether this can be a model's name: one line that shows as it is."""
    return 0 < len(name) <= NAME_CHARACTERS and printable(name) == name


@dataclass(frozen=True)
class Request:
    """One POST that counts."""

    path: str
    body: Mapping[str, Any]


TextRequest: TypeAlias = Callable[[str, str], Request]
"""(the server's name of the model, text) to the request that counts it."""
ChatRequest: TypeAlias = Callable[[str, Sequence[ChatMessage], Tools], Request]
ReadTokens: TypeAlias = Callable[[object], int]
"""The tokens in a body; raises Fault where it has another shape."""
FindLimit: TypeAlias = Callable[[Connection, str, Listed | None], Awaitable[int | None]]


async def no_limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """For servers that do not report it."""
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
    loads_itself: bool = False
    """Loads a model at its first request, with a window that only then is known."""
    counts_empty: bool = False
    """Counts of texts hold what the server puts around each: the count of "" is taken off."""


def refuse_unless_ok(answer: Answer, what: str) -> None:
    """Raise the Fault that a status, or an error inside a 200, means."""
    status, body = answer.status, answer.body
    if status in (401, 403):
        raise _unauthorized(answer, what)
    if status == 503 and says_loading(body):
        raise Fault("loading", f"{what} is loading its model")
    if status == 429 or status >= 500:
        raise Fault("unreachable", f"{what} answered HTTP {status}")
    if status == 400 and _says(body, "not loaded", "not running", "no model"):
        raise Fault("unknown", f"{what} does not have the model loaded")
    if status != 200:
        step = URL_IN_DOUBT if status == 404 else ""
        raise Fault("unsupported", f"{what} answered HTTP {status}", step)
    if body is None:
        raise Fault("unsupported", f"{what} answered something other than JSON")
    if isinstance(body, Mapping) and body.get("error"):
        raise Fault("unsupported", f"{what} answered an error in a 200")


def _unauthorized(answer: Answer, what: str) -> Fault:
    """A key is missing, or the one that was sent is wrong: what to do about it differs."""
    if answer.key_from is None:
        return Fault("auth", f"{what} needs a key (HTTP {answer.status})")
    step = f"does {answer.key_from} hold the server's key?"
    return Fault("auth", f"{what} refused the key (HTTP {answer.status})", step)


def says_loading(body: object) -> bool:
    """Whether an error says that the model is still being loaded."""
    return _says(body, "loading")


def _says(body: object, *words: str) -> bool:
    error = body.get("error") if isinstance(body, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return isinstance(message, str) and any(word in message.lower() for word in words)


def whole(value: object) -> int:
    """A number of tokens of something that is not empty: above 0, and no bool."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
        raise Fault("unsupported", "the count in the answer is no number of tokens")
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
        return typed.convert(body, form)
    except (msgspec.ValidationError, RecursionError):
        return None


def entries(answer: Answer, name: str, form: type[T]) -> list[T]:
    """The first entries of the list in a field that have this form; empty where there is none."""
    found = answer.body.get(name) if isinstance(answer.body, Mapping) else None
    if answer.status != 200 or not isinstance(found, list):
        return []
    made = [decode(entry, form) for entry in found[:LISTED]]
    return [entry for entry in made if entry is not None]


def positive(value: int | None) -> int | None:
    """A window in tokens; 0, less and far too much mean that it is not known."""
    return value if value is not None and 0 < value <= MOST_TOKENS else None
