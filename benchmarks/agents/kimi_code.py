"""Generates Kimi Code's sessions with known totals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, append

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "kimi-k2.5"


@dataclass
class KimiHome:
    """A folder `~/.kimi-code` with sessions."""

    folder: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def session(self, root: Path, turns: int, size: int) -> Path:
        """Write a session. Some turns have a sub-agent or a compaction."""
        name, rng = f"session_{self.clock.uuid()}", self.clock.rng
        folder = self.folder / "sessions" / "wd_x_0" / name
        wire = folder / "agents" / "main" / "wire.jsonl"

        def line(kind: str, path: Path = wire, **fields: Any) -> int:
            self.clock.tick()
            at = int(self.clock.now.timestamp() * 1000)
            append(path, {"type": kind, "agentId": path.parent.name, **fields, "time": at})
            return at

        def call(path: Path = wire, scope: str = "turn") -> Tokens:
            tokens = Tokens(rng.randrange(1, 900), rng.randrange(9_000), 0, 0, rng.randrange(900))
            line("llm.request", path, model=MODEL, modelAlias="k2", provider="openai")
            usage = {
                "inputOther": tokens.fresh, "output": tokens.output,
                "inputCacheRead": tokens.read, "inputCacheCreation": 0,
            }  # fmt: skip
            at = line("usage.record", path, model="k2", usage=usage, usageScope=scope)
            self.truth.calls[f"{at}/{tokens.prompt}/{tokens.output}"] = (name, tokens)
            return tokens

        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"id": name, "cwd": str(root)}))
        for turn in range(turns):
            text = self.clock.text(size) + '"usage.record"'
            line("turn.prompt", input=[{"type": "text", "text": text}])
            for _ in range(2):
                tokens = call()
                line("context.append_message", message={"content": text})
            self.truth.context[name] = tokens.prompt + tokens.output
            if turn % 3 == 1:
                call(folder / "agents" / "agent-0" / "wire.jsonl")
            if turn % 3 == 2:
                call(scope="session")
                left = rng.randrange(1_000, 9_000)
                line("context.apply_compaction", summary=text)
                line("token_counting.rebased", tokens=left, measured=False)
                self.truth.context[name] = left
            line("turn.ended", reason="completed")
        return wire
