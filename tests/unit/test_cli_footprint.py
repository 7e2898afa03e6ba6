"""Tests `token-sidecar footprint`: the parts, and what is measured in sessions."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.agents.claude import ClaudeHome, Transcript
from benchmarks.agents.truth import Tokens
from sidecar.cli import main
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.project import footprint
from sidecar.project.loading_rules import loading_rules
from sidecar.workspace.footprint_report import MOST_NOTES, MOST_ROWS

BEGAN = datetime(2039, 1, 1, tzinfo=UTC)
"""When sessions begin. Files that tests write are older, because their status cannot be dated."""
OLD, LATER = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (2020, 2040))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["footprint", *map(str, arguments)])


def found(*arguments: str | Path) -> Any:
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write(path: Path, text: str) -> None:
    """Write a file that is older than all sessions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    os.utime(path, (OLD, OLD))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with instructions for several agents."""
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    write(root / "AGENTS.md", "Be brief and kind.\n" * 20)
    monkeypatch.chdir(root)
    return root


class FixedTranscript(Transcript):
    """A session whose calls have the given prompt sizes."""

    def reply_of(self, prompt: int) -> None:
        self.cached = 0
        self.tokens = lambda: Tokens(prompt, 0, 0, 0, 50)  # type: ignore[method-assign]
        self.reply()


def session(
    root: Path, *prompts: int, after: Transcript | None = None, began: datetime = BEGAN
) -> FixedTranscript:
    """Write a session of Claude Code that started in a folder. It has one call for each prompt."""
    home = after.home if after else ClaudeHome(Path(os.environ["HOME"]) / ".claude")
    if after is None:
        home.clock.now = began
    made = home.session(root)
    fixed = FixedTranscript(home, made.project, made.id, made.cwd)
    for prompt in prompts:
        fixed.user()
        fixed.reply_of(prompt)
    return fixed


def part(agent: Any, label: str) -> Any:
    (one,) = [one for one in agent["parts"] if one["label"] == label]
    return one


def test_each_file_has_the_tokens_that_are_sent_for_the_model(root: Path) -> None:
    (root / ".token-sidecar.toml").write_text('model = "gpt-5"\n')
    write(root / "AGENTS.md", "word " * 10_000)
    (agent,) = found("--agent", "codex")["agents"]
    shown = part(agent, "AGENTS.md")
    tokens = Tokenizers().for_model("gpt-5").count(("word " * 10_000)[:32_768])
    assert (agent["model"], shown["state"], shown["tokens"]) == ("gpt-5", "cut", tokens)
    assert shown["method"] == "exact"
    assert shown["lost"] == [{"start": 32_768, "end": 50_000}]
    assert "17,232 bytes never arrive" in shown["stateText"]
    assert shown["uri"] == (root / "AGENTS.md").as_uri()


def test_what_hides_a_file_is_named(root: Path) -> None:
    write(root / "CLAUDE.md", "Claude.")
    (agent,) = found("--agent", "claude-code")["agents"]
    hidden = part(agent, "AGENTS.md")
    assert (hidden["state"], hidden["tokens"]) == ("hidden", 0)
    assert hidden["stateText"] == "hidden by CLAUDE.md"
    assert hidden["hiddenBy"] == (root / "CLAUDE.md").as_uri()
    assert part(agent, "CLAUDE.md")["state"] == "sent"
    assert "AGENTS.md" in run("--agent", "claude-code").stdout


def test_the_parts_add_up_to_the_first_request_of_the_newest_session(root: Path) -> None:
    first = session(root, 15_000, 90_000)
    newest = session(root, 20_000, 25_000, 30_000, after=first)
    (agent,) = found()["agents"]
    assert agent["measured"]["session"] == newest.id
    assert agent["measured"]["tokens"] == 20_000
    assert agent["model"] == newest.model
    assert sum(one["tokens"] for one in agent["parts"]) == 20_000
    system, *_, message = agent["parts"]
    assert (system["kind"], message["kind"]) == ("system", "message")
    assert message["tokens"] > 50
    assert agent["tokens"] == 20_000 - message["tokens"]


def test_a_compaction_does_not_change_what_was_measured(root: Path) -> None:
    made = session(root, 20_000, 90_000)
    made.compact()
    made.reply_of(40_000)
    (agent,) = found()["agents"]
    assert agent["measured"]["tokens"] == 20_000


def test_sessions_that_started_elsewhere_are_not_measured(root: Path) -> None:
    (root / "pkg").mkdir()
    session(root / "pkg", 31_000)
    assert found()["agents"][0]["measured"] is None
    (agent,) = found("pkg")["agents"]
    assert agent["measured"]["tokens"] == 31_000


def test_a_fork_is_not_measured(root: Path) -> None:
    first = session(root, 20_000, 90_000)
    fork = FixedTranscript(first.home, first.project, first.clock.uuid(), first.cwd)
    fork.write(*({**line, "sessionId": fork.id} for line in first.history))
    fork.user()
    fork.reply_of(120_000)
    (agent,) = found()["agents"]
    assert (agent["measured"]["session"], agent["measured"]["tokens"]) == (first.id, 20_000)


def test_files_larger_than_the_measured_request_are_a_contradiction(root: Path) -> None:
    session(root, 100)
    (agent,) = found()["agents"]
    assert agent["parts"][0]["kind"] == "system"
    (note,) = agent["notes"]
    assert "The files add up to ~" in note
    assert "had only 100" in note
    assert note in run().stdout


def test_a_file_that_changed_since_the_measured_request_is_said(root: Path) -> None:
    session(root, 20_000)
    assert found()["agents"][0]["notes"] == []
    write(root / "AGENTS.md", "Other.")
    (note,) = found()["agents"][0]["notes"]
    assert note.startswith("Files have changed since")  # the request has been reconciled before


def usual(agent: Any) -> bool:
    """Return whether the system prompt is the usual one, and the total the sum of the parts."""
    constant = loading_rules()["claude-code"].constants[0]
    system = agent["parts"][0]
    assert agent["tokens"] == sum(one["tokens"] for one in agent["parts"])
    assert (agent["method"], system["kind"]) == ("estimate", "system")
    return bool(system["tokens"] == constant.tokens) and "usual for" in system["stateText"]


@pytest.mark.parametrize("factor", [4, 40])
def test_files_that_changed_do_not_change_the_system_prompt(root: Path, factor: int) -> None:
    session(root, 23_700)
    whole = (root / "AGENTS.md").read_text()
    write(root / "AGENTS.md", whole * factor)
    os.utime(root / "AGENTS.md", (LATER, LATER))
    (agent,) = found()["agents"]
    assert usual(agent)
    assert agent["notes"][0].startswith("1 file has changed since the request of ")
    assert agent["notes"][0].endswith("Start a new session here to measure again.")


def test_files_with_an_old_time_may_have_changed(root: Path) -> None:
    """`cp -p` and `git` with some settings restore times, but not that of the status."""
    session(root, 23_700, began=datetime(2021, 1, 1, tzinfo=UTC))
    write(root / "AGENTS.md", "Other.")
    assert usual(found()["agents"][0])


def test_a_deleted_file_may_have_been_sent(root: Path) -> None:
    write(root / "CLAUDE.md", "Be kind.")
    session(root, 23_700)
    (root / "CLAUDE.md").unlink()
    os.utime(root, (LATER, LATER))
    (agent,) = found()["agents"]
    assert usual(agent)
    assert agent["notes"][0].startswith("Files may have been added or deleted since the request")


def test_a_file_that_is_empty_now_may_have_had_text(root: Path) -> None:
    write(root / "CLAUDE.local.md", "")
    session(root, 23_700)
    os.utime(root / "CLAUDE.local.md", (LATER, LATER))
    (agent,) = found()["agents"]
    assert usual(agent)
    assert agent["notes"][0].startswith("1 file has changed")


def test_a_system_prompt_that_was_measured_is_kept(root: Path) -> None:
    session(root, 23_700)
    (before,) = found()["agents"]
    whole = (root / "AGENTS.md").read_text()
    write(root / "AGENTS.md", whole * 4)
    (agent,) = found()["agents"]
    assert agent["parts"][0]["tokens"] == before["parts"][0]["tokens"] != 0
    assert agent["parts"][0]["stateText"].startswith("as it was ")
    assert agent["tokens"] == sum(one["tokens"] for one in agent["parts"]) > 23_700
    write(root / "AGENTS.md", whole)
    os.utime(root, (LATER, LATER))  # another file was written
    assert found()["agents"][0]["parts"] == before["parts"]


def worktree(root: Path) -> Path:
    other, git = root.parent / "other", root / ".git"
    (git / "worktrees/other").mkdir(parents=True)
    (git / "worktrees/other/gitdir").write_text(f"{other / '.git'}\n")
    (git / "worktrees/other/commondir").write_text("../..\n")
    other.mkdir()
    (other / ".git").write_text(f"gitdir: {git / 'worktrees/other'}\n")
    return other


def test_a_session_of_a_worktree_measures_the_same_files_only(root: Path) -> None:
    other = worktree(root)
    write(other / "AGENTS.md", (root / "AGENTS.md").read_text())
    session(root, 23_700)
    assert found(other)["agents"][0]["measured"]["tokens"] == 23_700
    write(other / "AGENTS.md", "Other words. " * 100)
    (agent,) = found(other)["agents"]
    assert agent["measured"] is None
    assert "another worktree" in agent["notes"][0]
    assert not agent["isLowerBound"]
    assert found()["agents"][0]["measured"]["tokens"] == 23_700


def test_a_session_that_started_here_comes_before_one_of_a_worktree(root: Path) -> None:
    other = worktree(root)
    write(other / "AGENTS.md", (root / "AGENTS.md").read_text())
    session(root, 20_000, after=session(other, 23_700))
    assert found(other)["agents"][0]["measured"]["tokens"] == 23_700


def test_a_session_that_was_not_measured_has_the_usual_system_prompt(root: Path) -> None:
    (agent,) = found("--agent", "codex")["agents"]
    constant = loading_rules()["codex"].constants[0]
    system = agent["parts"][0]
    assert (agent["model"], agent["measured"]) == (constant.model, None)
    assert (system["kind"], system["tokens"]) == ("system", constant.tokens)
    assert system["method"] == "estimate"
    assert system["stateText"].startswith("usual for ")
    assert not agent["isLowerBound"]
    assert agent["tokens"] == sum(one["tokens"] for one in agent["parts"])
    assert f"~{constant.tokens:,}  usual for " in run("--agent", "codex").stdout
    (agent,) = found("--agent", "amp")["agents"]
    assert agent["parts"][0]["tokens"] is None
    assert agent["isLowerBound"]


def test_only_installed_agents_are_shown(root: Path) -> None:
    everyone = {one["agent"] for one in found()["agents"]}
    assert {"codex", "opencode"} <= everyone
    (Path(os.environ["HOME"]) / ".codex").mkdir()
    shown = found()
    assert [one["agent"] for one in shown["agents"]] == ["codex"]
    assert set(shown["others"]) == everyone - {"codex"}
    assert "--agent" not in shown["text"], "editors show it, too"
    assert run().stdout.endswith("`--agent NAME` shows an agent that is not installed.\n")


def test_a_second_call_after_each_answer_is_noted(root: Path) -> None:
    (agent,) = found("--agent", "qwen-code")["agents"]
    note = "After each answer, a second call sends ~9,771 tokens and the instructions again."
    assert (agent["notes"][-1], agent["hasLosses"]) == (note, False)
    assert "second call" not in run("--agent", "codex").stdout


def test_a_folder_without_files_says_what_to_do(root: Path) -> None:
    (root / "AGENTS.md").unlink()
    assert "Add an AGENTS.md" in run().stdout


def test_an_unknown_agent_is_an_error(root: Path) -> None:
    result = run("--agent", "claud")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no loading rules are known for claud; did you mean claude-code?" in result.stderr


def test_disabled_agents_are_an_error(root: Path) -> None:
    Path(os.environ["TOKEN_SIDECAR_CONFIG"]).write_text("[agents]\nenabled = false\n")
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "`enabled = true` in [agents]" in result.stderr


def test_counts_are_shared_with_check_and_map(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".token-sidecar.toml").write_text('model = "gpt-5"\n')
    counted: list[str] = []
    tokenizer = type(Tokenizers().for_model("gpt-5"))
    count, count_many = tokenizer.count, tokenizer.count_many

    def recorded(self: Any, text: str) -> int:
        counted.append(text)
        return count(self, text)

    def recorded_many(self: Any, texts: list[str]) -> list[int]:
        counted.extend(texts)
        return count_many(self, texts)

    monkeypatch.setattr(tokenizer, "count", recorded)
    monkeypatch.setattr(tokenizer, "count_many", recorded_many)
    text = (root / "AGENTS.md").read_text()
    assert run("--agent", "codex").exit_code == 0
    assert text in counted
    counted.clear()
    assert CliRunner().invoke(main, ["check", "AGENTS.md"]).exit_code == 0
    assert run("--agent", "codex").exit_code == 0
    assert counted == [], "no vocabulary is loaded"
    assert CliRunner().invoke(main, ["map"]).exit_code == 0
    counted.clear()
    assert CliRunner().invoke(main, ["map"]).exit_code == 0
    assert counted == []


def test_a_long_table_leaves_out_the_smallest_parts(root: Path) -> None:
    for number in range(100):
        write(root / f".claude/rules/{number:03}.md", "rule " * (number + 1))
    (agent,) = found("--agent", "claude-code")["agents"]
    assert sum(one["kind"] == "rule" for one in agent["parts"]) == 100
    lines = run("--agent", "claude-code").stdout.splitlines()
    rows = [line for line in lines if line.startswith("  ")]
    assert len(rows) == MOST_ROWS
    assert rows[-1].split()[1:3] == ["smaller", "parts"]
    assert any("099.md" in row for row in rows)
    assert not any("/000.md" in row for row in rows)


def test_names_are_escaped(root: Path) -> None:
    write(root / ".claude/rules/\x1b[31mred.md", "rule")
    shown = run("--agent", "claude-code").stdout
    assert "\x1b" not in shown
    assert r"\x1b[31mred.md" in shown


def test_a_file_that_is_not_read_makes_the_total_a_lower_bound(root: Path, tmp_path: Path) -> None:
    write(tmp_path / "outside.md", "Elsewhere.")
    (root / "AGENTS.md").unlink()
    (root / "AGENTS.md").symlink_to(tmp_path / "outside.md")
    (agent,) = found("--agent", "claude-code")["agents"]
    shown = part(agent, "AGENTS.md")
    assert (shown["state"], shown["tokens"]) == ("sent", None)
    assert "outside the project" in shown["stateText"]
    assert agent["isLowerBound"]
    assert "≥" in run("--agent", "claude-code").stdout
    session(root, 20_000)
    assert not found("--agent", "claude-code")["agents"][0]["isLowerBound"]


def test_a_rule_that_is_always_sent_is_no_loss(root: Path) -> None:
    write(root / ".claude/rules/style.md", "Style.")
    write(root / ".claude/rules/api.md", '---\npaths: ["src/**"]\n---\nAPI.')
    (agent,) = found("--agent", "claude-code")["agents"]
    assert part(agent, ".claude/rules/api.md")["state"] == "later"
    assert not agent["hasLosses"]
    write(root / "CLAUDE.local.md", "Mine.")
    write(root / "pkg/AGENTS.md", "Hidden.")
    assert found("--agent", "claude-code")["agents"][0]["hasLosses"]


def test_each_loss_is_explained_below_the_table(root: Path) -> None:
    """`check` does not show losses of the user's files, or those that depend on the window."""
    write(root / ".token-sidecar.toml", "[footprint]\ndiagnostics = false\nagents = []\n")
    write(root / "CLAUDE.md", "Read @nowhere.md")
    own = Path(os.environ["HOME"]) / ".claude/skills"
    for number in range(60):
        text = f"---\nname: s{number:02}\ndescription: {'Do this. ' * 100}\n---\n"
        write(own / f"s{number:02}/SKILL.md", text)
    (agent,) = found("--agent", "claude-code")["agents"]
    lost = sorted(one["label"] for one in agent["parts"] if one["lost"])
    (skills,) = [note for note in agent["notes"] if "Shorten descriptions" in note]
    assert skills.startswith(f"{lost[0]}, {lost[1]}, {lost[2]} and {len(lost) - 3} more: ")
    (imported,) = [note for note in agent["notes"] if "does not import" in note]
    assert imported.startswith("CLAUDE.md: Claude Code ")
    lines = run("--agent", "claude-code").stdout.splitlines()
    assert {f"  {skills}", f"  {imported}"} <= set(lines)
    assert lines[-1].startswith("Something is lost")
    assert "Claude Code" in lines[-1]
    assert "check" not in lines[-1]


def test_many_notes_are_cut_in_text_only(root: Path) -> None:
    folder = root
    for level in range(10):
        write(folder / "AGENTS.md", "x" * (40_000 + level))
        folder = folder / "sub"
    agent = found("--agent", "codex", folder.parent)["agents"][0]
    assert len(agent["notes"]) == 10
    lines = run("--agent", "codex", folder.parent).stdout.splitlines()
    assert (
        f"  {10 - MOST_NOTES + 1} more notes; `token-sidecar footprint --json` lists them" in lines
    )


def test_a_skill_without_room_is_only_named(root: Path) -> None:
    for number in range(60):
        text = f"---\nname: s{number}\ndescription: {'Do this. ' * 100}\n---\n"
        write(root / f".claude/skills/s{number}/SKILL.md", text)
    (agent,) = found("--agent", "claude-code")["agents"]
    skills = [one for one in agent["parts"] if one["kind"] == "skill"]
    assert len(skills) == 60
    assert {one["state"] for one in skills} == {"name-only"}
    whole = [one for one in skills if not one["lost"]]
    assert 0 < len(whole) < 60
    assert {one["stateText"] for one in whole} == {"name and description"}
    named = [one for one in skills if one["lost"]]
    assert all(one["stateText"].startswith("name only: ") for one in named)
    assert max(one["tokens"] for one in named) < min(one["tokens"] for one in whole)
    assert agent["hasLosses"]


def test_the_tools_of_mcp_servers_are_counted_from_the_session(root: Path) -> None:
    """Claude Code keeps the names of deferred tools, and the instructions of servers."""
    names = [
        "Monitor",
        "mcp__box__open",
        "mcp__box__shut",
        "mcp__plugin_a_b__go",
        "mcp__",
        "mcp__x",
    ]
    block = "## box\nAll about boxes."
    whole = {"name": "mcp__whole__look", "description": "Looks.", "input_schema": {}}
    lines: list[Any] = [
        {"type": "attachment", "attachment": {"type": "deferred_tools_delta", "addedNames": names}},
        {"type": "attachment", "attachment": {
            "type": "mcp_instructions_delta", "addedNames": ["box"], "addedBlocks": [block],
        }},
        {"type": "api-request-shape", "shape": {"system": [], "tools": [{"name": "Bash"}, whole]}},
    ]  # fmt: skip
    later = {"type": "deferred_tools_delta", "addedNames": ["mcp__late__tool"]}
    made = session(root, 20_000)
    (path,) = Path(os.environ["HOME"]).glob(f".claude/projects/*/{made.id}.jsonl")
    head = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    tail = json.dumps({"type": "attachment", "attachment": later}) + "\n"
    write(path, head + '{"type":"attachment","deferred_tools_delta\n' + path.read_text() + tail)
    write(root / ".mcp.json", json.dumps({"mcpServers": {"box": {"command": "box"}}}))
    (agent,) = found()["agents"]
    count = Tokenizers().for_model(agent["model"]).count
    servers = [one for one in agent["parts"] if one["kind"] == "mcp-server"]
    assert {one["label"]: one["tokens"] for one in servers} == {
        "MCP server box": count(f"mcp__box__open\nmcp__box__shut\n{block}"),
        "MCP server plugin_a_b": count("mcp__plugin_a_b__go"),
        "MCP server whole": count(json.dumps(whole, separators=(",", ":"))),
    }
    assert servers[0]["stateText"].startswith("name only, as in the request of ")
    assert sum(one["tokens"] for one in agent["parts"]) == 20_000


def test_rules_that_are_not_looked_at_make_the_total_a_lower_bound(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "MAX_PARTS", 10)
    for number in range(25):
        write(root / f".claude/rules/{number}.md", f"Rule {number}.")
    (agent,) = found("--agent", "claude-code")["agents"]
    assert agent["isLowerBound"]
    (note,) = [one for one in agent["notes"] if "not looked at" in one]
    lines = run("--agent", "claude-code").stdout.splitlines()
    assert "≥~" in lines[0]
    assert f"  {note}" in lines
