"""Generates Claude Code's transcripts with known totals."""

from __future__ import annotations

import json
import os
import re
import unicodedata
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from benchmarks.agents.truth import Clock, Tokens, Truth, append

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "claude-opus-5"


@dataclass
class ClaudeHome:
    """A folder `~/.claude` with sessions."""

    folder: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def session(self, root: Path, *, slug: str | None = None, spaces: bool = False) -> Transcript:
        """Start a session that works in `root`."""
        project = self.folder / "projects" / (slug or slug_of(root))
        return Transcript(self, project, self.clock.uuid(), str(root), spaces=spaces)


@dataclass
class Transcript:
    """The file of a session. Each method appends what Claude Code would append."""

    home: ClaudeHome
    project: Path
    id: str
    cwd: str
    model: str = MODEL
    size: int = 400
    """The approximate number of characters of a message."""
    spaces: bool = False
    trap_every: int = 1
    """One in this many replies contains a trap for careless readers."""
    history: list[dict[str, Any]] = field(default_factory=list)
    branch: str = "main"

    def __post_init__(self) -> None:
        self.clock = self.home.clock
        self.cached = 0
        self.parent: str | None = None
        self.home.truth.context.setdefault(self.id, None)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.project / f"{self.id}.jsonl"

    def write(self, *lines: dict[str, Any], path: Path | None = None) -> None:
        """Append lines. A copy of the session will repeat them."""
        self.history += lines if path is None else ()
        append(path or self.path, *lines, spaces=self.spaces)

    def line(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return a line with the fields that all lines have in common."""
        own = self.clock.uuid()
        common = {
            "parentUuid": self.parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": self.cwd,
            "sessionId": self.id,
            "version": "2.1.240",
            "gitBranch": self.branch,
            "type": kind,
        }
        self.parent = own
        return {**common, "uuid": own, "timestamp": self.clock.tick(), **fields}

    def user(self) -> None:
        """Append a user message whose text looks like usage."""
        text = self.clock.text(self.size) + '"usage":{"input_tokens":999999}'
        self.write(self.line("user", message={"role": "user", "content": text}))

    def tokens(self) -> Tokens:
        """Return the tokens of the next call, which reads everything sent before from the cache."""
        rng = self.clock.rng
        write = rng.randrange(200, 3_000)
        hour = write if rng.random() < 0.3 else 0
        made = Tokens(rng.randrange(1, 40), self.cached, write, hour, rng.randrange(20, 900))
        self.cached += write
        return made

    def reply(self, blocks: int = 3, **message: Any) -> dict[str, Any]:
        """Append a reply, with a line for each block. Only the last line has the whole output."""
        tokens, name = self.tokens(), f"msg_01{self.clock.id()}"
        request = f"req_{self.clock.id()}"
        line: dict[str, Any] = {}
        for block in range(blocks):
            last = block == blocks - 1
            output = tokens.output if last else min(tokens.output, 1 + 2 * block)
            body = self.message(name, tokens._replace(output=output), last=last, **message)
            line = self.line("assistant", requestId=request, message=body)
            self.write(line)
        self.took(name, tokens)
        return line

    def nameless(self) -> None:
        """Append replies without a request id, without a message id, and without both."""
        for name, request in (
            (f"msg_05{self.clock.id()}", None),
            (None, self.clock.id()),
            (None, None),
        ):
            tokens = self.tokens()
            named = {"requestId": request} if request else {}
            body = self.message("", tokens, id=name)
            line = self.line("assistant", message=body, **named)
            self.write(line)
            self.took(name or request or line["uuid"], tokens)

    def took(self, name: str, tokens: Tokens) -> None:
        """Add a call of the main conversation to the truth."""
        self.home.truth.calls[name] = (self.id, tokens)
        self.home.truth.context[self.id] = tokens.prompt + tokens.output

    def message(
        self, name: str, tokens: Tokens, *, last: bool = True, **fields: Any
    ) -> dict[str, Any]:
        """Return the `message` of a line. Its tool input looks like usage to a text search."""
        traps = self.clock.rng.randrange(self.trap_every) == 0
        trap = {"id": None, "usage": {"input_tokens": 777_777}, "type": "assistant"}
        content = [
            {"type": "text", "text": self.clock.text(self.size)},
            {
                "type": "tool_use",
                "id": f"toolu_{self.clock.id()}",
                "name": "Edit",
                "input": {**(trap if traps else {}), "file_path": self.clock.text(60)},
            },
        ]
        body = {
            "model": self.model,
            "id": name,
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": "end_turn" if last else None,
            "stop_sequence": None,
            "usage": usage(tokens, **({"speed": None} if traps else {})),
        }
        return {**body, **fields}

    def tool_result(self) -> None:
        """Append a tool result with usage, as sub-agents return it."""
        content = [{"type": "tool_result", "content": self.clock.text(self.size)}]
        total = {"totalTokens": 88_888, "usage": {"input_tokens": 88_888, "output_tokens": 8}}
        message = {"role": "user", "content": content}
        self.write(self.line("user", message=message, toolUseResult=total))

    def synthetic(self) -> None:
        """Append the message that Claude Code writes when a call fails."""
        body = self.message(self.clock.uuid(), Tokens(), model="<synthetic>")
        self.write(self.line("assistant", isApiErrorMessage=True, message=body))

    def compact(self) -> None:
        """Append a compaction. The context's size is unknown until the next reply."""
        meta = {"trigger": "auto", "preTokens": self.cached}
        self.write(
            self.line("system", subtype="compact_boundary", compactMetadata=meta),
            self.line(
                "user",
                isCompactSummary=True,
                message={"role": "user", "content": self.clock.text(self.size)},
            ),
        )
        self.cached = self.clock.rng.randrange(1_000, 9_000)
        self.home.truth.context[self.id] = None

    def compact_with_costs(self) -> None:
        """Append a compaction as in versions that write the session's usage before and after it.

        The difference is the usage of the call that wrote the summary.
        """
        self.reply()  # the session's usage is written at the end of a turn
        before, made, left = self.tokens(), self.tokens(), self.clock.rng.randrange(1_000, 9_000)
        after = Tokens(*(one + other for one, other in zip(before, made, strict=True)))
        meta = {"trigger": "auto", "preTokens": self.cached, "postTokens": left}
        text = {"role": "user", "content": self.clock.text(self.size)}
        boundary = self.line("system", subtype="compact_boundary", compactMetadata=meta)
        summary = self.line("user", isCompactSummary=True, message=text)
        self.write(self.cost_state(before), boundary, summary, self.cost_state(after))
        at = datetime.fromisoformat(summary["timestamp"]).isoformat()
        name = f"summary/{at}/{made.prompt}/{made.output}"
        self.home.truth.calls[name] = (self.id, made)
        self.home.truth.context[self.id] = left

    def cost_state(self, total: Tokens) -> dict[str, Any]:
        """Return a `cost-state` line with the session's usage so far."""
        used = {
            "inputTokens": total.fresh, "cacheReadInputTokens": total.read,
            "cacheCreationInputTokens": total.write, "outputTokens": total.output,
            "cacheCreationEphemeral1hInputTokens": total.write_1h, "costUSD": 0.5,
        }  # fmt: skip
        return {"type": "cost-state", "sessionId": self.id, "modelUsage": {self.model: used}}

    def sidechain(self, *, replays: dict[str, Any] | None = None) -> None:
        """Append a sub-agent's line as in version 1, or repeat a message."""
        if replays is not None:
            again = {**replays, "isSidechain": True, "requestId": f"req_{self.clock.id()}"}
            self.write({**again, "uuid": self.clock.uuid()})
            return
        name, tokens = f"msg_02{self.clock.id()}", Tokens(7, 0, 50, 0, 3)
        body = self.message(name, tokens, model="claude-haiku-4-5")
        self.write({**self.line("assistant", message=body), "isSidechain": True})
        self.home.truth.calls[name] = (self.id, tokens)

    def subagent(self, *, workflow: str | None = None) -> None:
        """Write a sub-agent's file and a journal to the session's folder."""
        folder = self.project / self.id / "subagents"
        if workflow:
            folder = folder / "workflows" / workflow
        path = folder / f"agent-{self.clock.id(8)}.jsonl"
        for _ in range(3):
            name, tokens = f"msg_03{self.clock.id()}", Tokens(3, 900, 100, 0, 40)
            body = self.message(name, tokens)
            line = {**self.line("assistant", message=body), "isSidechain": True, "agentId": "a"}
            self.write(line, path=path)
            self.home.truth.calls[name] = (self.id, tokens)
        append(folder / "journal.jsonl", {"type": "assistant", "message": {"usage": {}}})

    def copy(self, *, background: bool = False, keeps: int | None = None) -> Transcript:
        """Resume or fork the session: copy its history under a new id."""
        other = Transcript(
            self.home, self.project, self.clock.uuid(), self.cwd, self.model, self.size, self.spaces
        )
        marks = {"sessionKind": "bg"} if background else {}
        other.write(*({**line, "sessionId": other.id, **marks} for line in self.history[:keeps]))
        other.cached, other.parent = self.cached, self.parent
        self.home.truth.context[other.id] = self.home.truth.context[self.id]
        return other

    def half_line(self) -> None:
        """Append a line that is still being written."""
        body = self.message(f"msg_04{self.clock.id()}", Tokens(9, 9, 9, 0, 9))
        text = json.dumps(self.line("assistant", message=body))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text[: len(text) // 2])


def usage(tokens: Tokens, **fields: Any) -> dict[str, Any]:
    """Return the `usage` of a message."""
    return {
        "input_tokens": tokens.fresh,
        "cache_creation_input_tokens": tokens.write,
        "cache_read_input_tokens": tokens.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.write - tokens.write_1h,
            "ephemeral_1h_input_tokens": tokens.write_1h,
        },
        "output_tokens": tokens.output,
        "service_tier": "standard",
        **fields,
    }


def slug_of(root: Path) -> str:
    """Return the name of a project's folder."""
    name = re.sub(r"[^a-zA-Z0-9]", "-", unicodedata.normalize("NFC", os.path.realpath(root)))
    return name if len(name) <= 200 else f"{name[:200]}-{zlib.crc32(name.encode()):x}"


def everyday(home: ClaudeHome, root: Path, turns: int = 6) -> Transcript:
    """Write a typical session."""
    session = home.session(root, spaces=bool(home.clock.rng.getrandbits(1)))
    for turn in range(turns):
        session.user()
        first = session.reply()
        session.tool_result()
        session.reply(blocks=1)
        if turn % 3 == 1:
            session.subagent(workflow="w1" if turn % 2 else None)
            session.sidechain()
            session.sidechain(replays=first)
        if turn % 4 == 3:
            session.synthetic()
            session.compact()
    return session
