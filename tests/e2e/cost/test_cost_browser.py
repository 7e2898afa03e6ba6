"""The page of costs in a real browser, light and dark."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from sidecar.cost.book import CostBook
from sidecar.cost.page import page
from sidecar.cost.protocol import CostRecordParams
from sidecar.cost.sums import Scope

if TYPE_CHECKING:
    from pathlib import Path

LIGHT = (0xFF, 0xFF, 0xFF)
DARK = (0x14, 0x17, 0x1B)
BLUE = {"light": (0x2F, 0x6F, 0xDE), "dark": (0x6E, 0xA8, 0xFF)}


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    assert found is not None, "this test needs Chromium: apt-get install chromium"
    return found


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """A page of a week's work."""
    book = CostBook(tmp_path / "state", zone=UTC)
    for number in range(40):
        usage = {"prompt_tokens": 4000 * (number + 1), "completion_tokens": 400}
        at = datetime(2026, 11, 10, tzinfo=UTC) + timedelta(hours=4 * number)
        book.record(
            CostRecordParams(
                model="gpt-5", usage=usage, session="s", at=at, estimated_tokens=3500 * number
            )
        )
    target = tmp_path / "costs.html"
    with book.ledger.reader() as connection:
        target.write_text(page(connection, book.prices, Scope(), zone=UTC), encoding="utf-8")
    book.close()
    return target


def screenshot(target: Path, scheme: str) -> Counter[tuple[int, ...]]:
    """The page's pixels by colour, as the browser draws it without any network."""
    image = target.with_suffix(f".{scheme}.png")
    subprocess.run(
        [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={target.parent / scheme}",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
            "--window-size=800,900",
            f"--screenshot={image}",
            target.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return pixels(image.read_bytes())


def pixels(png: bytes) -> Counter[tuple[int, ...]]:
    """Colours of an 8-bit RGB or RGBA image (PNG specification, section 9: filters)."""
    width, _height, depth, colour = struct.unpack(">IIBB", png[16:26])
    channels = {2: 3, 6: 4}[colour]
    assert depth == 8
    data, offset = b"", 8
    while offset < len(png):
        (length,) = struct.unpack(">I", png[offset : offset + 4])
        if png[offset + 4 : offset + 8] == b"IDAT":
            data += png[offset + 8 : offset + 8 + length]
        offset += length + 12
    raw, row = zlib.decompress(data), width * channels
    before, counted = bytearray(row), Counter[tuple[int, ...]]()
    for start in range(0, len(raw), row + 1):
        line = unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + row]), before, channels)
        counted.update(zip(*(line[part::channels] for part in range(3)), strict=True))
        before = line
    return counted


def unfiltered(kind: int, line: bytearray, above: bytearray, step: int) -> bytearray:
    """One row of a PNG without its filter."""
    for index in range(len(line)):
        left = line[index - step] if index >= step else 0
        corner = above[index - step] if index >= step else 0
        guess = (0, left, above[index], (left + above[index]) // 2, 0)[kind]
        if kind == 4:
            guess = min(
                (left, above[index], corner), key=lambda b: abs(left + above[index] - corner - b)
            )
        line[index] = (line[index] + guess) & 0xFF
    return line


@pytest.mark.parametrize(("scheme", "background"), [("light", LIGHT), ("dark", DARK)])
def test_the_page_is_drawn_in_the_scheme_of_the_reader(
    costs: Path, scheme: str, background: tuple[int, int, int]
) -> None:
    drawn = screenshot(costs, scheme)
    assert drawn.most_common(1)[0][0] == background
    assert drawn[BLUE[scheme]] > 5_000, "the charts are drawn, in that scheme's colours"
