"""A summary of turns by template: what tools gave, what was decided, what was asked. No model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sidecar.context.turns import (
    Part,
    Turn,
    is_assistant,
    parts,
    plain_text,
    result_body,
    starts_exchange,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.context.counter import Counter

HEAD = "[Summary of earlier turns]"
LINE = 160
"""Characters of one line of a summary at most."""
SCANNED = 4000
"""Characters at each end of a turn that are looked through."""
DECISIONS_A_TURN = 3
LINE_CHARACTERS_A_TOKEN = 8
"""More than any text has: what is older than so many characters had no room anyway."""

_DECIDED = re.compile(
    r"\b(decid\w+|decision|chose|chosen|agreed|conclu\w+|instead of|will|I'll|we'll|must|should|"
    r"do not|don't|fixed|done|root cause|because|todo|next step)\b",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"error|exception|traceback|\bfail|fatal|denied|not found|cannot", re.IGNORECASE
)
_FINE = re.compile(
    r"\b(?:0|no|zero|without)\s+(?:\w+\s+)?(?:errors?|exceptions?|fail\w*)", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def summarise(turns: Sequence[Turn], counter: Counter, max_tokens: int) -> str | None:
    """The outcomes of tools and the decisions in `turns`, oldest first, in `max_tokens` at most.

    What was asked is told where there is room for it; where there is not even room for all
    outcomes and decisions, the latest stay. None where nothing can be told.
    """
    lines = _latest_lines(turns, LINE_CHARACTERS_A_TOKEN * max_tokens)
    kept = [text for text, needed in lines if needed]
    for body in ([text for text, _ in lines], kept):
        text = "\n".join([HEAD, *body])
        if body and counter.text(text).tokens <= max_tokens:
            return text
    room = max_tokens - counter.text(HEAD + "\n").tokens
    latest = counter.fit("\n".join(kept), max(0, room), "end").strip("\n")
    text = f"{HEAD}\n{latest}"
    return text if latest and counter.text(text).tokens <= max_tokens else None


def _latest_lines(turns: Sequence[Turn], characters: int) -> list[tuple[str, bool]]:
    """The lines of the latest turns, oldest first, as far as there could be room for them."""
    blocks: list[list[tuple[str, bool]]] = []
    for turn, results in reversed(list(_named(turns))):
        if characters <= 0:
            break
        blocks.append(list(_lines(turn, results)))
        characters -= sum(len(text) for text, needed in blocks[-1] if needed)
    return [line for block in reversed(blocks) for line in block]


def _named(turns: Sequence[Turn]) -> Iterator[tuple[Turn, list[tuple[Part, str]]]]:
    """Each turn with its tool results and the names of the tools that gave them."""
    names: dict[str, str] = {}
    for turn in turns:
        found = parts(turn)
        names.update({part.id: part.name for part in found if part.id and part.name})
        results = [part for part in found if part.kind == "result"]
        yield turn, [(part, part.name or names.get(part.id or "", "tool")) for part in results]


def _lines(turn: Turn, results: list[tuple[Part, str]]) -> Iterator[tuple[str, bool]]:
    """The lines for one turn, and whether each must be told."""
    text = plain_text(turn.content)
    if text.startswith(HEAD):
        yield from ((line, True) for line in text.splitlines()[1:])
        return
    for part, name in results:
        yield f"- {name}: {_outcome(*result_body(turn, part))}", True
    if is_assistant(turn):
        yield from ((f"- {line}", True) for line in _decisions(text))
    elif starts_exchange(turn):
        yield f"- asked: {_short(text)}", False


def _outcome(text: str, failed: bool) -> str:
    """How a tool ended, in the line of its output that tells most."""
    lines = [line.strip() for line in (text[:SCANNED] + "\n" + text[-SCANNED:]).splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return "failed" if failed else "no output"
    telling = next((line for line in lines if _FAILED.search(_FINE.sub("", line))), None)
    if failed or telling:
        return f"failed: {_short(telling or lines[-1])}"
    return f"ok: {_short(lines[-1])}"


def _decisions(text: str) -> list[str]:
    sentences = [one.strip() for one in _SENTENCE.split(text[-SCANNED:])]
    decided = [_short(one) for one in sentences if _DECIDED.search(one)]
    return decided[-DECISIONS_A_TURN:]


def _short(text: str) -> str:
    line = " ".join(text[: 4 * LINE].split())
    return line if len(line) <= LINE else line[: LINE - 1] + "…"
