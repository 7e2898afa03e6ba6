"""Generates VS Code's chat sessions, debug logs and traces with known totals."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from benchmarks.agents.truth import Clock, Tokens, Truth, append

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "claude-sonnet-4.6"
INPUT, OUTPUT = 168_000, 32_000
_SEALED = (1, 2, 3)


@dataclass
class CodeHome:
    """VS Code's user data folder."""

    user: Path
    truth: Truth = field(default_factory=Truth)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = Clock(self.seed)

    def storage(self, root: Path, **workspace: Any) -> Path:
        """Create a folder in `workspaceStorage` for `root`. Each call creates another one."""
        made = self.user / "workspaceStorage" / self.clock.id(32)
        made.mkdir(parents=True)
        about = workspace or {"folder": "file://" + quote(os.path.realpath(root))}
        (made / "workspace.json").write_text(json.dumps(about, indent=2))
        return made

    def session(self, root: Path, *, flat: bool = False, storage: Path | None = None) -> ChatLog:
        """Start a chat session for `root`."""
        name = self.clock.uuid()
        folder = (storage or self.storage(root)) / "chatSessions"
        made = ChatLog(self, folder / f"{name}.{'json' if flat else 'jsonl'}", name)
        self.truth.context[name] = None
        made.save()
        return made


@dataclass
class ChatLog:
    """A session. `save` writes the changes of `state`, which has VS Code's structure."""

    home: CodeHome
    path: Path
    id: str
    size: int = 400
    log_every: int = 1_024
    state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = self.home.clock
        self.prompt = 9_000
        self._saved: dict[str, Any] | None = None
        self._entries = 0
        self.state = {
            "version": 3,
            "creationDate": self.now(),
            "initialLocation": "panel",
            "responderUsername": "GitHub Copilot",
            "sessionId": self.id,
            "requests": [],
            "inputState": {"mode": {"id": "agent", "kind": "agent"}, "inputText": ""},
        }
        self.select(f"copilot/{MODEL}", INPUT, OUTPUT)

    def now(self) -> int:
        """Return a time in milliseconds since 1970, which increases with each call."""
        self.clock.tick()
        return int(self.clock.now.timestamp() * 1000)

    def select(self, model: str, prompt: int, output: int, **configuration: Any) -> None:
        """Select a model."""
        metadata = {"id": model, "maxInputTokens": prompt, "maxOutputTokens": output}
        selected: dict[str, Any] = {"identifier": model, "metadata": metadata}
        if configuration:
            selected["modelConfiguration"] = configuration
        self.state["inputState"]["selectedModel"] = selected
        window = configuration.get("contextSize", prompt) + output
        self.home.truth.window[self.id] = window if prompt else None

    def begin(self, model: str = f"copilot/{MODEL}") -> dict[str, Any]:
        """Add a user request that is still running."""
        text = self.clock.text(self.size) + '"promptTokens":999999'
        request: dict[str, Any] = {
            "requestId": f"request_{self.clock.uuid()}",
            "timestamp": self.now(),
            "modelId": model,
            "agent": {"id": "github.copilot.editsAgent", "name": "agent"},
            "message": {"text": text, "parts": []},
            "variableData": {"variables": []},
            "response": [],
            "modelState": {"value": 0},
        }
        self.state["requests"].append(request)
        return request

    def call(self, request: dict[str, Any], *, reports: bool = True) -> tuple[int, int]:
        """Add a call to a turn. Only the last call's prompt tokens are stored."""
        rng = self.clock.rng
        self.prompt += rng.randrange(200, 2_000)
        output = rng.randrange(30, 500)
        request["response"].append({"value": self.clock.text(self.size), "promptTokens": 7})
        if reports:
            request["promptTokens"], request["outputBuffer"] = self.prompt, OUTPUT
            request["completionTokens"] = request.get("completionTokens", 0) + output
            credits = request.get("copilotCredits", 0) + rng.randrange(1, 300) / 100
            request["copilotCredits"] = round(credits, 2)
        return self.prompt, output

    def end(self, request: dict[str, Any], last: tuple[int, int], **metadata: Any) -> None:
        """End a turn, with the numbers of its last call and tool results."""
        rounds = [{"id": self.clock.uuid(), "response": self.clock.text(self.size)}]
        request["modelState"] = {"value": 1, "completedAt": self.now()}
        request["result"] = {
            "timings": {"totalElapsed": 5},
            "metadata": {
                "promptTokens": last[0],
                "outputTokens": last[1],
                "resolvedModel": MODEL,
                "toolCallRounds": rounds,
                "toolCallResults": {"call_1": {"content": self.clock.text(self.size)}},
                **metadata,
            },
        }

    def turn(self, calls: int = 3, **options: Any) -> dict[str, Any]:
        """Add a complete turn, and save it several times."""
        request = self.begin(**options)
        last = (0, 0)
        for number in range(calls):
            last = self.call(request)
            if number % 2:
                self.save()
        self.end(request, last)
        self.save()
        self.took(request)
        self.home.truth.context[self.id] = sum(last)
        return request

    def took(self, request: dict[str, Any]) -> None:
        """Add a turn to the truth. Only the newest call's input is known."""
        tokens = Tokens(request["promptTokens"], output=request["completionTokens"])
        self.home.truth.calls[request["requestId"]] = (self.id, tokens)

    def compact(self) -> None:
        """Add a `/compact`, which reports the size before the compaction."""
        request = self.begin()
        request["slashCommand"] = {"name": "compact"}
        self.end(request, self.call(request))
        self.save()
        self.took(request)
        self.home.truth.context[self.id] = None
        self.prompt = 6_000

    def undo(self, keep: int) -> None:
        """Keep this number of turns, and remove the others, which were still billed."""
        del self.state["requests"][keep:]
        self.save()
        newest = self.state["requests"][-1] if self.state["requests"] else None
        size = newest and newest["promptTokens"] + newest["result"]["metadata"]["outputTokens"]
        self.home.truth.context[self.id] = size

    def save(self) -> None:
        """Write what VS Code writes when it saves the session."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        now = json.loads(json.dumps(self.state))
        if self.path.suffix == ".json":
            self.path.write_text(json.dumps(now, indent=1))
        elif self._saved is None or self._entries > self.log_every:
            self.path.write_text("")
            self._entries = 1
            append(self.path, {"kind": 0, "v": now})
        else:
            lines = [*_changes(self._saved, now)]
            self._entries += len(lines)
            append(self.path, *lines)
        self._saved = now

    def write(self, *lines: dict[str, Any]) -> None:
        """Append lines."""
        append(self.path, *lines)

    def half_line(self) -> None:
        """Append a line that is still being written."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write('{"kind":1,"k":["requests",0,"promptTokens"],"v":12')

    def debug_log(self) -> DebugLog:
        """Return the extension's debug log of this session."""
        folder = self.path.parents[1] / "GitHub.copilot-chat" / "debug-logs" / self.id
        return DebugLog(self, folder)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of an `ObjectMutationLog` between two states."""
    lines: list[dict[str, Any]] = []
    old, new = before["requests"], now["requests"]
    same = 0
    while same < min(len(old), len(new)) and old[same]["requestId"] == new[same]["requestId"]:
        same += 1
    for number in range(same):
        if old[number]["modelState"]["value"] not in _SEALED:
            lines += _fields(["requests", number], old[number], new[number])
    if len(old) > same:
        lines.append({"kind": 2, "k": ["requests"], "i": same, "v": new[same:]})
    elif len(new) > same:
        lines.append({"kind": 2, "k": ["requests"], "v": new[same:]})
    rest = [{k: v for k, v in one.items() if k != "requests"} for one in (before, now)]
    return lines + _fields([], rest[0], rest[1])


def _fields(path: list[Any], old: dict[str, Any], new: dict[str, Any]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for key in new:
        place, was, value = [*path, key], old.get(key), new[key]
        if was == value:
            continue
        if key == "response":
            lines.append({"kind": 2, "k": place, "v": value[len(was or []) :]})
        elif key == "inputState" and was:
            lines += _fields(place, was, value)
        else:
            lines.append({"kind": 1, "k": place, "v": value})
    return lines + [{"kind": 3, "k": [*path, key]} for key in old if key not in new]


@dataclass
class DebugLog:
    """The debug log of a session and its child sessions."""

    chat: ChatLog
    folder: Path

    def __post_init__(self) -> None:
        self.truth, self.clock = self.chat.home.truth, self.chat.clock

    def write(self, kind: str, child: str | None = None, **fields: Any) -> dict[str, Any]:
        """Append a line."""
        line = {
            "v": 1, "ts": self.chat.now(), "dur": 5, "sid": child or self.chat.id, "type": kind,
            "name": kind, "spanId": self.clock.id(16), "status": "ok", "attrs": {}, **fields,
        }  # fmt: skip
        name = f"runSubagent-{child}.jsonl" if child else "main.jsonl"
        append(self.folder / name, line)
        return line

    def begin(self) -> None:
        """Append the first line."""
        self.write("session_start", attrs={"copilotVersion": "0.40", "vscodeVersion": "1.126"})

    def call(self, name: str = "panel/editAgent", child: str | None = None, **more: Any) -> Tokens:
        """Append a call."""
        rng = self.clock.rng
        cached, fresh, output = self.chat.prompt, rng.randrange(50, 900), rng.randrange(20, 500)
        tokens = Tokens(fresh, cached, output=output)
        attrs = {
            "model": MODEL, "inputTokens": tokens.prompt, "cachedTokens": cached,
            "outputTokens": output, "copilotUsageNanoAiu": rng.randrange(10**9),
            "debugName": name, "responseId": self.clock.uuid(),
        }  # fmt: skip
        line = self.write("llm_request", child, attrs=attrs, **more)
        self.truth.calls[line["spanId"]] = (self.chat.id, tokens)
        if child is None and name.startswith("panel"):
            self.chat.prompt = tokens.prompt
            self.truth.context[self.chat.id] = tokens.prompt + output
        return tokens


class Traces:
    """The extension's database of traces. The connection stays open, as in VS Code."""

    def __init__(self, home: CodeHome) -> None:
        self.home, self.clock = home, home.clock
        self.path = home.user / "globalStorage" / "github.copilot-chat" / "agent-traces.db"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.executescript(
            "CREATE TABLE IF NOT EXISTS spans (span_id TEXT PRIMARY KEY, trace_id TEXT,"
            " parent_span_id TEXT, name TEXT, start_time_ms INTEGER, end_time_ms INTEGER,"
            " status_code INTEGER, operation_name TEXT, conversation_id TEXT,"
            " chat_session_id TEXT, request_model TEXT, response_model TEXT,"
            " input_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER,"
            " reasoning_tokens INTEGER, agent_name TEXT, turn_index INTEGER);"
            "CREATE TABLE IF NOT EXISTS span_attributes (span_id TEXT, key TEXT, value TEXT,"
            " PRIMARY KEY (span_id, key));"
        )

    def span(self, session: str, tokens: Tokens, kind: str = "chat", parent: str = "") -> str:
        """Add a span. Only its attributes contain the cache writes."""
        name, now = self.clock.id(16), int(self.clock.now.timestamp() * 1000)
        self.clock.tick()
        self.db.execute(
            "INSERT INTO spans VALUES (?, 't', NULL, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            (
                name, f"{kind} {MODEL}", now, now + 5, kind, session, session, MODEL, MODEL,
                tokens.prompt, tokens.output, tokens.read, tokens.reasoning, "editAgent",
            ),
        )  # fmt: skip
        attributes = {"gen_ai.usage.cache_creation.input_tokens": tokens.write}
        if parent:
            attributes |= {"copilot_chat.parent_chat_session_id": parent}  # type: ignore[dict-item]
        rows = ((name, key, str(value)) for key, value in attributes.items())
        self.db.executemany("INSERT INTO span_attributes VALUES (?, ?, ?)", rows)
        return name

    def turn(self, session: str, calls: int = 3) -> None:
        """Add a turn: an `invoke_agent` span with the total of its calls."""
        rng, total = self.clock.rng, 0
        for _ in range(calls):
            tokens = Tokens(
                rng.randrange(5, 50), rng.randrange(5_000, 20_000), rng.randrange(900), 0,
                rng.randrange(40, 400), rng.randrange(30),
            )  # fmt: skip
            name = self.span(session, tokens)
            total += tokens.prompt
            self.home.truth.calls[name] = (session, tokens)
            self.home.truth.context[session] = tokens.prompt + tokens.output
        self.span(session, Tokens(total, output=5), "invoke_agent")
        child = self.clock.uuid()
        tokens = Tokens(700, output=30)
        self.home.truth.calls[self.span(child, tokens, parent=session)] = (session, tokens)


def everyday(home: CodeHome, root: Path, turns: int = 4, **options: Any) -> ChatLog:
    """Write a typical session."""
    chat = home.session(root, **options)
    for _ in range(turns):
        chat.turn()
    return chat
