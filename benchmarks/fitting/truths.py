"""Counts texts with each generation's own vocabulary.

ctok replaces Claude's count endpoint, and Gemma 3 replaces Gemini.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from typing import TYPE_CHECKING

from benchmarks.fitting.environment import FOLDER, NPM
from sidecar.counting import tokenizer_choice
from sidecar.counting.exact_engines import bundled, engine
from sidecar.counting.vocabulary_files import load
from tests.e2e.llama.vocabularies import ensure_vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GGUF = {"r50k_base": "gpt-2", "command": "command-r"}
GEMMA = NPM / "@lenml" / "tokenizer-gemma3" / "models" / "tokenizer.json"


def counters() -> dict[str, Callable[[str], int]]:
    """Return a counting function for each generation."""
    found: dict[str, Callable[[str], int]] = {
        name: engine(name).count for name in ("o200k_base", "cl100k_base", *bundled())
    }
    tokenizers = tokenizer_choice.Tokenizers()
    found["qwen3.5"] = tokenizers.for_model("qwen3.5").count
    paths = ensure_vocabularies()
    for generation, name in _GGUF.items():
        found[generation] = load(paths[name], generation).count
    found["gemma"] = load(GEMMA, "gemma").count
    return found | _claude()


def _claude() -> dict[str, Callable[[str], int]]:
    """Return counters that exclude the tokens that Claude's endpoint adds to a message."""
    token_count = importlib.import_module("ctok").token_count

    def counter(version: str) -> Callable[[str], int]:
        frame = token_count("a", version) - 1
        return lambda text: int(token_count(text, version)) - int(frame)

    return {"claude": counter("3.0"), "claude-4.7": counter("4.7")}


def counted(texts: Sequence[str]) -> dict[str, list[int]]:
    """Return the tokens of each text by generation. They are cached in the environment's folder.

    New texts take minutes, because ctok counts some 100 KB per second.
    """
    path = FOLDER / "truths.json"
    known: dict[str, dict[str, int]] = json.loads(path.read_text()) if path.is_file() else {}
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
    for name, count in counters().items():
        numbers = known.setdefault(name, {})
        for digest, text in zip(digests, texts, strict=True):
            if digest not in numbers:
                numbers[digest] = count(text)
        path.write_text(json.dumps(known))
    return {name: [numbers[digest] for digest in digests] for name, numbers in known.items()}
