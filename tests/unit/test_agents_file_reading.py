"""Tests how agents' files are read line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.agents import file_reading
from sidecar.agents.compressed import zstd
from sidecar.agents.file_reading import chunks, first_lines, open_quietly


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_chunks_contain_only_complete_lines(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a\nbb\n" + b"c" * 40 + b"\nhalf")
    with open_quietly(str(path)) as file:
        read = list(chunks(file, size))
    assert b"".join(data for data, _ in read) == b"a\nbb\n" + b"c" * 40 + b"\n"
    assert all(data.endswith(b"\n") for data, _ in read)


def test_very_long_line_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reading, "LONGEST_LINE", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"first\n" + b"x" * 1000 + b"\nlast\n" + b"y" * 1000)
    with open_quietly(str(path)) as file:
        read = list(chunks(file, 64))
    assert b"".join(data for data, _ in read) == b"first\nlast\n"
    assert sum(len(data) + passed for data, passed in read) == len(b"first\nlast\n") + 1001


def test_compressed_file_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd.compress(b"one\ntwo\n") + zstd.compress(b"three\n"))
    assert list(first_lines(str(path))) == [b"one", b"two", b"three"]


def test_damaged_compressed_file_raises_oserror(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd.compress(b"one\n" * 1000)[:-6])
    with pytest.raises(OSError, match="zstd"):
        list(first_lines(str(path)))


def test_reading_does_not_change_the_access_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n")
    os.utime(path, (1, 2_000_000_000))
    assert list(first_lines(str(path))) == [b"one"]
    assert path.stat().st_atime == 1


def test_reading_the_head_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [b"%03d" % number + b"x" * 96 for number in range(200)]
    path.write_bytes(b"".join(line + b"\n" for line in lines) + b"half")
    assert list(first_lines(str(path))) == lines
    assert list(first_lines(str(path), 5_050)) == lines[:50]


@pytest.mark.parametrize("kind", ["fifo", "zero"])
def test_special_file_does_not_block(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "session.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="regular"):
        next(first_lines(str(path)))
