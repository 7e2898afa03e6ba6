"""Generates Cline's sessions since version 4, with known totals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "claude-sonnet-4-5"


@dataclass
class SessionsHome:
    """A folder with Cline's sessions."""

    folder: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def session(self, root: Path) -> ClineSession:
        """Start a session that works in `root`."""
        made = ClineSession(self, f"{self.clock.rng.getrandbits(40)}_{self.clock.id(5)}", root)
        made.folder.mkdir(parents=True)
        made.manifest()
        made.write()
        self.truth.context[made.id] = None
        return made


@dataclass
class ClineSession:
    """A session or its sub-agent. Each new message rewrites the file."""

    home: SessionsHome
    id: str
    root: Path
    child: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cached = 0

    @property
    def folder(self) -> Path:
        """The folder of the session's files."""
        return self.home.folder / self.id

    @property
    def path(self) -> Path:
        """The path of the messages."""
        return self.folder / f"{self.child or self.id}.messages.json"

    def manifest(self, **fields: Any) -> None:
        """Write the manifest. Its title is derived from the first prompt."""
        known = {
            "version": 1, "session_id": self.id, "source": "cli", "status": "running",
            "provider": "anthropic", "model": MODEL, "cwd": str(self.root),
            "workspace_root": str(self.root), "prompt": self.home.clock.text(80),
            "metadata": {"title": self.home.clock.text(80)}, **fields,
        }  # fmt: skip
        (self.folder / f"{self.id}.json").write_text(json.dumps(known, indent=2))

    def write(self) -> None:
        """Write all messages."""
        kept = {
            "version": 1, "updated_at": self.home.clock.tick(),
            "agent": "subagent" if self.child else "lead", "sessionId": self.id,
            "messages": self.messages, "system_prompt": self.home.clock.text(200),
        }  # fmt: skip
        self.path.write_text(json.dumps(kept, indent=2) + "\n")

    def call(self, **fields: Any) -> None:
        """Add a prompt, and a reply with its usage."""
        clock = self.home.clock
        clock.tick()
        rng, at = clock.rng, int(clock.now.timestamp() * 1000)
        tokens = Tokens(
            rng.randrange(1, 60), self.cached, rng.randrange(50, 900), output=rng.randrange(9, 400)
        )
        self.cached += tokens.write
        metrics = {
            "inputTokens": tokens.prompt, "outputTokens": tokens.output,
            "cacheReadTokens": tokens.read, "cacheWriteTokens": tokens.write, "cost": 0.0123,
        }  # fmt: skip
        asked = {"id": clock.id(21), "role": "user", "content": clock.text(300), "ts": at - 1}
        reply = {
            "id": clock.id(21), "role": "assistant", "ts": at, "metrics": metrics,
            "content": [{"type": "text", "text": clock.text(300) + '{"metrics":{"inputTokens":9}}'}],
            "modelInfo": {"id": MODEL, "provider": "anthropic"}, **fields,
        }  # fmt: skip
        self.messages += [asked, reply]
        self.write()
        self.home.truth.calls[reply["id"]] = (self.id, tokens)
        if not self.child:
            self.home.truth.context[self.id] = tokens.prompt + tokens.output

    def subagent(self) -> ClineSession:
        """Add a sub-agent with one call."""
        made = ClineSession(self.home, self.id, self.root, f"{self.id}__{self.home.clock.id(8)}")
        made.call()
        return made


def everyday(home: SessionsHome, root: Path, calls: int = 4) -> ClineSession:
    """Write a typical session."""
    made = home.session(root)
    for _ in range(calls):
        made.call()
    made.subagent()
    return made
