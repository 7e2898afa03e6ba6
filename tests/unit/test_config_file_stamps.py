"""Tests that a file's stamp changes with its contents, even if its size and times stay the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.config import stored_prices
from sidecar.config.safe_files import stamp_of

TIMES = (1_700_000_000, 1_700_000_000)


def rewrite(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    os.utime(file, TIMES)


def replace(file: Path, content: bytes) -> None:
    other = file.with_name("new")
    rewrite(other, content)
    other.replace(file)


def copy(file: Path, content: bytes) -> None:
    other = file.with_name("original")
    rewrite(other, content)
    shutil.copy2(other, file)


def link(file: Path, content: bytes) -> None:
    other = file.with_name("target")
    rewrite(other, content)
    file.unlink()
    file.symlink_to(other)


@pytest.mark.parametrize("change", [rewrite, replace, copy, link], ids=lambda each: each.__name__)
@pytest.mark.parametrize("stamp", [stamp_of, stored_prices.version], ids=["file", "price list"])
def test_stamp_changes_although_size_and_times_do_not(
    change: Callable[[Path, bytes], None], stamp: Callable[[Path], object], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    rewrite(file, b"one")
    before = stamp(file)
    assert before is not None
    assert stamp(file) == before
    change(file, b"two")
    assert (file.stat().st_size, file.stat().st_mtime) == (3, TIMES[0])
    assert stamp(file) != before


@pytest.mark.parametrize("path", ["absent", "nul\0inside"])
def test_file_that_does_not_exist_has_no_stamp(path: str, tmp_path: Path) -> None:
    assert stamp_of(tmp_path / path) is None
