"""Generates sessions of Continue's command line with known totals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "gpt-4.1"


@dataclass
class ContinueHome:
    """A folder `~/.continue` with sessions."""

    folder: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def session(self, root: Path, turns: int, size: int) -> Path:
        """Write a session with a number of turns. One of its calls has no message."""
        name, rng = self.clock.uuid(), self.clock.rng
        history: list[dict[str, Any]] = []
        prompt = output = 0
        for turn in range(turns):
            text = self.clock.text(size) + '"usage":{"prompt_tokens":777777}'
            history.append({"message": {"role": "user", "content": text}, "contextItems": []})
            # The number of the turn makes all calls of a session different.
            tokens = Tokens(
                1_000 * turn + rng.randrange(1, 900), rng.randrange(9_000), 0, 0, 90, 40
            )
            usage = {
                "prompt_tokens": tokens.prompt, "completion_tokens": tokens.output,
                "prompt_tokens_details": {"cached_tokens": tokens.read},
                "completion_tokens_details": {"reasoning_tokens": 40}, "model": MODEL,
            }  # fmt: skip
            message = {"role": "assistant", "content": text, "usage": usage}
            history.append({"message": message, "contextItems": []})
            key = f"{tokens.prompt}/{tokens.read}/{tokens.output}"
            number = 0
            while f"{name}/{key}/{number}" in self.truth.calls:
                number += 1
            self.truth.calls[f"{name}/{key}/{number}"] = (name, tokens)
            prompt, output = prompt + tokens.prompt, output + tokens.output
            self.truth.context[name] = tokens.prompt + tokens.output
        lost = Tokens(rng.randrange(1, 9_000), output=50)
        self.truth.calls[f"{name}/rest/{lost.prompt}"] = (name, lost)
        total = {"promptTokens": prompt + lost.prompt, "completionTokens": output + lost.output}
        path = self.folder / "sessions" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"sessionId": name, "title": "Untitled Session", "workspaceDirectory": str(root)}
        path.write_text(json.dumps({**document, "history": history, "usage": total}))
        return path
