"""Some of the documents that `python -m benchmarks fit-estimates` holds out, and their tokens.

The token counts come from the vocabularies of each generation, from ctok for Claude and from Gemma
3 for Gemini.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCUMENTS: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("held_out.jsonl").read_text("utf-8").splitlines()
]
