"""A part of the held-out documents of `python -m benchmarks fit-estimates`, with their tokens.

The tokens come from real vocabularies by generation, Claude's from ctok and Gemini's from Gemma
3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCUMENTS: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("held_out.jsonl").read_text("utf-8").splitlines()
]
