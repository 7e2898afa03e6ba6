"""Reads the history of aider and cecli, its fork, which is in the project's folder.

Each chat starts with a heading, which contains the chat's only timestamp. The token counts are
rounded. Lines from aider itself start with `> `, but so do quotes in the conversation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from functools import partial

import msgspec

from sidecar.agents.file_reading import reported_usage
from sidecar.agents.folders import Places, Roots, agent_folders, project_files
from sidecar.agents.session_events import (
    CallFinished,
    CallSize,
    Store,
    StoredSession,
    StoreRead,
    StoreReader,
)
from sidecar.agents.stores import Lines, SessionState, read_lines, store_from_path
from sidecar.known_agents import all_agents
from sidecar.messages.vendor_usage import Usage

_BAND = 75.0
"""The margin of error of the context size, in percent (±).

aider reports all calls for a message (up to four) as one. It counts streamed prompts with its own
tokenizer and rounds the totals.
"""
_STARTED = re.compile(rb"# (?:aider|cecli) chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_MODEL = re.compile(rb"> (?:Main model|Model): (\S+)|> .*\bcecli\b.* --model[ =](\S+)")
"""cecli names the model only in the command that started it, if it was given there."""
_NUMBER = rb"([\d.,]+)([kM]?)"
_TOKENS = re.compile(
    rb"> Tokens: " + _NUMBER + rb" sent,(?: " + _NUMBER + rb" cache write,)?"
    rb"(?: " + _NUMBER + rb" cache hit,)? " + _NUMBER + rb" received\."
    rb"(?: Cost: \$([\d.,]+) message)?"
)
_CECLI_TOKENS = re.compile(
    rb"> " + _NUMBER + rb" \S+ ([\d.]+)% \S+ " + _NUMBER + rb" \S+(?: \$([\d.,]+))?"
)
"""cecli's prompt, the percentage read from the cache, the output and the cost of a call."""
_CECLI_BAND = 5.0
"""cecli writes a line for each call, with the vendor's numbers. The prompt is rounded."""
_SCALE = {b"": 1, b"k": 1_000, b"M": 1_000_000}


class Aider(StoreReader):
    """Reads aider's history files. Each chat in a file is a session."""

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(map(str, agent_folders(places, self.agent)))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        known = (*self.folders(places), *(roots.paths if roots is not None else ()))
        paths = project_files(places, self.agent, dict.fromkeys(known))
        yield from filter(None, (store_from_path(self.agent, path) for path in paths))

    def store_at(self, places: Places, path: str) -> Store | None:
        folders = map(os.path.dirname, (path, os.path.dirname(path)))
        is_ours = path in project_files(places, self.agent, (*folders, *places.projects))
        return store_from_path(self.agent, path) if is_ours else None

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        inner = os.path.dirname(all_agents()[self.agent].project_file or "")
        folder = os.path.dirname(store.path)
        folder = folder.removesuffix(os.sep + inner) if inner else folder
        return read_lines(store, state, partial(_HistoryReader.of, folder))


READER = Aider()


class _HistoryReader(msgspec.Struct, dict=True):
    folder: str
    chat: SessionState
    """The latest chat. Only its heading has a timestamp; the messages have none."""
    started: datetime | None = None
    calls: int = 0
    band: float = _BAND

    @classmethod
    def of(cls, folder: str) -> _HistoryReader:
        return cls(folder, SessionState(f"{folder}#", folder, folder))

    @property
    def ended(self) -> list[SessionState]:
        """The chats that ended during this read. They are not saved with the state."""
        ended: list[SessionState] = self.__dict__.setdefault("ended_chats", [])
        return ended

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        for line in lines.data.split(b"\n"):
            if begun := _STARTED.match(line):
                self._begin_chat(begun.group(1).decode())
            elif named := _MODEL.match(line):
                self.chat.model = (named[1] or named[2]).decode("utf-8", "replace")
            elif line.startswith(b"#### "):
                # Slash commands do not start a turn.
                self.chat.active = not line.startswith(b"#### /")
            elif numbers := _TOKENS.match(line):
                yield from self._make_calls(numbers)
            elif numbers := _CECLI_TOKENS.match(line):
                yield from self._make_cecli_call(numbers)

    def snapshots(self) -> Iterator[StoredSession]:
        for chat in (*self.ended, self.chat):
            yield chat.snapshot("estimate", self.band)

    def _begin_chat(self, started: str) -> None:
        chat = self.chat
        if self.started is not None:
            chat.updated_at, chat.active, chat.ended = self.started, False, True
            self.ended.append(chat)
        self.started, self.calls = None, 0
        with suppress(ValueError):
            self.started = datetime.fromisoformat(started).astimezone()
        self.chat = SessionState(f"{self.folder}#{started}", self.folder, self.folder)
        self.chat.began_at = self.started

    def _make_calls(self, numbers: re.Match[bytes]) -> Iterator[CallFinished]:
        prompt, write, read, output = _parse_counts(numbers)
        usage = reported_usage(max(prompt, read + write), output, read, write)
        yield from self._call(prompt, usage, numbers.group(9))

    def _make_cecli_call(self, numbers: re.Match[bytes]) -> Iterator[CallFinished]:
        prompt, output = _parse_count(*numbers.group(1, 2)), _parse_count(*numbers.group(4, 5))
        read = int(prompt * min(Decimal(numbers[3].decode()), Decimal(100)) / 100)
        self.band = _CECLI_BAND
        yield from self._call(prompt, reported_usage(prompt, output, read), numbers[6])

    def _call(self, prompt: int, usage: Usage, cost: bytes | None) -> Iterator[CallFinished]:
        chat = self.chat
        size = CallSize(prompt, usage.output_tokens)
        chat.active, chat.track = False, chat.track.call(size)
        self.calls += self.started is not None
        yield from chat.call(
            self.started,
            usage,
            f"{chat.id}#{self.calls}",
            chat.model,
            agent_cost=Decimal(cost.decode().replace(",", "").rstrip(".")) if cost else None,
        )


def _parse_counts(numbers: re.Match[bytes]) -> tuple[int, int, int, int]:
    pairs = zip(numbers.groups()[0:8:2], numbers.groups()[1:8:2], strict=True)
    sent, write, read, output = (_parse_count(number, scale) for number, scale in pairs)
    return sent, write, read, output


def _parse_count(number: bytes | None, scale: bytes | None) -> int:
    text = (number or b"0").decode().replace(",", "").rstrip(".")
    return int(Decimal(text or "0") * _SCALE[scale or b""])
