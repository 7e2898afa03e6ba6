"""Generates Qwen Code's chats with known totals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, append

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "qwen3-coder-plus"
WINDOW = 1_000_000


@dataclass
class QwenHome:
    """A folder `~/.qwen` with chats."""

    folder: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def session(self, root: Path, turns: int, size: int) -> Path:
        """Write a chat. Some turns have a sub-agent or a compression."""
        name, rng = self.clock.uuid(), self.clock.rng
        path = self.folder / "projects" / "-x" / "chats" / f"{name}.jsonl"

        def line(kind: str, **fields: Any) -> str:
            at = self.clock.tick()
            common = {"uuid": self.clock.uuid(), "sessionId": name, "timestamp": at}
            append(path, {**common, "type": kind, "cwd": str(root), **fields})
            return at

        def call(**fields: Any) -> tuple[Tokens, dict[str, int]]:
            tokens = Tokens(rng.randrange(1, 900), rng.randrange(9_000), 0, 0, 90, 40)
            response = f"chatcmpl-{self.clock.id()}"
            event = {
                "event.name": "qwen-code.api_response", "response_id": response, "model": MODEL,
                "input_token_count": tokens.prompt, "output_token_count": tokens.output,
                "cached_content_token_count": tokens.read, "thoughts_token_count": 40,
                "total_token_count": tokens.prompt + tokens.output, **fields,
            }  # fmt: skip
            at = line("system", subtype="ui_telemetry", systemPayload={"uiEvent": event})
            self.truth.calls[f"{response}/{at}"] = (name, tokens)
            return tokens, {
                "promptTokenCount": tokens.prompt, "candidatesTokenCount": tokens.output,
                "thoughtsTokenCount": 40, "cachedContentTokenCount": tokens.read,
                "totalTokenCount": tokens.prompt + tokens.output,
            }  # fmt: skip

        for turn in range(turns):
            text = {"text": self.clock.text(size) + '"usageMetadata"'}
            line("user", message={"role": "user", "parts": [text]})
            for _ in range(2):
                tokens, usage = call()
                fields = {"usageMetadata": usage, "contextWindowSize": WINDOW, "model": MODEL}
                line("assistant", message={"role": "model", "parts": [text]}, **fields)
            self.truth.context[name] = tokens.prompt + tokens.output
            if turn % 3 == 1:
                call(subagent_name="explore")
            if turn % 3 == 2:
                call(prompt_id="compress-1")
                left = rng.randrange(1_000, 9_000)
                info = {"info": {"newTokenCount": left, "newTokenCountIsEstimated": True}}
                line("system", subtype="chat_compression", systemPayload=info)
                self.truth.context[name] = left
        return path
