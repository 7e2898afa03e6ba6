"""What kinds of text a prompt has grown by: documents of a kind learn from that kind alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sidecar.context.counts import shares
from sidecar.counting.kinds import Kind, kind_of
from sidecar.messages.content import read_message
from sidecar.messages.turns import Turn, own_text

Grown = tuple[tuple[Kind | None, int], ...]
"""Kinds and tokens of what was added, oldest first; None for what is no text or is not known."""

_UNREAD = frozenset({"picture", "file"})


def grown_by(turns: Iterable[tuple[Turn, int]]) -> Grown:
    """The kinds of these turns, with what each was counted as."""
    return tuple(part for turn, tokens in turns for part in _of(turn, tokens))


def newest_kind(turns: Sequence[Turn]) -> Kind:
    """What kind of text came last: the longer one of two turns."""
    return kind_of(max(map(own_text, turns[-2:]), key=len, default=""))


def _of(turn: Turn, tokens: int) -> Grown:
    """A turn's texts, results and calls share its tokens by their lengths."""
    message = read_message(turn)
    calls = [block.arguments for block in message.flat() if block.kind == "call"]
    texts = [text for text in (*message.texts, *calls) if text]
    if not texts or any(block.kind in _UNREAD for block in message.flat()):
        return ((None, tokens),)
    return tuple(zip(map(kind_of, texts), shares(tokens, list(map(len, texts))), strict=True))
