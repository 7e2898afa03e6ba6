"""aider: `.aider.chat.history.md` in the project, whose numbers are rounded.

A chat begins with a heading that has the only time; its text may hold lines that look like
aider's own, which all begin with `> `.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.fields import provider_of
from sidecar.agents.folding import Folded, fold_lines
from sidecar.agents.homes import AIDER_FILE, homes
from sidecar.agents.listing import stat_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.tail import lines_backwards, open_quietly
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, stored
from sidecar.messages.usage import disjoint

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "aider"
_TAIL = 4 << 20
_BAND = 75.0
"""Percent: aider sums up to four calls of one message (three reflections), counts a streamed
prompt by a tokenizer that need not be the model's, and rounds."""
_STARTED = re.compile(rb"# aider chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_MODEL = re.compile(rb"> (?:Main model|Model): (\S+)")
_NUMBER = rb"([\d.,]+)([kM]?)"
_TOKENS = re.compile(
    rb"> Tokens: " + _NUMBER + rb" sent,(?: " + _NUMBER + rb" cache write,)?"
    rb"(?: " + _NUMBER + rb" cache hit,)? " + _NUMBER + rb" received\."
    rb"(?: Cost: \$([\d.,]+) message)?"
)
_SCALE = {b"": 1, b"k": 1_000, b"M": 1_000_000}


class _State(msgspec.Struct, frozen=True):
    """Of a history, after some of its lines."""

    started: str | None = None
    """In local time."""
    model: str | None = None
    calls: int = 0
    """Of the present chat."""


class Aider:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(map(str, homes(places, AGENT)))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        known = (*self.folders(places), *(roots.paths if roots is not None else ()))
        for folder in dict.fromkeys(known):
            found = stat_of(AGENT, os.path.join(folder, AIDER_FILE))
            if found is not None:
                yield found

    def store_at(self, places: Places, path: str) -> Found | None:  # noqa: ARG002
        return stat_of(AGENT, path) if os.path.basename(path) == AIDER_FILE else None

    def glance(self, look: Look) -> Glance:
        found = look.found
        cwd = os.path.dirname(found.path)
        if not look.roots.hold(cwd):
            return Glance(found)
        reading = model = active = None
        started = ""
        with open_quietly(found.path) as file:
            for line in lines_backwards(file, most=_TAIL):
                if active is None and line.startswith(b"#### "):
                    active = not line.startswith(b"#### /")  # a prompt, and no command
                elif active is None and _TOKENS.match(line):
                    active = False
                if reading is None and (numbers := _TOKENS.match(line)):
                    prompt, _, _, output = _counts(numbers)
                    reading = Reading(prompt, output)
                elif model is None and (named := _MODEL.match(line)):
                    model = named.group(1).decode("utf-8", "replace")
                elif begun := _STARTED.match(line):
                    started = begun.group(1).decode()
                    break
        size = occupancy(Track(newest=reading), "estimate", error_percent=_BAND)
        session = stored(found, f"{cwd}#{started}", cwd, None, size, model=model, active=active)
        return Glance(found, (session,))

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_lines(found, mark, _State(), partial(_fold, str(Path(found.path).parent)))


READER = Aider()


def _fold(folder: str, state: _State, data: bytes) -> Folded[_State]:
    calls = []
    for line in data.split(b"\n"):
        if begun := _STARTED.match(line):
            state = _State(begun.group(1).decode())
        elif named := _MODEL.match(line):
            model = named.group(1).decode("utf-8", "replace")
            state = msgspec.structs.replace(state, model=model)
        elif (numbers := _TOKENS.match(line)) and state.started is not None:
            state = msgspec.structs.replace(state, calls=state.calls + 1)
            calls.append(_call(folder, state, numbers))
    return Folded(state, calls)


def _call(folder: str, state: _State, numbers: re.Match[bytes]) -> Call:
    prompt, write, read, output = _counts(numbers)
    cost, model, started = numbers.group(9), state.model or "unknown", state.started or ""
    return Call(
        at=datetime.fromisoformat(started).astimezone(),
        agent=AGENT,
        session=f"{folder}#{started}",
        model=model,
        provider=provider_of(model),
        usage=disjoint(prompt - min(prompt, read + write), read, write, 0, output, 0),
        request=f"{folder}#{started}#{state.calls}",
        workspace=folder,
        cost_usd=Decimal(cost.decode().replace(",", "").rstrip(".")) if cost else None,
        quality="estimate",
    )


def _counts(numbers: re.Match[bytes]) -> tuple[int, int, int, int]:
    """Sent, of it written to and read from a cache, and received."""
    pairs = zip(numbers.groups()[0:8:2], numbers.groups()[1:8:2], strict=True)
    sent, write, read, output = (_count(number, scale) for number, scale in pairs)
    return sent, write, read, output


def _count(number: bytes | None, scale: bytes | None) -> int:
    text = (number or b"0").decode().replace(",", "").rstrip(".")
    return int(Decimal(text or "0") * _SCALE[scale or b""])
