"""Documents with token counts. `python -m benchmarks fit-estimates` does not use them for fitting.

Each generation's own vocabulary provides the counts. The exceptions are Claude, whose counts come
from ctok, and Gemini, whose counts come from Gemma 3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCUMENTS: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("held_out.jsonl").read_text("utf-8").splitlines()
]
