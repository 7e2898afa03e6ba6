"""Generates Codex's threads with known totals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, append, stamp

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = "gpt-5.2-codex"
WINDOW = 272_000


@dataclass
class CodexHome:
    """A folder `~/.codex` with threads."""

    folder: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def thread_id(self) -> str:
        """Return a UUIDv7 with the current time."""
        digits = (
            f"{int(self.clock.now.timestamp() * 1000):012x}7{self.clock.id(3)}a{self.clock.id(15)}"
        )
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def thread(self, root: Path, **options: Any) -> Rollout:
        """Start a thread that works in `root`."""
        made = Rollout(self, self.thread_id(), str(root), **options)
        made.meta()
        return made


@dataclass
class Rollout:
    """The file of a thread. Each method appends what Codex would append."""

    home: CodexHome
    id: str
    cwd: str
    records: bool = False
    """Whether to write usage records, as in new versions."""
    counts: bool = True
    """Whether to write `token_count` events."""
    ordinals: bool = False
    turn_ids: bool = True
    size: int = 400
    spaces: bool = False
    owner: str | None = None
    """The session to which the calls belong. Defaults to this thread."""
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = self.home.clock
        self.began = self.clock.now
        self.total = [0] * 6
        self.calls = 0
        self.turn: str | None = None
        self.last: dict[str, Any] = {}
        if self.owner is None:
            self.home.truth.context.setdefault(self.id, None)

    @property
    def path(self) -> Path:
        """The path of the file."""
        day = self.began.strftime("%Y/%m/%d")
        name = f"rollout-{self.began.strftime('%Y-%m-%dT%H-%M-%S')}-{self.id}.jsonl"
        return self.home.folder / "sessions" / day / name

    def write(self, kind: str, payload: dict[str, Any], *, at: str | None = None) -> None:
        """Append a line. Forks will copy it."""
        line: dict[str, Any] = {
            "timestamp": at or self.clock.tick(),
            "type": kind,
            "payload": payload,
        }
        if self.ordinals:
            line = {"timestamp": line["timestamp"], "ordinal": len(self.history), **line}
        self.history.append(line)
        append(self.path, line, spaces=self.spaces)

    def event(self, kind: str, **payload: Any) -> None:
        """Append an `event_msg`."""
        self.write("event_msg", {"type": kind, **payload})

    def meta(self, **fields: Any) -> None:
        """Append the line that identifies the file."""
        payload = {
            "id": self.id,
            "timestamp": stamp(self.began),
            "cwd": self.cwd,
            "originator": "codex_cli_rs",
            "cli_version": "0.144.0",
            "source": "cli",
            "model_provider": "openai",
            "base_instructions": {"text": self.clock.text(20_000)},
            **fields,
        }
        self.write("session_meta", payload, at=stamp(self.began))

    def begin_turn(self, **fields: Any) -> None:
        """Start a turn with a user message."""
        self.turn = self.clock.uuid() if self.turn_ids else None
        named = {"turn_id": self.turn} if self.turn else {}
        started = int(self.clock.now.timestamp())
        self.event("task_started", **named, started_at=started, model_context_window=WINDOW)
        context = {**named, "cwd": self.cwd, "model": MODEL, "effort": "high", **fields}
        self.write("turn_context", context)
        self.event("thread_settings_applied", **named, thread_settings={"model": MODEL})
        text = self.clock.text(self.size) + '{"type":"token_count"}'
        content = [{"type": "input_text", "text": text}]
        self.write("response_item", {"type": "message", "role": "user", "content": content})

    def end_turn(self) -> None:
        """Append the end of the turn."""
        self.event("task_complete", turn_id=self.turn, last_agent_message=self.clock.text(50))

    def call(self, *, repeats: int = 1, fields: dict[str, Any] | None = None) -> None:
        """Append a call. Its event is repeated `repeats` times with unchanged totals."""
        text = [{"type": "output_text", "text": self.clock.text(self.size)}]
        self.write("response_item", {"type": "message", "role": "assistant", "content": text})
        arguments = json.dumps({"command": ["cat", self.clock.text(60)]})
        self.write(
            "response_item", {"type": "function_call", "name": "shell", "arguments": arguments}
        )
        output = {"type": "function_call_output", "output": self.clock.text(4 * self.size)}
        self.write("response_item", output)
        tokens = self.tokens()
        self.calls += 1
        response = f"resp_{self.clock.id(32)}"
        owner = self.owner or self.id
        self.home.truth.calls[response if self.records else f"{self.id}#{self.calls}"] = (
            owner,
            tokens,
        )
        if self.owner is None:
            self.home.truth.context[self.id] = tokens.prompt + tokens.output
            self.home.truth.window[self.id] = WINDOW
        if self.records:
            self.record(response, tokens)
        self.count(tokens, fields)
        for _ in range(repeats):
            self.event("token_count", **self.last)

    def tokens(self) -> Tokens:
        """Return the tokens of the next call."""
        rng = self.clock.rng
        fresh, output = rng.randrange(100, 4_000), rng.randrange(50, 900)
        write = rng.randrange(50) if self.records else 0
        return Tokens(fresh, rng.randrange(90_000), write, 0, output, rng.randrange(output))

    def count(self, tokens: Tokens, fields: dict[str, Any] | None = None) -> None:
        """Append the `token_count` event of a call."""
        numbers = usage(tokens)
        self.total = [one + two for one, two in zip(self.total, numbers.values(), strict=True)]
        info = {
            "total_token_usage": dict(zip(numbers, self.total, strict=True)),
            "last_token_usage": numbers,
            "model_context_window": WINDOW,
            **(fields or {}),
        }
        limits = {"primary": {"used_percent": 12.5, "window_minutes": 300, "resets_at": 1}}
        self.last = {"info": info, "rate_limits": limits}
        if self.counts:
            self.event("token_count", **self.last)

    def record(
        self, response: str, tokens: Tokens, *, thread: str | None = None, **fields: Any
    ) -> None:
        """Append a `token_usage_record`."""
        numbers = usage(tokens)
        payload = {
            "response_id": response,
            "thread_id": thread or self.id,
            "session_id": self.id,
            "turn_id": self.turn,
            "usage": numbers,
            "turn_token_usage": numbers,
            "thread_token_usage": numbers,
            **fields,
        }
        self.write("token_usage_record", payload)

    def compact(self, *, estimate: bool = True) -> None:
        """Append a compaction. The context's size is unknown until the next call."""
        copy = {"response_id": "resp_copy", "usage": usage(Tokens(5, 5, 0, 0, 5))}
        payload = {"message": self.clock.text(self.size), "latest_token_usage_record": copy}
        self.write("compacted", payload)
        if estimate:
            guess = dict.fromkeys(usage(Tokens()), 0) | {"total_tokens": 9_999}
            info = {**self.last["info"], "last_token_usage": guess}
            self.event("token_count", **{**self.last, "info": info})
        self.home.truth.context[self.id] = None

    def reset_totals(self) -> None:
        """Reset the totals, as some versions do at a compaction."""
        self.total = [number // 3 for number in self.total]

    def roll_back(self) -> None:
        """Append the removal of a turn, after which the context's size is unknown."""
        self.event("thread_rolled_back", num_turns=1)
        self.home.truth.context[self.id] = None

    def fork(
        self, *, restamped: bool = True, names_ordinal: bool = False, spawned: bool = False
    ) -> Rollout:
        """Return a thread that starts with a copy of this thread's lines."""
        self.clock.now += timedelta(seconds=30)
        other = Rollout(
            self.home,
            self.home.thread_id(),
            self.cwd,
            self.records,
            self.counts,
            names_ordinal or self.ordinals,
            self.turn_ids,
            self.size,
            self.spaces,
            owner=self.id if spawned else None,
        )
        source = {"subagent": {"thread_spawn": {"parent_thread_id": self.id, "depth": 1}}}
        fields: dict[str, Any] = {"source": source} if spawned else {"forked_from_id": self.id}
        if names_ordinal:
            fields["subagent_history_start_ordinal"] = str(len(self.history) + 1)
        other.meta(**fields)
        moment = stamp(self.clock.now)
        for line in self.history:
            at = moment if restamped else line["timestamp"]
            other.write(line["type"], line["payload"], at=at)
        other.total, other.last = [*self.total], self.last
        if not spawned:
            self.home.truth.context[other.id] = self.home.truth.context.get(self.id)
        return other

    def half_line(self) -> None:
        """Append a line that is still being written."""
        text = json.dumps(
            {"timestamp": self.clock.tick(), "type": "event_msg", "payload": self.last}
        )
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text[: len(text) // 2])

    def compress(self, with_: Callable[[bytes], bytes], *, keep: bool = False) -> Path:
        """Compress the file, as Codex does after a week."""
        packed = Path(f"{self.path}.zst")
        packed.write_bytes(with_(self.path.read_bytes()))
        if not keep:
            self.path.unlink()
        return packed


def usage(tokens: Tokens) -> dict[str, int]:
    """Return tokens in Codex's format, where the input includes cached tokens."""
    return {
        "input_tokens": tokens.prompt,
        "cached_input_tokens": tokens.read,
        "cache_write_input_tokens": tokens.write,
        "output_tokens": tokens.output,
        "reasoning_output_tokens": tokens.reasoning,
        "total_tokens": tokens.prompt + tokens.output,
    }


def everyday(home: CodexHome, root: Path, turns: int = 5, **options: Any) -> Rollout:
    """Write a typical thread."""
    thread = home.thread(root, **options)
    for turn in range(turns):
        thread.begin_turn()
        for _ in range(3):
            thread.call(repeats=turn % 3)
        thread.end_turn()
        if turn % 3 == 1:
            thread.compact()
            thread.reset_totals()
    return thread
