"""Summarizes the tool results, decisions and requests in turns, without a language model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sidecar import typed
from sidecar.messages.turns import (
    Turn,
    is_assistant,
    join_texts,
    own_text,
    parts,
    starts_exchange,
)

if TYPE_CHECKING:
    from sidecar.context.counter import Counter
    from sidecar.messages.content import Block

HEAD = "[Summary of earlier turns]"
MAX_LINE = 160
"""Maximum length of a summary line, in characters."""
MAX_ARGUMENT = 60
"""Maximum length of a tool call's main argument, in characters."""
SCANNED = 4000
"""Number of characters to search at each end of the text."""
MAX_DECISIONS_PER_TURN = 3
MAX_CHARACTERS_PER_TOKEN = 8
"""Assumed maximum number of characters per token, used to skip text that cannot fit."""

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
_RESULT = re.compile(
    r"\b(pass|found|match|wrote|written|creat|updat|saved|success|complet|done|ok\b|exit|total)",
    re.IGNORECASE,
)
"""Matches a line that states a tool call's outcome."""
_TOOL_LINE = re.compile(r"- [^:]{1,120}: (?:ok\b|failed\b|no output$)")
_MAIN = ("path", "file_path", "filePath", "file", "filename", "command", "cmd", "query", "pattern")
"""Names of the arguments that best describe a tool call, most informative first."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class Line(NamedTuple):
    rank: int
    """The line's rank. Lines with the lowest rank are kept first."""
    text: str


TOOL, DECISION, REQUEST = 0, 1, 2


def summarize_turns(turns: Sequence[Turn], counter: Counter, max_tokens: int) -> str | None:
    """Summarize turns in at most `max_tokens`, or return None if no line fits.

    A summary consists of whole lines, latest first. If there is not enough room, requests are
    omitted first, then decisions, then tool results.
    """
    lines = _latest_lines(turns, MAX_CHARACTERS_PER_TOKEN * max_tokens)
    left = max_tokens - counter.text(HEAD).tokens
    kept: list[int] = []
    for index in sorted(range(len(lines)), key=lambda index: (lines[index].rank, index)):
        tokens = counter.text(f"\n{lines[index].text}").tokens
        if tokens <= left:
            left -= tokens
            kept.append(index)
    while kept:
        text = "\n".join([HEAD, *(lines[index].text for index in sorted(kept))])
        if counter.text(text).tokens <= max_tokens:
            return text
        kept.pop()  # the whole text can have more tokens than its lines have in total
    return None


def _latest_lines(turns: Sequence[Turn], characters: int) -> list[Line]:
    found: list[Line] = []
    for turn, results in reversed(list(_pair_results(turns))):
        if characters <= 0:
            break
        lines = list(_lines_of_turn(turn, results))
        found += lines
        characters -= sum(len(line.text) for line in lines if line.rank != REQUEST)
    return found


def _pair_results(turns: Sequence[Turn]) -> Iterator[tuple[Turn, list[tuple[Block, str]]]]:
    names: dict[str, str] = {}
    for turn in turns:
        found = parts(turn)
        for part in found:
            if part.kind == "call":
                names[part.id or part.name] = names[part.name] = _describe_call(part)
        results = [part for part in found if part.kind == "result"]
        tool_names = [names.get(part.id or part.name) or part.name or "tool" for part in results]
        yield turn, list(zip(results, tool_names, strict=True))


def _describe_call(call: Block) -> str:
    try:
        given = typed.decode(call.arguments or "{}", dict[str, Any])
    except msgspec.DecodeError:
        return call.name
    texts = {key: value for key, value in given.items() if isinstance(value, str) and value.strip()}
    main = next((texts[key] for key in _MAIN if key in texts), next(iter(texts.values()), ""))
    return f"{call.name} {_shorten(main, MAX_ARGUMENT)}".rstrip()


def _lines_of_turn(turn: Turn, results: list[tuple[Block, str]]) -> Iterator[Line]:
    text = own_text(turn)
    if text.startswith(HEAD):
        yield from (_line_of_summary(line) for line in text.splitlines()[1:])
        return
    if is_assistant(turn):
        yield from (Line(DECISION, f"- {line}") for line in reversed(_find_decisions(text)))
    elif starts_exchange(turn):
        yield Line(REQUEST, f"- asked: {_shorten(text)}")
    for part, name in reversed(results):
        yield Line(TOOL, f"- {name}: {_describe_outcome(join_texts(part.inner), part.failed)}")


def _line_of_summary(line: str) -> Line:
    if line.startswith("- asked: "):
        return Line(REQUEST, line)
    return Line(TOOL if _TOOL_LINE.match(line) else DECISION, line)


def _describe_outcome(text: str, failed: bool) -> str:
    lines = [line.strip() for line in (text[:SCANNED] + "\n" + text[-SCANNED:]).splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return "failed" if failed else "no output"
    telling = next((line for line in lines if _FAILED.search(_FINE.sub("", line))), None)
    if failed or telling:
        return f"failed: {_shorten(telling or lines[-1])}"
    length = text.rstrip("\n").count("\n") + 1
    if length == 1:
        return f"ok: {_shorten(lines[-1])}"
    last = f": {_shorten(lines[-1])}" if _RESULT.search(lines[-1]) else ""
    return f"ok, {length:,} lines{last}"


def _find_decisions(text: str) -> list[str]:
    sentences = [one.strip() for one in _SENTENCE.split(text[-SCANNED:])]
    decided = [_shorten(one) for one in sentences if _DECIDED.search(one)]
    return decided[-MAX_DECISIONS_PER_TURN:]


def _shorten(text: str, most: int = MAX_LINE) -> str:
    line = " ".join(text[: 4 * most].split())
    if len(line) <= most:
        return line
    return (line[:most].rpartition(" ")[0] or line[: most - 2]) + " …"
