"""Texts for benchmarks: the Python sources of the standard library, in a fixed order."""

from __future__ import annotations

import sysconfig
from pathlib import Path

SIZES = {"10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000}


def source_text(size: int) -> str:
    """Return `size` characters of real code."""
    parts: list[str] = []
    have = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        parts.append(path.read_text("utf-8", "replace"))
        have += len(parts[-1])
        if have >= size:
            break
    text = "".join(parts)
    while len(text) < size:
        text += text
    return text[:size]
