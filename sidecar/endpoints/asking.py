"""What a count is asked by, once it is known what kind of server there is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from sidecar.endpoints.outcome import Fault
from sidecar.endpoints.probe import Binding
from sidecar.endpoints.servers.base import ReadTokens, Request, Server

if TYPE_CHECKING:
    from sidecar.endpoints.chats import ChatMessage, Tools

Asking: TypeAlias = Callable[[Server, Binding], tuple[Request, ReadTokens]]
_INLINE_CHARACTERS = 16_384
_SPECIAL = re.compile(
    r"<\|[^|\s]{1,40}\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]"
)


async def has_specials(text: str) -> bool:
    """Whether a text holds what looks like a special token."""
    if len(text) > _INLINE_CHARACTERS:
        return bool(await asyncio.to_thread(_SPECIAL.search, text))
    return bool(_SPECIAL.search(text))


def server_of(binding: Binding) -> Server:
    """The kind of server. Raises Fault where it is not known."""
    if binding.server is None:
        raise Fault("unsupported", "the server is of no known kind")
    return binding.server


def text_asking(text: str) -> Asking:
    """Asks for the count of a text."""

    def asking(server: Server, binding: Binding) -> tuple[Request, ReadTokens]:
        if server.text is None or server.read_text is None:
            raise Fault("unsupported", f"{server.name} counts no texts")
        return server.text(binding.model, text), server.read_text

    return asking


def chat_asking(messages: Sequence[ChatMessage], tools: Tools) -> Asking:
    """Asks for the count of a chat."""

    def asking(server: Server, binding: Binding) -> tuple[Request, ReadTokens]:
        if server.chat is None or server.read_chat is None:
            raise Fault("unsupported", f"{server.name} counts no chats")
        try:
            return server.chat(binding.model, messages, tools), server.read_chat
        except (TypeError, AttributeError, ValueError) as error:
            reason = f"messages or tools have no known form ({type(error).__name__})"
            raise Fault("unsupported", reason) from None

    return asking


def one_message(text: str) -> list[ChatMessage]:
    """A chat of one message."""
    return [{"role": "user", "content": text}]
