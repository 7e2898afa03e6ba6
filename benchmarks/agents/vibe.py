"""Generates Mistral Vibe's sessions with known totals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, append

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "devstral-medium-latest"


@dataclass
class VibeHome:
    """A folder `~/.vibe` with sessions."""

    folder: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def session(self, root: Path, turns: int, size: int) -> Path:
        """Write a session. Older calls have been removed, and only their total is stored."""
        name, rng = self.clock.uuid(), self.clock.rng
        folder = self.folder / "logs" / "session" / "unified" / name
        journal = folder / "journal" / "0000000000000009.jsonl"
        sequence = 8

        def put(path: Path, document: dict[str, Any]) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document))

        def tokens() -> Tokens:
            return Tokens(rng.randrange(1, 900), rng.randrange(9_000), 0, 0, rng.randrange(1, 900))

        def record(turn: str, *observations: str, **command: Any) -> None:
            nonlocal sequence
            sequence += 1
            self.clock.tick()
            at = int(self.clock.now.timestamp() * 1000)
            given = {"command": command, "determinism": {"time_unix_ms": at}}
            shape = {"turn": turn, "observations": list(observations)}
            payload = {"input": given, "transition_shape": shape}
            append(journal, {"payload": payload, "sequence": sequence, "type": "core_input"})

        old = tokens()
        put(folder / "meta.json", {
            "session_id": name, "environment": {"working_directory": str(root)},
            "config": {"active_model": "dev", "model_name": MODEL},
        })  # fmt: skip
        session = {
            "tokenUsage": _camel(old),
            "contextUsage": _camel(old),
            "updatedAt": 1_788_000_000_000,
        }
        put(folder / "generations" / "0000000000000008" / "projection-state.json",
            {"snapshot_sequence": 8, "snapshot": {"session": session}})  # fmt: skip
        self.truth.calls[f"{name}/8"] = (name, old)
        for turn in range(turns):
            record("running", type="user_message", text=self.clock.text(size) + '"core_input"')
            kinds = ["agent", "agent", *(["compaction", "agent"] if turn % 3 == 2 else [])]
            for number, kind in enumerate(kinds):
                made, action = tokens(), self.clock.uuid()
                usage = {
                    "input_tokens": made.prompt, "cached_input_tokens": made.read,
                    "output_tokens": made.output,
                }  # fmt: skip
                result = {"usage": usage, "parts": [{"text": self.clock.text(size)}]}
                last = number == len(kinds) - 1
                record(
                    "completed" if last else "running",
                    "context_compacted" if kind == "compaction" else "assistant_message_committed",
                    type="completion_succeeded", action_id=action, result=result,
                )  # fmt: skip
                self.truth.calls[action] = (name, made)
            self.truth.context[name] = made.prompt + made.output
        return journal


def _camel(tokens: Tokens) -> dict[str, int]:
    return {
        "inputTokens": tokens.prompt, "cachedInputTokens": tokens.read,
        "outputTokens": tokens.output,
    }  # fmt: skip
