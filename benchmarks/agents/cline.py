"""Generates the tasks of Cline and its derivatives, with known totals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "claude-sonnet-4-5"


@dataclass
class ClineHome:
    """The extension's folder. With `own_items`, each task's file names its project, as in Roo Code."""

    folder: Path
    own_items: bool = False
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)
        self.items: list[dict[str, Any]] = []

    def now(self) -> int:
        """Return a time in milliseconds since 1970, which increases with each call."""
        self.clock.tick()
        return int(self.clock.now.timestamp() * 1000)

    def task(self, root: Path) -> Task:
        """Start a task that works in `root`."""
        made = Task(self, str(self.now()))
        made.path.parent.mkdir(parents=True)
        item = {"id": made.id, "task": "please …", "cwdOnTaskInitialization": str(root)}
        self.items.append(item)
        if self.own_items:
            own = {"id": made.id, "task": "please …", "workspace": str(root)}
            (made.path.parent / "history_item.json").write_text(json.dumps(own))
        else:
            state = self.folder / "state" / "taskHistory.json"
            state.parent.mkdir(parents=True, exist_ok=True)
            state.write_text(json.dumps(self.items))
        used = [{"ts": self.now(), "model_id": MODEL, "model_provider_id": "anthropic"}]
        metadata = json.dumps({"files_in_context": [], "model_usage": used})
        (made.path.parent / "task_metadata.json").write_text(metadata)
        self.truth.context[made.id] = None
        return made


@dataclass
class Task:
    """A task. Each new message rewrites the file."""

    home: ClineHome
    id: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cached = 0

    @property
    def path(self) -> Path:
        """The path of the messages."""
        return self.home.folder / "tasks" / self.id / "ui_messages.json"

    def say(self, kind: str, text: str, **fields: Any) -> dict[str, Any]:
        """Add a message."""
        made = {"ts": self.home.now(), "type": "say", "say": kind, "text": text, **fields}
        self.messages.append(made)
        self.path.write_text(json.dumps(self.messages))
        return made

    def call(self) -> None:
        """Add a call, which has no numbers at first."""
        rng = self.home.clock.rng
        tokens = Tokens(
            rng.randrange(1, 60), self.cached, rng.randrange(50, 900), output=rng.randrange(9, 400)
        )
        self.cached += tokens.write
        prompt = self.home.clock.text(300) + '{"tokensIn":99999}'
        made = self.say("api_req_started", json.dumps({"request": prompt}))
        numbers = {
            "request": prompt, "tokensIn": tokens.fresh, "tokensOut": tokens.output,
            "cacheReads": tokens.read, "cacheWrites": tokens.write, "cost": 0.0123,
        }  # fmt: skip
        made["text"] = json.dumps(numbers)
        self.say("text", self.home.clock.text(300))
        self.home.truth.calls[f"{self.id}/{made['ts']}"] = (self.id, tokens)
        self.home.truth.context[self.id] = tokens.prompt + tokens.output


def everyday(home: ClineHome, root: Path, calls: int = 4) -> Task:
    """Write a typical task."""
    made = home.task(root)
    for _ in range(calls):
        made.call()
    return made
