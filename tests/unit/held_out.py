"""Documents with token counts. `python -m benchmarks fit-estimates` does not use them for fitting.

The counts for each model generation come from its own vocabulary. The exceptions are Claude (from
ctok) and Gemini (from the vocabulary of Gemma 3).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCUMENTS: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("held_out.jsonl").read_text("utf-8").splitlines()
]
