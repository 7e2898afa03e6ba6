"""Tests the contents of contexts with generated sessions, whose parts are known exactly."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome, usage
from benchmarks.agents.opencode import OpenHome
from benchmarks.agents.truth import Tokens
from sidecar.agents.contents import ContextContents, Part, PromptSize
from sidecar.counting.model_tokenizers import Tokenizers
from sidecar.workspace.usage_details import read_contents

if TYPE_CHECKING:
    from pathlib import Path

SYSTEM = 14_000
WORDS = [
    "the",
    "parser",
    "reads",
    "each",
    "token",
    "of",
    "a",
    "file",
    "and",
    "returns",
    "its",
    "length",
    "in",
    "bytes",
    "for",
    "caching",
]
POINTS = 5.0


class Script:
    """The parts of a random session in order, with their tokens."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tokens = Counter({"System prompt and tools": SYSTEM})
        self.count = Tokenizers().for_model("gpt-4o").count

    def text(self, label: str, words: int) -> str:
        """Return a random text with about this number of words, and add its tokens."""
        text = " ".join(self.rng.choices(WORDS, k=self.rng.randrange(words // 2, 2 * words)))
        self.tokens[label] += self.count(text)
        return text

    @property
    def total(self) -> int:
        return sum(self.tokens.values())


TOOLS = ("Read", "Bash", "Grep")


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
    assert usage(Tokens(prompt))["input_tokens"] == prompt
    thread.count(Tokens(prompt, output=script.total - prompt))
    return str(thread.path), thread.id


def write_opencode(folder: Path, root: Path, script: Script) -> tuple[str, str]:
    home = OpenHome(folder)
    session = home.session(root, "first")

    def part(message: str, **data: Any) -> None:
        import json

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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("agent", "write"),
    [("claude-code", write_claude), ("codex", write_codex), ("opencode", write_opencode)],
)
def test_each_share_is_within_five_points_and_the_sum_exact(
    agent: str, write: Any, seed: int, tmp_path: Path
) -> None:
    script = Script(seed)
    root = tmp_path / "project"
    root.mkdir()
    path, session = write(tmp_path / "home", root, script)
    parts = {part.label: part.tokens for part in read_contents(agent, path, session, script.total)}
    assert sum(parts.values()) == script.total
    for label in {*parts, *script.tokens}:
        share, real = (
            100 * tokens[label] / script.total for tokens in (Counter(parts), script.tokens)
        )
        assert abs(share - real) <= POINTS, (label, parts, script.tokens)


def test_contents_are_unknown_without_a_call() -> None:
    contents = ContextContents([Part("user", b"x" * 500)])
    assert contents.split(1_000) == []


def test_results_of_many_tools_are_added_up(tmp_path: Path) -> None:
    results = [Part("result", b"x" * 1_000 * size, f"tool{size}") for size in range(1, 10)]
    contents = ContextContents([PromptSize(1_000), *results])
    shares = contents.split(20_000)
    assert sum(share.tokens for share in shares) == 20_000
    assert [share.tool for share in shares[:2]] == ["tool9", "tool8"]


def test_a_missing_or_unsupported_store_has_no_contents(tmp_path: Path) -> None:
    assert read_contents("claude-code", str(tmp_path / "gone.jsonl"), "s", 10) == []
    assert read_contents("goose", str(tmp_path / "gone.db"), "s", 10) == []
