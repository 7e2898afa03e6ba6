"""Generates files of Amp, Mistral Vibe, Continue and aider with known totals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, append, stamp

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = 168_000


def amp(folder: Path, root: Path, truth: Truth, *, model: str = "claude-sonnet-5") -> Path:
    """Write a thread of Amp, which stores prompts of OpenAI's models as cache writes."""
    clock = Clock(3)
    name = f"T-{clock.uuid()}"
    messages: list[dict[str, Any]] = []
    for number in range(4):
        messages.append({"role": "user", "messageId": 2 * number, "content": []})
        tokens = Tokens(number + 3, 2_000 * number, 900, output=70 + number)
        parts = {"inputTokens": tokens.fresh, "cacheCreationInputTokens": tokens.write}
        if model.startswith("gpt"):
            tokens = Tokens(tokens.fresh + tokens.write, tokens.read, output=tokens.output)
            parts = {"inputTokens": 0, "cacheCreationInputTokens": tokens.fresh}
        usage = {
            "model": model, "outputTokens": tokens.output, "cacheReadInputTokens": tokens.read,
            "totalInputTokens": tokens.prompt, "maxInputTokens": WINDOW,
            "timestamp": clock.tick(), **parts,
        }  # fmt: skip
        content = [{"type": "text", "text": clock.text(200)}]
        reply = {"role": "assistant", "messageId": 2 * number + 1, "content": content}
        messages.append({**reply, "usage": usage})
        truth.calls[f"{name}/{2 * number + 1}"] = (name, tokens)
        truth.context[name] = tokens.prompt + tokens.output
    trees = [{"displayName": root.name, "uri": root.as_uri()}]
    thread = {
        "v": 9, "id": name, "created": int(clock.now.timestamp() * 1000), "title": "A title",
        "messages": messages, "env": {"initial": {"trees": trees}},
    }  # fmt: skip
    path = folder / "threads" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(thread, indent=2))
    return path


def vibe(folder: Path, root: Path, truth: Truth, *, calls: int = 3) -> Path:
    """Write the `meta.json` of a session of Vibe."""
    clock = Clock(5)
    name = clock.uuid()
    meta = {
        "session_id": name, "start_time": clock.tick(), "end_time": clock.tick(),
        "environment": {"working_directory": str(root)},
        "config": {"active_model": "devstral-2"},
        "stats": {
            "session_prompt_tokens": 5_000 * calls, "session_completion_tokens": 90 * calls,
            "context_tokens": 7_000 + calls, "steps": calls, "format_session_cost": 0.1,
        },
    }  # fmt: skip
    path = folder / "logs" / "session" / f"session_{name[:8]}" / "meta.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(meta))
    truth.calls[name] = (name, Tokens(5_000 * calls, output=90 * calls))
    truth.context[name] = 7_000 + calls
    return path


def continue_dev(folder: Path, lines: int = 3) -> Path:
    """Write several equal lines, as Continue's extensions do for equal calls."""
    path = folder / "dev_data" / "0.2.0" / "tokensGenerated.jsonl"
    line = {
        "timestamp": stamp(Clock(1).now), "model": "qwen2.5-coder", "provider": "ollama",
        "promptTokens": 900, "generatedTokens": 40,
    }  # fmt: skip
    append(path, *[line] * lines)
    return path


AIDER = """
# aider chat started at 2026-09-01 10:00:00

> Main model: anthropic/claude-sonnet-5 with diff edit format
> Weak model: claude-haiku-4-5

#### what does `> Tokens: 99k sent, 99k received.` mean?

 > Tokens: 99k sent, 99 received.

> Tokens: 12k sent, 133 received. Cost: $0.04 message, $0.10 session.
> Tokens: 14k sent, 8.0k cache write, 3.5k cache hit, 1.2k received. Cost: $0.06 message, $0.16 session.

# aider chat started at 2026-09-02 10:00:00

> Model: ollama/qwen3 with whole edit format
> Tokens: 2.5k sent, 250 received.
"""
