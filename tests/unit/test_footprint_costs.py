"""Tests that `map` and `cost files` list and price what agents really send."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from sidecar.cli import main

TEN = "one two three four five six seven eight nine ten\n"
BODY = "# Rules\n\nBe brief. Run the tests."


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home" / "work" / "app"
    made.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(made)], check=True)
    monkeypatch.chdir(made)
    return made


def write(root: Path, contents: dict[str, str]) -> None:
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def claude_call(root: Path) -> None:
    home = ClaudeHome(root.parents[1] / ".claude")
    home.clock.now = datetime.now().astimezone().replace(hour=0, minute=0, second=1)
    session = home.session(root)
    session.cached = 60_000
    session.user()
    session.reply()


def codex_call(root: Path) -> None:
    home = CodexHome(root.parents[1] / ".codex")
    home.clock.now = datetime.now().astimezone().replace(hour=0, minute=0, second=1)
    thread = home.thread(root)
    thread.begin_turn()
    thread.call()


def costs(root: Path) -> dict[str, tuple[int, int]]:
    """Return the tokens and requests of each file, by its path in the project."""
    rows = run("cost", "files")["files"]
    return {
        row["uri"].removeprefix(f"{root.as_uri()}/"): (row["tokens"], row["requests"])
        for row in rows
    }


def agents(root: Path) -> dict[str, list[str]]:
    """Return the agents of each file in the map, by its path."""
    return {file["path"]: file["agents"] for file in run("map")["promptFiles"]}


def tokens(root: Path, text: str, model: str = "claude-opus-5") -> int:
    (root.parent / "sent.txt").write_text(text)
    found: int = run("count", "--model", model, str(root.parent / "sent.txt"))["files"][0]["tokens"]
    return found


@pytest.mark.parametrize(
    ("contents", "is_sent"),
    [
        ({}, True),
        ({"CLAUDE.md": "<!-- only a comment -->\n"}, True),
        ({"CLAUDE.md": "Words.\n"}, False),
        ({".claude/CLAUDE.md": "Words.\n"}, False),
    ],
)
def test_claude_code_sends_agents_md_without_claude_md(
    root: Path, contents: dict[str, str], is_sent: bool
) -> None:
    write(root, {"AGENTS.md": TEN, **contents})
    claude_call(root)
    assert ("claude-code" in agents(root)["AGENTS.md"]) is is_sent
    size, requests = costs(root)["AGENTS.md"]
    assert requests == int(is_sent)
    if is_sent:
        assert size == tokens(root, TEN.strip())


@pytest.mark.parametrize(
    "comment",
    ["<!--\n" + "A note for maintainers.\n" * 100 + "-->\n", f"<!-- {'note ' * 500}-->\n\n"],
)
def test_comments_of_claude_code_are_not_counted(root: Path, comment: str) -> None:
    write(root, {"CLAUDE.md": f"{comment}{BODY}\n"})
    claude_call(root)
    assert costs(root)["CLAUDE.md"] == (tokens(root, BODY), 1)
    (entry,) = run("map", "--model", "gpt-5")["promptFiles"]
    assert entry["tokens"] == tokens(root, f"{comment}{BODY}\n", "gpt-5")  # Crush sends it all


def skill(words: str) -> str:
    return f"---\nname: s\ndescription: {words}\n---\nBody.\n"


def test_skills_count_by_what_is_sent_of_them(root: Path) -> None:
    """A shortened description was listed, but not a whole one."""
    whole, cut = ".claude/skills/whole/SKILL.md", ".claude/skills/cut/SKILL.md"
    write(root, {whole: skill("Do this."), cut: skill("Do that. " * 400)})
    assert not costs(root)  # no agent that sends them has calls
    claude_call(root)
    found = costs(root)
    assert set(agents(root)) == set(found) == {whole, cut}
    assert agents(root)[whole][0] == "claude-code"
    assert found[whole][1] == 1
    assert 0 < found[whole][0] < found[cut][0]


def test_a_full_list_has_names_only(root: Path) -> None:
    names = [f".claude/skills/s{number:02}/SKILL.md" for number in range(60)]
    write(root, {name: skill("Do this. " * 100) for name in names})
    sizes = {
        size: [file["tokens"] for file in run("map", "--model", model)["promptFiles"]]
        for size, model in ((200, "claude-sonnet-4-5"), (1_000, "claude-sonnet-5"))
    }
    assert len(sizes[200]) == len(sizes[1_000]) == 60
    assert sum(sizes[200]) < sum(sizes[1_000])


def test_the_list_of_the_map_is_short(root: Path) -> None:
    write(root, {f".claude/rules/r{number:02}.md": "word " * (number + 1) for number in range(30)})
    lines = CliRunner().invoke(main, ["map"]).stdout.splitlines()
    listed = lines[lines.index("Sent with every agent request:") + 1 :]
    assert len(listed) == 11
    assert "r29.md" in listed[0]
    assert listed[-1] == "20 smaller files are left out; `--json` lists them."


def test_agents_that_are_used_are_named_first(root: Path) -> None:
    write(root, {"AGENTS.md": TEN})
    assert agents(root)["AGENTS.md"] == sorted(agents(root)["AGENTS.md"])
    codex_call(root)
    first, *others = agents(root)["AGENTS.md"]
    assert first == "codex"
    assert others == sorted(others)
    assert others
