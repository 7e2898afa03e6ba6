"""Tests the breakdown of a context by part, with generated sessions whose parts are known."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.copilot import CodeHome, Traces
from benchmarks.agents.copilot_cli import CliHome
from benchmarks.agents.databases import CrushStore, GooseStore, ZedStore
from benchmarks.agents.opencode import OpenHome
from benchmarks.agents.truth import Tokens
from sidecar.agents.context_sizes import ContextSizes, unpack
from sidecar.agents.reader_registry import reader_of
from sidecar.agents.session_events import Store, StoredSession
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.tasks import Workers
from sidecar.workspace.agent_sessions import SizesReader, read_sizes
from sidecar.workspace.usage_details import label_parts
from tests.file_opens import recorded_opens

SYSTEM = 14_000
WORDS = "the parser reads each token of a file and returns its length in bytes for caching"
POINTS = 5.0


class Script:
    """A random session, consisting of parts with known token counts."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tokens = Counter({"System prompt and tools": SYSTEM})
        self.count = Tokenizers().for_model("gpt-4o").count

    def text(self, label: str, words: int) -> str:
        """Return random words, and add their tokens to `label`.

        The number of words is between half and twice `words`.
        """
        count = self.rng.randrange(words // 2, 2 * words)
        text = " ".join(self.rng.choices(WORDS.split(), k=count))
        self.tokens[label] += self.count(text)
        return text

    @property
    def total(self) -> int:
        return sum(self.tokens.values())


TOOLS = ("Read", "Bash", "Grep")
SUMMARY = "Summary of earlier messages"


def write_claude(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    session = ClaudeHome(folder).session(root)

    def line(kind: str, content: Any, prompt: int = 0) -> None:
        body: dict[str, Any] = {"role": kind, "content": content}
        if prompt:
            body |= {"id": session.clock.id(), "model": "claude-opus-5"}
            body["usage"] = {"input_tokens": prompt, "output_tokens": script.total - prompt}
        session.write(session.line(kind, message=body))

    for turn in range(6):
        line("user", script.text("User messages", 80))
        for _ in range(3):
            tool, prompt, call = script.rng.choice(TOOLS), script.total, session.clock.id()
            text = {"type": "text", "text": script.text("Assistant messages", 60)}
            query = {"query": script.text("Tool calls", 30)}
            line(
                "assistant",
                [text, {"type": "tool_use", "id": call, "name": tool, "input": query}],
                prompt,
            )
            answer = script.text(f"Results of {tool}", 400)
            line("user", [{"type": "tool_result", "tool_use_id": call, "content": answer}])
        if turn == 2:
            session.write(session.line("system", subtype="compact_boundary"))
            script.tokens = Counter({"System prompt and tools": SYSTEM})
    prompt = script.total
    line("assistant", [{"type": "text", "text": script.text("Assistant messages", 60)}], prompt)
    return str(session.path), session.id


def write_codex(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    thread = CodexHome(folder).thread(root)

    def item(kind: str, **fields: Any) -> None:
        thread.write("response_item", {"type": kind, **fields})

    def message(role: str, text: str) -> None:
        item("message", role=role, content=[{"type": "input_text", "text": text}])

    message("user", "<environment_context>" + script.text("Instructions", 300))
    for _ in range(8):
        message("user", script.text("User messages", 80))
        prompt, call = script.total, thread.clock.id()
        message("assistant", script.text("Assistant messages", 200))
        item("function_call", name="shell", call_id=call, arguments=script.text("Tool calls", 60))
        thread.count(Tokens(prompt, output=script.total - prompt))
        item("function_call_output", call_id=call, output=script.text("Results of shell", 500))
    prompt = script.total
    message("assistant", script.text("Assistant messages", 60))
    thread.count(Tokens(prompt, output=script.total - prompt))
    return str(thread.path), thread.id


def write_opencode(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    home = OpenHome(folder)
    session = home.session(root, "first")

    def part(message: str, **data: Any) -> None:
        now = home.now()
        home.put(
            "part", id=f"prt_{now}", message_id=message, session_id=session.id,
            time_created=now, data=json.dumps(data),
        )  # fmt: skip

    for _ in range(10):
        name, *_ = session.message("user")
        part(name, type="text", text=script.text("User messages", 80))
        prompt = script.total
        numbers = {"input": prompt, "output": 1, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        name, *_ = session.message("assistant", tokens=numbers)
        part(name, type="text", text=script.text("Assistant messages", 150))
        given = {"command": script.text("Tool calls", 40)}
        part(name, type="tool", tool="bash",
             state={"input": given, "output": script.text("Results of bash", 400)})  # fmt: skip
    home.close()
    return str(home.path), session.id


class Step(NamedTuple):
    """A call with the preceding user message, the reply and the tool result."""

    user: str
    prompt: int
    text: str
    tool: str
    query: str
    result: str


def draw_steps(script: Script, count: int = 14) -> list[Step]:
    steps = []
    for number in range(count):
        user = script.text("User messages", 60) if number % 3 == 0 else ""
        tool, prompt = script.rng.choice(TOOLS), script.total
        text, query = script.text("Assistant messages", 80), script.text("Tool calls", 40)
        result = script.text(f"Results of {tool}", 350)
        steps.append(Step(user, prompt, text, tool, query, result))
    return steps


def write_lines(path: Path, lines: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def write_document(path: Path, document: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return str(path)


def write_qwen(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    lines: list[Any] = []
    for compacted in (True, False):
        for step in draw_steps(script):
            if step.user:
                message = {"role": "user", "parts": [{"text": step.user}]}
                lines.append({"type": "user", "provenance": "real_user", "message": message})
            call = {"name": step.tool, "args": {"query": step.query}}
            usage = {"promptTokenCount": step.prompt, "totalTokenCount": step.prompt + 9}
            parts = [{"text": step.text}, {"functionCall": call}]
            lines.append({"type": "assistant", "message": {"parts": parts}, "usageMetadata": usage})
            answer = {"name": step.tool, "response": {"output": step.result}}
            lines.append(
                {"type": "tool_result", "message": {"parts": [{"functionResponse": answer}]}}
            )
        if compacted:
            script.tokens = Counter({"System prompt and tools": SYSTEM})
            history = [{"role": "user", "parts": [{"text": script.text(SUMMARY, 300)}]}]
            payload = {"compressedHistory": history}
            lines.append(
                {"type": "system", "subtype": "chat_compression", "systemPayload": payload}
            )
    return write_lines(folder / "chat.jsonl", lines), "s"


def write_gemini(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    lines: list[Any] = [{"sessionId": "s", "kind": "main"}]
    for number, step in enumerate(draw_steps(script)):
        if step.user:
            lines.append({"id": f"u{number}", "type": "user", "content": [{"text": step.user}]})
        reply = {"id": f"g{number}", "type": "gemini", "content": step.text}
        lines.append(reply)  # the message is written again after the tools have run
        result = [{"functionResponse": {"name": step.tool, "response": {"output": step.result}}}]
        call = {"name": step.tool, "args": {"query": step.query}, "result": result}
        tokens = {"input": step.prompt, "output": 9, "tool": 0}
        lines.append({**reply, "tokens": tokens, "toolCalls": [call]})
    removed = {"id": "x", "type": "user", "content": [{"text": "words " * 9_000}]}
    return write_lines(folder / "chat.jsonl", [*lines, removed, {"$rewindTo": "x"}]), "s"


def write_pi(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    lines: list[Any] = [{"type": "session", "id": "s"}]

    def entry(role: str, content: Any, **fields: Any) -> None:
        name, parent = f"e{len(lines)}", lines[-1]["id"] if len(lines) > 1 else None
        message = {"role": role, "content": content, **fields}
        lines.append({"type": "message", "id": name, "parentId": parent, "message": message})

    for step in draw_steps(script):
        if step.user:
            entry("user", [{"type": "text", "text": step.user}])
        call = {"type": "toolCall", "id": "c", "name": step.tool, "arguments": {"q": step.query}}
        usage = {"input": step.prompt, "output": 9}
        entry("assistant", [{"type": "text", "text": step.text}, call], usage=usage)
        entry("toolResult", [{"type": "text", "text": step.result}], toolName=step.tool)
    abandoned = {"role": "user", "content": "words " * 9_000}
    tip = lines.pop()
    lines.append({"type": "message", "id": "x", "parentId": "e3", "message": abandoned})
    removed = {"type": "message", "id": "r", "parentId": tip["id"], "message": abandoned}
    edit = {"type": "context_edit", "id": "c", "parentId": "r", "targetId": "r"}
    shorter = {"type": "context_edit", "id": "d", "parentId": "c", "targetId": tip["id"]}
    kept = tip["message"]["content"]
    tip["message"]["content"] = abandoned["content"]
    edits = [removed, edit | {"replacement": None}, shorter | {"replacement": kept}]
    return write_lines(folder / "session.jsonl", [*lines, tip, *edits]), "s"


def write_kimi(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    lines: list[Any] = []

    def event(kind: str, **fields: Any) -> None:
        lines.append({"type": "context.append_loop_event", "event": {"type": kind, **fields}})

    for compacted in (True, False):
        for step in draw_steps(script):
            if step.user:
                content = [{"type": "text", "text": step.user}]
                message = {"role": "user", "content": content, "origin": {"kind": "user"}}
                lines.append({"type": "context.append_message", "message": message})
            usage = {"inputOther": step.prompt, "output": 9}
            event("content.part", part={"type": "text", "text": step.text})
            event("tool.call", toolCallId="c", name=step.tool, args={"query": step.query})
            lines.append({"type": "usage.record", "usage": usage, "usageScope": "turn"})
            event("tool.result", toolCallId="c", result={"output": step.result})
        if compacted:
            script.tokens = Counter({"System prompt and tools": SYSTEM})
            summary = script.text(SUMMARY, 300)
            lines.append({"type": "context.apply_compaction", "contextSummary": summary})
    return write_lines(folder / "wire.jsonl", lines), "s"


def write_continue(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    history: list[Any] = []
    for step in draw_steps(script):
        if step.user:
            history.append({"message": {"role": "user", "content": step.user}, "contextItems": []})
        usage = {"prompt_tokens": step.prompt, "completion_tokens": 9}
        function = {"name": step.tool, "arguments": json.dumps({"query": step.query})}
        state = {"toolCall": {"function": function}, "output": [{"content": step.result}]}
        message = {"role": "assistant", "content": step.text, "usage": usage}
        history.append({"message": message, "toolCallStates": [state]})
    path = folder / ".continue" / "sessions" / "s.json"
    return write_document(path, {"sessionId": "s", "history": history}), "s"


def anthropic_messages(steps: list[Step], sizes: Callable[[int], dict[str, Any]]) -> list[Any]:
    """Return messages in Anthropic's format.

    Args:
        steps: The model calls.
        sizes: Converts a prompt size to the fields that report it in a reply.
    """
    messages: list[Any] = []
    for step in steps:
        if step.user:
            messages.append({"role": "user", "content": [{"type": "text", "text": step.user}]})
        call = {"type": "tool_use", "id": "c", "name": step.tool, "input": {"query": step.query}}
        content = [{"type": "text", "text": step.text}, call]
        messages.append({"role": "assistant", "content": content, **sizes(step.prompt)})
        result = {"type": "tool_result", "tool_use_id": "c", "content": step.result}
        messages.append({"role": "user", "content": [result]})
    return messages


def write_cline(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    messages = anthropic_messages(
        draw_steps(script), lambda prompt: {"metrics": {"inputTokens": prompt, "outputTokens": 9}}
    )
    return write_document(folder / "s" / "s.messages.json", {"messages": messages}), "s"


def write_roo(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    steps = draw_steps(script)
    shown = [
        {"say": "api_req_started", "text": json.dumps({"tokensIn": step.prompt, "tokensOut": 9})}
        for step in steps
    ]
    sent = anthropic_messages(steps, lambda _: {})
    write_document(folder / "s" / "api_conversation_history.json", sent)
    return write_document(folder / "s" / "ui_messages.json", shown), "s"


def write_amp(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    messages = anthropic_messages(
        draw_steps(script), lambda prompt: {"usage": {"inputTokens": prompt, "outputTokens": 9}}
    )
    for message in messages:
        for block in message["content"]:
            if block["type"] == "tool_result":
                block["toolUseID"] = block.pop("tool_use_id")
                block["run"] = {"status": "done", "result": block.pop("content")}
    return write_document(folder / "T-s.json", {"id": "s", "messages": messages}), "s"


def write_zed(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    messages: list[Any] = []
    usage: dict[str, Any] = {}
    name = ""
    for step in draw_steps(script):
        if step.user:
            name = f"u{len(messages)}"
            messages.append({"User": {"id": name, "content": [{"Text": step.user}]}})
        usage[name] = {"input_tokens": step.prompt, "output_tokens": 9}
        call = {"name": step.tool, "input": {"query": step.query}}
        result = {"tool_name": step.tool, "content": {"Text": step.result}}
        content = [{"Text": step.text}, {"ToolUse": call}]
        messages.append({"Agent": {"content": content, "tool_results": {"c": result}}})
    store = ZedStore(folder / "threads.db")
    document = {"messages": messages, "request_token_usage": usage, "version": "0.3.0"}
    data = json.dumps(document).encode()
    at, folders = "2026-11-25", str(root)
    store.put("threads", id="s", updated_at=at, data_type="json", data=data, folder_paths=folders)
    store.db.close()
    return str(store.path), "s"


def write_goose(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    store = GooseStore(folder / "sessions.db")
    store.db.execute(store.ledger_table)

    def message(role: str, *content: Any) -> None:
        row = ("s", role, json.dumps(content))
        store.db.execute(
            "INSERT INTO messages (session_id, role, content_json) VALUES (?, ?, ?)", row
        )

    for step in draw_steps(script):
        if step.user:
            message("user", {"type": "text", "text": step.user})
        store.db.execute(
            "INSERT INTO usage_ledger (session_id, model, input_tokens, output_tokens,"
            " created_timestamp) VALUES ('s', 'claude-sonnet-5', ?, 9, 1795600800)",
            (step.prompt,),
        )
        called = {"value": {"name": step.tool, "arguments": {"query": step.query}}}
        request = {"type": "toolRequest", "id": "c", "toolCall": called}
        message("assistant", {"type": "text", "text": step.text}, request)
        value = [{"type": "text", "text": step.result}]
        message("user", {"type": "toolResponse", "id": "c", "toolResult": {"value": value}})
    store.db.close()
    return str(store.path), "s"


def write_copilot(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    home = CliHome(folder)
    session = home.session(root)
    for step in draw_steps(script):
        if step.user:
            home.event(session, "user.message", content=step.user)
        home.db.execute(
            "INSERT INTO assistant_usage_events (session_id, model, input_tokens, output_tokens,"
            " created_at, initiator) VALUES (?, 'gpt-5', ?, 9, '2026-11-25 10:00:00', 'user')",
            (session, step.prompt),
        )
        request = {"toolCallId": "c", "name": step.tool, "arguments": {"query": step.query}}
        home.event(session, "assistant.message", content=step.text, toolRequests=[request])
        result = {"content": step.result}
        home.event(session, "tool.execution_complete", toolCallId="c", result=result)
    return str(folder / "session-store.db"), session


def write_copilot_chat(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    """Write turns of three calls each. Only the last call's prompt size is stored."""
    chat = CodeHome(folder).session(root)
    summaries: list[dict[str, Any]] = []
    for compacted in (True, False):
        steps = draw_steps(script, 12)
        for start in range(0, len(steps), 3):
            request, rounds, results = chat.begin(), [], {}
            request["message"]["text"] = steps[start].user
            for step in steps[start : start + 3]:
                name = chat.clock.id()
                call = {"id": name, "name": step.tool, "arguments": json.dumps({"q": step.query})}
                rounds.append({"id": name, "response": step.text, "toolCalls": [call]})
                results[name] = {"content": [{"value": step.result}]}
            last = steps[start + 2].prompt, 9
            request["promptTokens"] = last[0]
            chat.end(request, last, toolCallRounds=rounds, toolCallResults=results,
                     summaries=summaries)  # fmt: skip
            chat.save()
        if compacted:
            script.tokens = Counter({"System prompt and tools": SYSTEM})
            # The turn after a compaction stores the summary. `toolCallRoundId` is the last round
            # that the summary replaces.
            summary = {"toolCallRoundId": rounds[-1]["id"], "text": script.text(SUMMARY, 300)}
            summaries = [summary]
    return str(chat.path), chat.id


def write_kimi_cli(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    lines: list[Any] = [{"role": "_system_prompt", "content": "You are Kimi. " * 99}]
    summary = "<system>Previous context has been compacted. Here is the compaction output:</system>"
    content = [
        {"type": "text", "text": summary},
        {"type": "text", "text": script.text(SUMMARY, 300)},
    ]
    lines += [{"role": "user", "content": content}, {"role": "_usage", "token_count": 7}]
    for step in draw_steps(script):
        if step.user:
            lines.append({"role": "user", "content": step.user})
        lines.append({"role": "_usage", "token_count": step.prompt})
        function = {"name": step.tool, "arguments": json.dumps({"query": step.query})}
        lines.append(
            {
                "role": "assistant",
                "content": [{"type": "think", "think": step.text}],
                "tool_calls": [{"type": "function", "id": "c", "function": function}],
            }
        )
        lines.append({"role": "_usage", "token_count": step.prompt + 9})
        lines.append({"role": "tool", "content": step.result, "tool_call_id": "c"})
    write_lines(folder / "s" / "context.jsonl", lines)
    return write_lines(folder / "s" / "wire.jsonl", []), "s"


def write_crush(folder: Path, _root: Path, script: Script) -> tuple[str, str]:
    """Write a session that contains only the latest call's token counts."""
    store = CrushStore(folder / ".crush" / "crush.db")

    def message(name: str, role: str, *parts: tuple[str, dict[str, Any]]) -> None:
        store.clock.tick()
        data = json.dumps([{"type": kind, "data": fields} for kind, fields in parts])
        at = int(store.clock.now.timestamp())
        store.put("messages", id=name, session_id="s", role=role, parts=data, created_at=at)

    message("old", "user", ("text", {"text": "words " * 9_000}))
    message("sum", "assistant", ("text", {"text": script.text(SUMMARY, 300)}))
    steps = draw_steps(script)
    for number, step in enumerate(steps):
        if step.user:
            message(f"u{number}", "user", ("text", {"text": step.user}))
        call = {"id": "c", "name": step.tool, "input": json.dumps({"query": step.query})}
        result = {"tool_call_id": "c", "name": step.tool, "content": step.result}
        text = ("text", {"text": step.text})
        message(f"a{number}", "assistant", text, ("tool_call", call), ("finish", {}))
        message(f"t{number}", "tool", ("tool_result", result))
    reply = script.count(steps[-1].text) + script.count(steps[-1].query)
    store.put("sessions", id="s", prompt_tokens=steps[-1].prompt, completion_tokens=reply,
              summary_message_id="sum", updated_at=1, created_at=1)  # fmt: skip
    store.db.close()
    return str(store.path), "s"


def write_older_goose(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    path, session = write_goose(folder, root, script)
    store = GooseStore(Path(path))
    prompt = store.db.execute("SELECT max(input_tokens) FROM usage_ledger").fetchone()[0]
    store.db.execute("DROP TABLE usage_ledger")
    store.put("sessions", id=session, input_tokens=prompt, output_tokens=120)
    store.db.close()
    return path, session


def write_continued_goose(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    """Write a session whose ledger begins with the total of the calls before its newest one."""
    path, session = write_goose(folder, root, script)
    store = GooseStore(Path(path))
    newest, prompt = store.db.execute(
        "SELECT max(id), max(input_tokens) FROM usage_ledger"
    ).fetchone()
    store.db.execute(
        "UPDATE usage_ledger SET cost_source = 'carried_forward',"
        " input_tokens = (SELECT sum(input_tokens) FROM usage_ledger WHERE id < ?) WHERE id = 1",
        (newest,),
    )
    store.db.execute("DELETE FROM usage_ledger WHERE id > 1 AND id < ?", (newest,))
    store.put("sessions", id=session, input_tokens=prompt, output_tokens=120)
    store.db.close()
    return path, session


def stored(agent: str, path: str, session: str) -> StoredSession:
    return StoredSession(id=session, source=agent, path=path, updated_at=datetime.now(UTC))


def read_with_session(agent: str, path: str, state: bytes = b"") -> tuple[bytes | None, bytes]:
    """Read a store from a state. Return the packed sizes and the new state."""
    status = Path(path).stat()
    store = Store(agent, path, status.st_ino, status.st_size, status.st_mtime_ns)
    read = reader_of(agent).read(store, state)
    while not read.is_complete:
        read = reader_of(agent).read(store, read.state)
    return next((one.sizes for one in read.sessions if one.sizes), None), read.state


def read_parts(agent: str, path: str, session: str, tokens: int) -> dict[str, int]:
    sizes = unpack(read_with_session(agent, path)[0]) or read_sizes(stored(agent, path, session))
    return {part.label: part.tokens for part in label_parts(sizes, tokens)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("agent", "write"),
    [
        ("claude-code", write_claude),
        ("codex", write_codex),
        ("opencode", write_opencode),
        ("qwen-code", write_qwen),
        ("gemini-cli", write_gemini),
        ("pi", write_pi),
        ("kimi-code", write_kimi),
        ("continue", write_continue),
        ("cline", write_cline),
        ("roo-code", write_roo),
        ("amp", write_amp),
        ("zed", write_zed),
        ("goose", write_goose),
        ("copilot-cli", write_copilot),
        ("copilot-chat", write_copilot_chat),
        ("kimi-cli", write_kimi_cli),
        ("crush", write_crush),
        ("goose", write_older_goose),
        ("goose", write_continued_goose),
    ],
)
def test_each_share_is_within_five_points_and_the_sum_exact(
    agent: str, write: Any, seed: int, tmp_path: Path
) -> None:
    script = Script(seed)
    root = tmp_path / "project"
    root.mkdir()
    path, session = write(tmp_path / "home", root, script)
    parts = read_parts(agent, path, session, script.total)
    assert sum(parts.values()) == script.total
    for label in {*parts, *script.tokens}:
        share, real = (
            100 * tokens[label] / script.total for tokens in (Counter(parts), script.tokens)
        )
        assert abs(share - real) <= POINTS, (label, parts, script.tokens)


def test_copilot_chats_contents_come_from_the_chat_session_of_each_store(tmp_path: Path) -> None:
    """The debug log and the traces contain only numbers."""
    root = tmp_path / "project"
    root.mkdir()
    home = CodeHome(tmp_path / "home")
    chat = home.session(root)
    chat.turn()
    log = chat.debug_log()
    log.begin()
    traces = Traces(home)
    paths = (str(chat.path), str(log.folder / "main.jsonl"), str(traces.path))
    found = [read_parts("copilot-chat", path, chat.id, 20_000) for path in paths]
    traces.db.close()
    assert found[0] == found[1] == found[2]
    assert found[0]["Assistant messages"] > 0
    assert read_parts("copilot-chat", str(traces.path), "unknown", 20_000) == {}


def test_copilot_chats_running_turn_shows_the_reply_so_far(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    chat = CodeHome(tmp_path / "home").session(root)
    chat.call(chat.begin())
    chat.save()
    parts = read_parts("copilot-chat", str(chat.path), chat.id, 20_000)
    assert set(parts) == {"System prompt and tools", "User messages", "Assistant messages"}


WITH_SESSION = {
    "claude-code": write_claude,
    "codex": write_codex,
    "qwen-code": write_qwen,
    "gemini-cli": write_gemini,
    "pi": write_pi,
    "kimi-code": write_kimi,
}


@pytest.mark.parametrize("agent", [*WITH_SESSION, "continue", "cline", "amp", "zed"])
def test_sizes_come_from_the_read_that_finds_the_session(agent: str, tmp_path: Path) -> None:
    others = {"continue": write_continue, "cline": write_cline, "amp": write_amp, "zed": write_zed}
    (tmp_path / "project").mkdir()
    write = {**WITH_SESSION, **others}[agent]
    path, _ = write(tmp_path / "home", tmp_path / "project", Script(1))
    assert read_with_session(agent, path)[0]


@pytest.mark.parametrize("step", [1, 2, 7])
@pytest.mark.parametrize("agent", WITH_SESSION)
def test_sizes_are_the_same_for_a_file_that_grows(agent: str, step: int, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    script = Script(step)
    path, _ = WITH_SESSION[agent](tmp_path / "home", tmp_path / "project", script)
    whole = unpack(read_with_session(agent, path)[0])
    lines, state, packed = Path(path).read_bytes().splitlines(keepends=True), b"", None
    Path(path).write_bytes(b"")
    for start in range(0, len(lines), step):
        with Path(path).open("ab") as file:
            file.writelines(lines[start : start + step])
        packed, state = read_with_session(agent, path, state)
    grown = unpack(packed)
    assert whole is not None
    assert grown is not None
    assert grown.sizes == whole.sizes
    assert grown.split(script.total) == whole.split(script.total) != []


@pytest.mark.parametrize("agent", WITH_SESSION)
def test_saved_state_contains_no_text(agent: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    path, _ = WITH_SESSION[agent](tmp_path / "home", tmp_path / "project", Script(1))
    packed, state = read_with_session(agent, path)
    assert packed
    for word in (b"parser", b"returns", b"caching"):
        assert word not in packed + state


def test_hostile_names_and_open_calls_do_not_grow_without_limit() -> None:
    sizes = ContextSizes()
    for number in range(3_000):
        tool = sizes.begin_call(f"{number}" * 99, f"tool{number}" * 99)
        sizes.add("call", "arguments", tool)
        sizes.add("result", "text", f"other{number}")
    assert len(sizes.pack() or b"") < 400_000
    assert sizes.total == 3_000 * (len("arguments") + len("text"))


def test_sizes_are_bytes_and_not_characters() -> None:
    """Otherwise, the share of a text would depend on whether it is decoded."""
    decoded, raw = ContextSizes(), ContextSizes()
    for text in (
        "",
        "a",
        "\u8a9e" * 1_000,
        "a" * 9_999 + "\u8a9e" * 9_999,
        "\u00e9" * 700 + "\U0001f600" * 900,
    ):
        decoded.add("user", text)
        raw.add("user", json.dumps(text, ensure_ascii=False).encode())
    assert decoded.total == pytest.approx(raw.total, rel=0.01)


def test_contents_are_unknown_without_a_call() -> None:
    sizes = ContextSizes()
    sizes.add("user", b"x" * 500)
    assert sizes.split(1_000) == []


def test_results_of_many_tools_are_added_up() -> None:
    sizes = ContextSizes()
    sizes.add_prompt(1_000)
    for size in range(1, 10):
        sizes.add("result", b"x" * 1_000 * size, f"tool{size}")
    shares = sizes.split(20_000)
    assert sum(share.tokens for share in shares) == 20_000
    assert [share.name for share in shares[:2]] == ["tool9", "tool8"]


def test_a_missing_or_unsupported_store_has_no_contents(tmp_path: Path) -> None:
    for agent in ("claude-code", "goose", "crush"):
        sizes = read_sizes(stored(agent, str(tmp_path / "gone"), "s"))
        assert label_parts(sizes, 10) == []


@pytest.mark.parametrize("odd", [7, "text", None, {"type": {}, "name": []}])
def test_damaged_part_of_a_message_does_not_affect_others(tmp_path: Path, odd: object) -> None:
    script = Script(1)
    path, session = write_cline(tmp_path, tmp_path, script)
    whole = read_parts("cline", path, session, script.total)
    document = json.loads(Path(path).read_bytes())
    document["messages"][0]["content"].append(odd)
    Path(path).write_text(json.dumps(document))
    assert read_parts("cline", path, session, script.total) == whole != {}


async def test_sizes_in_a_separate_file_are_read_when_they_are_shown(tmp_path: Path) -> None:
    """Until they are read again, they are scaled to the current context size."""
    script, workers = Script(1), Workers()
    path, session = write_kimi_cli(tmp_path, tmp_path, script)
    context = Path(path).with_name("context.jsonl")
    with context.open("a") as file:
        file.write(json.dumps({"role": "_checkpoint", "content": "x" * 40_000_000}) + "\n")
    reader = SizesReader(workers)
    with recorded_opens(context) as reads:
        for tokens in (script.total, script.total + 9):
            sizes = await reader.of(stored("kimi-cli", path, session))
            parts = label_parts(sizes, tokens)
            assert sum(part.tokens for part in parts) == tokens
    assert len(reads) == 1
    workers.close()


@pytest.mark.parametrize("requests", [2, 5])
async def test_sizes_that_several_requests_need_at_once_are_read_once(
    tmp_path: Path, requests: int
) -> None:
    script, workers = Script(1), Workers()
    path, session = write_kimi_cli(tmp_path, tmp_path, script)
    reader = SizesReader(workers)
    with recorded_opens(Path(path).with_name("context.jsonl")) as reads:
        wanted = (reader.of(stored("kimi-cli", path, session)) for _ in range(requests))
        first, *others = await asyncio.gather(*wanted)
    assert len(reads) == 1
    assert label_parts(first, script.total)
    assert all(sizes is first for sizes in others)
    workers.close()
