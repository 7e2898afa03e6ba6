"""Tests which instruction files each agent sends, and what of them is cut, hidden or sent later.

Each case was measured with the real agent in the version that `loading_rules.toml` names.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from sidecar.config.settings import InstructionCode
from sidecar.models.catalogue import window_of
from sidecar.project import footprint
from sidecar.project.footprint import ByteRange
from sidecar.project.loading_rules import loading_rules
from sidecar.workspace.footprints import describe_changes
from tests.cases import read_cases, read_rows
from tests.loading_rules_page import page
from tests.unit.footprint_world import FootprintWorld


@pytest.fixture
def world(tmp_path: Path) -> FootprintWorld:
    return FootprintWorld(tmp_path)


CASES: list[tuple[str, str, list[str], list[str]]] = read_rows("footprint", "sent_files")


@pytest.mark.parametrize(
    ("agent", "start", "files", "sent"),
    CASES,
    ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)],
)
def test_an_agent_sends_files_in_the_order_of_its_request(
    world: FootprintWorld, agent: str, start: str, files: list[str], sent: list[str]
) -> None:
    world.write({name: f"words of {name}\n" for name in files})
    assert world.sent(agent, start) == sent


class Scenario(msgspec.Struct):
    """Files with contents, and what an agent does with them."""

    agent: str
    files: dict[str, str]
    sent: list[str]
    start: str = "."
    problems: list[tuple[InstructionCode, str, str, str]] = []
    """The code, file and marked text of each expected problem, and a part of its message."""


@pytest.mark.parametrize("scenario", read_cases("sent_with_contents", Scenario))
def test_contents_decide_what_is_sent(world: FootprintWorld, scenario: Scenario) -> None:
    world.write(scenario.files)
    assert world.sent(scenario.agent, scenario.start) == scenario.sent
    found = world.footprint(scenario.agent, scenario.start).problems
    for problem, (code, name, marked, message) in zip(found, scenario.problems, strict=True):
        data = scenario.files[name].encode()
        assert (problem.code, world.name(problem.path)) == (code, name)
        assert data[problem.range.start : problem.range.end].decode() == marked
        assert message in problem.message


@pytest.mark.parametrize(
    "agent", ["codex", "gemini-cli", "kimi-code", "vibe", "copilot-cli", "kilo-code"]
)
def test_without_git_only_the_start_folder_is_read(world: FootprintWorld, agent: str) -> None:
    (world.root / ".git").rmdir()
    name = "GEMINI.md" if agent == "gemini-cli" else "AGENTS.md"
    world.write({name: "outer", f"pkg/{name}": "inner"})
    assert world.sent(agent, "pkg") == [f"pkg/{name}"]


@pytest.mark.parametrize("agent", ["claude-code", "opencode", "qwen-code", "pi"])
def test_without_git_folders_above_are_read(world: FootprintWorld, agent: str) -> None:
    (world.root / ".git").rmdir()
    world.write({"AGENTS.md": "outer", "pkg/AGENTS.md": "inner"})
    assert sorted(world.sent(agent, "pkg")) == ["AGENTS.md", "pkg/AGENTS.md"]


def test_an_import_brings_a_hidden_file(world: FootprintWorld) -> None:
    world.write({"CLAUDE.md": "@AGENTS.md\n", "AGENTS.md": "words", "pkg/AGENTS.md": "inner"})
    found = world.footprint("claude-code")
    assert world.sent("claude-code") == ["CLAUDE.md", "AGENTS.md"]
    hidden = world.parts(found, "hidden")
    assert [world.name(one.path) for one in hidden] == ["pkg/AGENTS.md"]
    assert world.name(hidden[0].hidden_by) == "CLAUDE.md"


def test_a_hidden_file_is_a_problem(world: FootprintWorld) -> None:
    world.write({"../CLAUDE.md": "x", "AGENTS.md": "words"})
    (problem,) = world.problems("claude-code", "instructions-hidden")
    assert (world.name(problem.path), problem.range) == ("AGENTS.md", ByteRange(0, 5))
    assert "Claude Code 2.1.332" in problem.message
    assert "~/above/CLAUDE.md" in problem.message


def test_codex_cuts_the_chain_after_32768_bytes(world: FootprintWorld) -> None:
    size = 40_960
    names = ["~/.codex/AGENTS.md", "AGENTS.md", "pkg/AGENTS.md", "pkg/app/AGENTS.md"]
    world.write(dict.fromkeys(names, "x" * size))
    found = world.footprint("codex", "pkg/app")
    assert [len(one.text) for one in found.parts] == [size, 32_768, 0, 0]
    assert [one.lost for one in found.parts] == [
        (),
        (ByteRange(32_768, size),),
        (ByteRange(0, size),),
        (ByteRange(0, size),),
    ]
    problems = world.problems("codex", "instructions-cut", "pkg/app")
    assert [world.name(one.path) for one in problems] == names[1:]
    assert "Codex 0.171.0 sends at most 32,768 bytes" in problems[0].message
    assert "8,192 of 40,960 bytes" in problems[0].message
    assert "project_doc_max_bytes" in problems[0].message


def test_codex_cuts_inside_a_character(world: FootprintWorld) -> None:
    world.write({"AGENTS.md": "a" + "é" * 20_000})
    (part,) = world.footprint("codex").parts
    assert part.text == "a" + "é" * 16_383 + "\ufffd"
    assert part.lost == (ByteRange(32_768, 40_001),)


@pytest.mark.parametrize(
    ("value", "sent"), [("10", 10), ("0", 0), ("100000", 40_000), ('"x"', 32_768)]
)
def test_codex_reads_its_limit_from_its_settings(
    world: FootprintWorld, value: str, sent: int
) -> None:
    world.write({"AGENTS.md": "x" * 40_000})
    world.write({"~/.codex/config.toml": f"project_doc_max_bytes = {value}\n"})
    (part,) = world.footprint("codex").parts
    assert len(part.text) == sent


def test_an_empty_override_hides_the_file_and_is_a_problem(world: FootprintWorld) -> None:
    world.write({"AGENTS.override.md": "", "AGENTS.md": "words"})
    assert world.sent("codex") == []
    (problem,) = world.problems("codex", "instructions-hidden")
    assert "AGENTS.override.md stands before it, though it is empty" in problem.message
    world.write({"AGENTS.override.md": "x"})
    assert world.problems("codex", "instructions-hidden") == []


def test_files_below_the_start_are_sent_later(world: FootprintWorld) -> None:
    world.write({"CLAUDE.md": "x", "pkg/CLAUDE.md": "y", "pkg/deep/.claude/CLAUDE.md": "z"})
    later = world.parts(world.footprint("claude-code"), "later")
    assert sorted(world.name(one.path) for one in later) == [
        "pkg/CLAUDE.md",
        "pkg/deep/.claude/CLAUDE.md",
    ]
    assert {one.text for one in later} == {""}
    world.write({"AGENTS.md": "x", "pkg/AGENTS.md": "y"})
    assert world.parts(world.footprint("codex"), "later") == []


RULES = read_rows("footprint", "claude_rules")


@pytest.mark.parametrize(("front", "state"), RULES)
def test_claude_rules_with_paths_are_sent_later(
    world: FootprintWorld, front: str, state: str
) -> None:
    world.write({".claude/rules/a.md": f"---\n{front}\n---\nwords\n"})
    (part,) = world.footprint("claude-code").parts
    assert (part.state, part.text) == (state, "words" if state == "sent" else "")


@pytest.mark.parametrize(
    ("agent", "name", "front", "state"), read_rows("footprint", "rules_by_front_matter")
)
def test_front_matter_decides_when_rules_are_sent(
    world: FootprintWorld, agent: str, name: str, front: str, state: str
) -> None:
    world.write({name: f"---\n{front}\n---\nwords\n"})
    (part,) = world.footprint(agent).parts
    assert part.state == state


def test_a_rule_without_scope_beside_others_is_reported(world: FootprintWorld) -> None:
    world.write({".claude/rules/a.md": "# Always\nwords\n"})
    assert world.problems("claude-code", "rule-always-loaded") == []
    world.write({".claude/rules/b.md": "---\npaths: src/**\n---\nwords\n"})
    (problem,) = world.problems("claude-code", "rule-always-loaded")
    assert (world.name(problem.path), problem.range) == (".claude/rules/a.md", ByteRange(0, 8))


@pytest.mark.parametrize(
    ("agent", "sent"),
    [("claude-code", ["CLAUDE.md"]), ("copilot-cli", ["AGENTS.md"])],
)
def test_the_same_text_is_sent_once(world: FootprintWorld, agent: str, sent: list[str]) -> None:
    world.write({"AGENTS.md": "words"})
    (world.root / "CLAUDE.md").symlink_to("AGENTS.md")
    assert world.sent(agent) == sent
    assert world.problems(agent, "instructions-hidden") == []


def test_memory_is_cut_at_whole_lines(world: FootprintWorld) -> None:
    slug = "".join(sign if sign.isalnum() else "-" for sign in str(world.root))
    name = f"~/.claude/projects/{slug}/memory/MEMORY.md"
    for lines, kept in ((["x\n"] * 400, 200), ([f"{'x' * 313}\n"] * 190, 79)):
        world.write({name: "".join(lines)})
        (part,) = world.footprint("claude-code").parts
        assert (part.kind, part.state, part.text.count("\n")) == ("memory", "cut", kept)
        sent = len("".join(lines[:kept]))
        assert part.lost == (ByteRange(sent, len("".join(lines))),)
    world.write({name: "x\n" * 200})
    assert world.footprint("claude-code").parts[0].state == "sent"


def test_claude_imports_only_files_below_the_folder_where_it_starts(world: FootprintWorld) -> None:
    world.write({"CLAUDE.md": "@docs/a.md\n\n@pkg/b.md\n", "docs/a.md": "a", "pkg/b.md": "b"})
    assert world.sent("claude-code", "pkg") == ["CLAUDE.md", "pkg/b.md"]
    (problem,) = world.problems("claude-code", "import-skipped", "pkg")
    assert "outside pkg, where it starts" in problem.message
    assert world.sent("claude-code") == ["CLAUDE.md", "docs/a.md", "pkg/b.md"]


@pytest.mark.parametrize("is_approved", [False, True])
def test_claude_sends_what_is_outside_once_it_is_approved(
    world: FootprintWorld, *, is_approved: bool
) -> None:
    world.write({
        "CLAUDE.md": "@../notes.md\n", "../notes.md": "Notes", "~/shared/rule.md": "Rule",
        "~/shared/file.md": "File", ".claude/rules/own.md": "Own",
    })  # fmt: skip
    approval = {"hasClaudeMdExternalIncludesApproved": is_approved}
    world.write({"~/.claude.json": json.dumps({"projects": {str(world.root): approval}})})
    world.path("pkg").mkdir()
    world.path("pkg/CLAUDE.md").symlink_to(world.path("~/shared/file.md"))
    world.path(".claude/rules/linked.md").symlink_to(world.path("~/shared/rule.md"))
    parts = world.footprint("claude-code", "pkg").parts
    assert [(world.name(one.path), one.state) for one in parts] == [
        ("CLAUDE.md", "sent"),
        ("../notes.md", "sent" if is_approved else "hidden"),
        (".claude/rules/linked.md", "sent" if is_approved else "hidden"),
        (".claude/rules/own.md", "sent"),
        ("pkg/CLAUDE.md", "sent"),
    ]
    problems = world.problems("claude-code", "import-skipped", "pkg")
    assert [world.name(one.path) for one in problems] == ([] if is_approved else ["CLAUDE.md"])


def test_vibe_reads_instructions_from_the_nearest_trusted_folder(world: FootprintWorld) -> None:
    world.write(dict.fromkeys(["../AGENTS.md", "AGENTS.md", "pkg/AGENTS.md"], "Words"))
    for trusted, sent in (
        ([world.root], ["AGENTS.md", "pkg/AGENTS.md"]),
        ([world.root.parent], ["../AGENTS.md", "AGENTS.md", "pkg/AGENTS.md"]),
        ([world.root.parent, world.path("pkg")], ["pkg/AGENTS.md"]),
    ):
        folders = json.dumps([str(one) for one in trusted])
        world.write({"~/.vibe/trusted_folders.toml": f"trusted = {folders}\n"})
        assert world.sent("vibe", "pkg") == sent


@pytest.mark.parametrize(
    ("agent", "rules"), [("cline", ".clinerules"), ("kilo-code", ".kilo/rules")]
)
def test_rules_that_are_links_are_skipped(world: FootprintWorld, agent: str, rules: str) -> None:
    world.write({f"{rules}/a.md": "Words", "docs/b.md": "Words"})
    world.path(f"{rules}/b.md").symlink_to(world.path("docs/b.md"))
    assert world.sent(agent) == [f"{rules}/a.md"]
    assert [part.reason.partition(" skips ")[2] for part in world.footprint(agent).parts] == [
        "",
        "links",
    ]


def test_kilo_follows_no_link_out_of_the_project(world: FootprintWorld) -> None:
    world.write({"~/notes.md": "Words", "docs/a.md": "Words"})
    world.path("AGENTS.md").symlink_to(world.path("~/notes.md"))
    assert [part.state for part in world.footprint("kilo-code").parts] == ["hidden"]
    world.path("AGENTS.md").unlink()
    world.path("AGENTS.md").symlink_to(world.path("docs/a.md"))
    assert world.sent("kilo-code") == ["AGENTS.md"]


def test_an_output_style_is_sent_before_all_lists(world: FootprintWorld) -> None:
    world.write({
        ".claude/settings.json": '{"outputStyle": "short"}', "CLAUDE.md": "Words",
        ".claude/output-styles/short.md": "Be short.",
        ".claude/skills/a/SKILL.md": "---\ndescription: What\n---\n",
    })  # fmt: skip
    kinds = [part.kind for part in world.footprint("claude-code").parts]
    assert kinds == ["output-style", "skill", "instructions"]


def test_the_page_of_loading_rules_is_generated() -> None:
    path = Path(__file__).parents[2] / "docs/reference/loading-rules.md"
    command = "python -m tests.loading_rules_page > docs/reference/loading-rules.md"
    assert path.read_text("utf-8") == f"{page().rstrip()}\n", f"run: {command}"


def test_gemini_sends_the_memory_of_the_start_folder(world: FootprintWorld) -> None:
    names = json.dumps({"projects": {str(world.root): "one", str(world.home): "two"}})
    world.write(
        {"~/.gemini/projects.json": names, "~/.gemini/tmp/one/memory/MEMORY.md": "x\n" * 900}
    )
    world.write({"~/.gemini/tmp/two/memory/MEMORY.md": "y"})
    (part,) = world.footprint("gemini-cli").parts
    assert (part.kind, part.state, part.text) == ("memory", "sent", "x\n" * 900)


@pytest.mark.parametrize("name", ["../../secret", "..", "/etc/hosts", ""])
def test_names_in_the_agents_files_are_no_paths(world: FootprintWorld, name: str) -> None:
    world.write({"~/.gemini/projects.json": json.dumps({"projects": {str(world.root): name}})})
    world.write({".claude/settings.json": json.dumps({"outputStyle": name})})
    world.write({"~/secret/memory/MEMORY.md": "x", "~/.gemini/memory/MEMORY.md": "x"})
    assert world.sent("gemini-cli") == []
    assert world.sent("claude-code") == []


def test_claude_code_sends_the_chosen_output_style(world: FootprintWorld) -> None:
    text = "---\nname: chirping\ndescription: x\n---\n\nChirp.\n"
    names = [".claude/output-styles/chirping.md", ".claude/output-styles/silent.md"]
    world.write(dict.fromkeys([*names, "~/.claude/output-styles/loud.md"], text))
    assert world.sent("claude-code") == []
    world.write({".claude/settings.local.json": '{"outputStyle": "chirping"}'})
    (part,) = world.footprint("claude-code").parts
    assert (world.name(part.path), part.kind, part.text) == (names[0], "output-style", "Chirp.")


@pytest.mark.parametrize(
    ("agent", "model", "tokens"), read_rows("footprint", "constants", "agent", "model", "tokens")
)
def test_what_an_agent_sends_without_files(agent: str, model: str, tokens: int | None) -> None:
    constant = loading_rules()[agent].constant(model)
    assert (constant and constant.tokens) == tokens


@pytest.mark.parametrize("model", ["deepseek-v3.2", "anthropic/claude-sonnet-4.5"])
def test_lists_are_limited_by_the_window_that_the_status_shows(
    model: str, world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = list[int | None]()
    monkeypatch.setattr(
        footprint,
        "find_footprint",
        lambda *_, context_window, **_options: windows.append(context_window()),
    )
    footprint.find_for_model("codex", world.root, world.places, world.files, model)
    assert windows == [window_of(model)]


def test_changes_between_the_start_and_the_repository_are_noticed(world: FootprintWorld) -> None:
    world.write({"../AGENTS.md": "above the repository", "AGENTS.md": "", "pkg/sub/a.txt": ""})
    found, start = world.footprint("codex", "pkg/sub"), world.path("pkg/sub")
    assert found.parts == ()
    assert describe_changes(found, start, since_ms=0) == "1 file has changed"
