"""Tests that no whole record of an agent's file is lost because of the text around it."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.agents.codex import CodexHome
from benchmarks.agents.corpus import SOURCES, history
from benchmarks.agents.gemini import GeminiHome
from benchmarks.agents.qwen import QwenHome
from benchmarks.agents.truth import append
from sidecar import typed
from sidecar.agents import file_reading
from sidecar.agents.file_reading import CamelRecord, Record, leading_members, whole_objects
from sidecar.agents.stores import Lines, record_at
from sidecar.config.settings import Agents
from tests.unit.agents_world import World

RNG = random.Random(1)
STRINGS = re.compile(
    rb'("(?:gitBranch|version|cli_version|model_provider|stop_reason|usageScope|status)": ?)"[^"]*"'
)
TOKENS = re.compile(rb'("\w*[tT]oken\w*": ?)(\d+)(?=[,}])')


def with_member(member: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [b"{" + member + b"," + line[1:] for line in lines]


def with_tokens(form: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [TOKENS.sub(form, line) for line in lines]


def with_strings(value: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [STRINGS.sub(rb"\1" + value, line) for line in lines]


def pairs(lines: list[bytes]) -> list[bytes]:
    return [b"".join(lines[start : start + 2]) for start in range(0, len(lines), 2)]


def behind_cut_records(lines: list[bytes]) -> list[bytes]:
    """Behind a colon, the next record cannot be told from a value of the cut one."""
    cut = (before[: RNG.randrange(1, len(before))].rstrip(b":") for before, _ in pairwise(lines))
    return [*lines[:1], *(start + line for start, line in zip(cut, lines[1:], strict=True))]


def inside_cut_records(lines: list[bytes]) -> list[bytes]:
    whole = behind_cut_records(lines)
    return [line + b'rest of a text"},"usage":{"input_tokens":9}}' for line in whole]


def between_cut_records(lines: list[bytes]) -> list[bytes]:
    cut = (line[: RNG.randrange(1, len(line))] for line in lines)
    return [part for both in zip(lines, cut, strict=True) for part in both]


def written_again(missing: int) -> Callable[[list[bytes]], list[bytes]]:
    """Repeat each record after one that lacks some of its last braces."""
    ends = re.compile(rb"\}{1,%d}$" % missing)
    return lambda lines: [part for line in lines for part in (ends.sub(b"", line), line)]


DAMAGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "half a pair": with_member(rb'"odd":"cut \ud82d emoji"'),
    "other half, in capitals": with_member(rb'"odd":["\uDE00",{"\\\uDBFF\\ud83d":1}]'),
    "two first halves": with_member(rb'"odd":"\ud83d\ud83d\ude00"'),
    "surrogate as bytes": with_member(b'"odd":"\xed\xa0\xbd","cwd2":"\xff\xfe"'),
    "not a number": with_member(b'"odd":NaN,"odder":[-Infinity]'),
    "control characters": with_member(b'"odd":"a\tb\0c"'),
    "two records on a line": pairs,
    "all records on a line": lambda lines: [b"".join(lines)],
    "records between spaces": lambda lines: [b" ".join(lines) + b"\t\r"],
    "records between cut ones": between_cut_records,
    "records behind cut ones": behind_cut_records,
    "records inside cut ones": inside_cut_records,
    "records behind the end of another": lambda lines: [
        b'sage":{"a":[{"b":1}]}}' + line for line in lines
    ],
    "records again after one without its last brace": written_again(1),
    "records again after one without its last braces": written_again(9),
    "NUL bytes before": lambda lines: [b"\0" * 4096 + line for line in lines],
    "NUL bytes after": lambda lines: [line + b"\0" * 50 for line in lines],
    "byte order marks": lambda lines: [b"\xef\xbb\xbf" + line for line in lines],
    "whole numbers as floats": with_tokens(rb"\1\2.0"),
    "numbers as strings": with_tokens(rb'\1"\2"'),
    "objects for strings": with_strings(b'{"a":[1]}'),
    "numbers for strings": with_strings(b"-5e3"),
    "lists for strings": with_strings(b"[null]"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_lines_lose_no_call_of_any_agent(tmp_path: Path, name: str) -> None:
    truths = history(tmp_path, 2)
    for path in tmp_path.rglob("*.jsonl"):
        *lines, tail = path.read_bytes().split(b"\n")
        times = path.stat()
        path.write_bytes(b"\n".join([*DAMAGES[name](lines), tail]) if lines else tail)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    world = World(tmp_path, Agents(sources=SOURCES))
    world.ingest()
    wanted = Counter(call for truth in truths for call in truth.calls.values())
    assert Counter(world.recorded().values()) == wanted
    shown: dict[str, int | None] = {}
    for root in sorted((tmp_path / "work").iterdir()):
        shown |= {session.id: session.tokens for session in world.sessions(root).values()}
    assert shown == {name: size for truth in truths for name, size in truth.context.items()}


class Item(CamelRecord):
    kind: str | None = None


class Line(Record):
    id: int | None = None
    title: str | None = None
    item: Item | None = None


_line = typed.decoder(Line)
FIRST = b'{"id":1,"item":{"kind":"a \\"{\\" b"},"list":[{"id":9},{"id":8}],"n":-12.5,"ok":true}'
MEMBERS = (None, 8, 9)
SECOND = b'{"id":2,"item":{"kind":"b"}}'


def read(data: bytes) -> tuple[list[int | None], int]:
    """Return the ids of the records in a line, and how many parts were skipped.

    A member that a cut record ends with cannot be told from a record. It has no record's fields.
    """
    lines = Lines("", data + b"\n", 0)
    ids = [record.id for record in lines.records(_line)]
    return [name for name in ids if name not in MEMBERS], lines.skipped


@pytest.mark.parametrize("cut", range(1, len(FIRST)))
def test_record_behind_a_record_that_is_cut_anywhere_is_read(cut: int) -> None:
    assert read(FIRST[:cut] + SECOND) == ([2], 1)
    assert read(FIRST[cut:] + SECOND) == ([2], 1)
    assert read(FIRST[:cut] + SECOND + FIRST) == ([2, 1], 1)
    assert read(SECOND + FIRST[:cut])[0][:1] == [2]


@pytest.mark.parametrize("cut", range(1, len(FIRST)))
def test_members_of_a_cut_record_are_no_records(cut: int) -> None:
    assert read(FIRST[:cut]) == read(FIRST[cut:]) == ([], 1)


@pytest.mark.parametrize(
    ("data", "ids", "skipped"),
    [
        (FIRST + SECOND + FIRST, [1, 2, 1], 0),
        (b"\0" * 5_000 + FIRST, [1], 1),
        (FIRST + b"\0" * 5_000 + SECOND + b"\0", [1, 2], 2),
        (b"\xef\xbb\xbf" + FIRST, [1], 0),
        (b"\xef\xbb\xbf" + FIRST + SECOND, [1, 2], 0),
        (FIRST + b"\xff\xfe" + SECOND, [1, 2], 1),
        (b"[" + FIRST + b"," + SECOND + b"]", [], 1),
        (b'"' + FIRST.replace(b'"', b'\\"') + b'"', [], 1),
        (b"{" * 200_000 + FIRST, [1], 1),
        (b'{"a":' * 100_000 + FIRST, [], 1),
        (b"null", [], 1),
        (b"\0" * 64, [], 1),
    ],
)
def test_all_records_of_a_line_are_read(data: bytes, ids: list[int], skipped: int) -> None:
    assert read(data) == (ids, skipped)


@pytest.mark.parametrize(
    ("line", "records"),
    [
        (b'{"a":{"b":1}{"c":1}', [b'{"c":1}']),
        (b'{"a":{"b":1} \t{"c":1} ', [b'{"c":1}']),
        (b'{"a":1,"b":{"c":{"d":1}}{"a":2}{"a":3}', [b'{"a":2}', b'{"a":3}']),
        (b'{"a":[{"b":0},{"b":1}{"a":2}', [b'{"a":2}']),
        (b'{"a":"x{","b":{"c":1}{"a":2}', [b'{"a":2}']),
        (b'{"a":{"b":1}{"a":{"b":1}{"a":{"b":1}}', [b'{"a":{"b":1}}']),
        (b'{"a":{"b":1}\0\0{"c":1}', [b'{"c":1}']),
        (b'{"a":{"a":1}{"a":2}', [b'{"a":1}', b'{"a":2}']),
        (b'{"a":1},{"b":2}', [b'{"a":1}', b'{"b":2}']),
        (b'\xef\xbb\xbf {"a":1} , {"b":2},{"c":{}},', [b'{"a":1}', b'{"b":2}', b'{"c":{}}']),
        (b'\0\0{"a":1},{"b":2}}', [b'{"a":1}', b'{"b":2}']),
        (b'{"a":{"b":1}{"c":1},{"d":1}]', [b'{"c":1}', b'{"d":1}']),
        (b't","a":{"b":1},"c":[{"d":1},{"e":1}]}', []),
        (b'{"a":1,"b":{"c":{"d":1}}', []),
        (b'{"a":1,"b":{"c":{"d":1} \r', []),
        (b'{"a":1,"b":[{"c":1}', []),
        (b'{"a":1,"b":{"a":2}', [b'{"a":2}']),
    ],
)
def test_only_objects_outside_other_objects_are_records(line: bytes, records: list[bytes]) -> None:
    assert [line[start:end].strip() for start, end in whole_objects(line)] == records


def test_member_that_is_left_out_is_counted_once_per_record() -> None:
    assert read(b'{"id":"3","item":{"kind":7}}') == ([3], 0)
    assert read(b'{"id":4,"title":{},"item":[]}{"id":5,"title":[]}') == ([4, 5], 2)


def test_title_is_found_at_its_record_in_a_shared_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    titled = b'{"id":3,"title":"caf\xc3\xa9 \\ud83d"}'
    for before in (b"", FIRST, FIRST[:30], b"\0" * 40, b"\xff\xef", FIRST + b" "):
        for after in (b"", SECOND, FIRST[30:], b"\0" * 40, b"\r"):
            data = b'{"id":0}\n' + before + titled + after + b"\n" + SECOND + b"\n"
            path.write_bytes(data)
            lines = Lines(str(path), data, 0)
            at = [lines.position for record in lines.records(_line) if record.title]
            assert at == [str(data.index(titled))]
            found = record_at(str(path), at[0], _line)
            assert found is not None
            assert found.title == "caf\xe9 \N{REPLACEMENT CHARACTER}"


def test_start_of_a_record_has_its_complete_members() -> None:
    whole = json.loads(FIRST)
    for cut in range(1, len(FIRST)):
        members = json.loads(leading_members(FIRST[:cut]) or b"{}")
        for name, value in members.items():
            is_part = isinstance(value, dict | list) and name == [*members][-1]
            assert value == whole[name] or is_part
    assert leading_members(FIRST) == json.dumps(whole).encode()
    assert leading_members(b"x" * 100) == leading_members(b"[1,") == b""
    assert json.loads(leading_members(b'{"a":' * 50_000))


@pytest.mark.parametrize("name", [rb"a\x", rb"\u12", rb"\ud83", b"\\\n", rb"\U0041"])
def test_members_before_a_name_with_a_broken_escape_are_kept(name: bytes) -> None:
    start = b'{"id":1,"item":{"kind":"a","' + name + b'":1,"b":2'
    assert json.loads(leading_members(start)) == {"id": 1, "item": {"kind": "a"}}
    assert leading_members(b'{"' + name + b'":1,"b":2') == b""


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit the length of lines, and return a length that exceeds the limit."""
    monkeypatch.setattr(file_reading, "LONGEST_LINE", 100_000)
    return 600_000


def codex_compaction(home: Path, root: Path, size: int) -> Path:
    thread = CodexHome(home / ".codex").thread(root)
    thread.begin_turn()
    thread.call()
    item = {"type": "message", "role": "user", "content": [{"text": "x" * size}]}
    thread.write("compacted", {"message": "", "replacement_history": [item]})
    return thread.path


def qwen_compaction(home: Path, root: Path, size: int) -> Path:
    path = QwenHome(home / ".qwen").session(root, 2, 100)
    compressed = [{"role": "user", "parts": [{"text": "x" * size}]}]
    payload = {"info": {"compressionStatus": 1}, "compressedHistory": compressed}
    line = {"type": "system", "subtype": "chat_compression", "systemPayload": payload}
    append(path, {"timestamp": "2026-11-20T10:00:00.000Z", "cwd": str(root), **line})
    return path


def gemini_compaction(home: Path, root: Path, size: int) -> Path:
    chat = GeminiHome(home / ".gemini").session(root)
    chat.user()
    chat.reply()
    summary = {"id": "new", "type": "user", "content": "x" * size}
    chat.write({"$set": {"messages": [summary]}})
    return chat.path


@pytest.mark.parametrize(
    ("agent", "compact"),
    [
        ("codex", codex_compaction),
        ("qwen-code", qwen_compaction),
        ("gemini-cli", gemini_compaction),
    ],
)
def test_compaction_that_is_too_long_to_read_ends_the_context(
    tmp_path: Path, short_lines: int, agent: str, compact: Callable[[Path, Path, int], Path]
) -> None:
    world = World(tmp_path, agent)
    path = compact(tmp_path, world.root, short_lines)
    (shown,) = world.sessions().values()
    assert (shown.tokens, shown.compacted) == (None, True)
    world.ingest()
    assert world.skipped[str(path)] == 1
    assert world.recorded()
