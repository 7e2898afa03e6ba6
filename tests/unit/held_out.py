"""Some of the documents that `python -m benchmarks fit-estimates` keeps apart, with their tokens.

By real vocabularies, by the generation's name; Claude's by ctok, Gemini's by Gemma 3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCUMENTS: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("held_out.jsonl").read_text("utf-8").splitlines()
]
