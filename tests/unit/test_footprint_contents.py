"""Tests what agents send of skills and sub-agents, which `@path` mentions they import, and what is
lost.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sidecar.agents.folders import Places
from sidecar.project.footprint import ByteRange, Footprint, Part, find_footprint
from sidecar.text.prompt_markdown import (
    find_block_comments,
    find_mentions,
    is_valid_front_matter,
    read_yaml,
)
from tests.cases import read_rows
from tests.unit.footprint_world import FootprintWorld


@pytest.fixture
def world(tmp_path: Path) -> FootprintWorld:
    return FootprintWorld(tmp_path)


def skill(description: str, more: str = "", name: str = "") -> str:
    named = f"name: {name}\n" if name else ""
    described = f"description: {description}\n" if description else ""
    return f"---\n{named}{described}{more}---\n\n# Title\n\nThe body.\n"


def skills(world: FootprintWorld, folder: str, number: int, length: int) -> None:
    world.write({f"{folder}/s{index}/SKILL.md": skill("d" * length) for index in range(number)})


def entries(found: Footprint) -> list[Part]:
    return [one for one in found.parts if one.kind in ("skill", "command", "sub-agent")]


def listed(
    world: FootprintWorld, agent: str, window: int, env: dict[str, str] | None = None
) -> list[str]:
    """Return the lines that an agent sends with a context window of some tokens."""
    found = find_footprint(agent, world.root, Places(world.home, env or {}), context_window=window)
    return [one.text for one in entries(found) if one.text]


def described(lines: list[str]) -> int:
    """Return how many lines have a description."""
    return sum("ddd" in line for line in lines)


PLACES = read_rows("footprint", "skill_folders")


@pytest.mark.parametrize(("agent", "start", "folders"), PLACES, ids=[one[0] for one in PLACES])
def test_skills_are_found_where_the_agent_looks(
    world: FootprintWorld, agent: str, start: str, folders: list[str]
) -> None:
    world.write({f"{folder}/SKILL.md": skill("What it does") for folder in folders})
    world.write({"other/skills/z/SKILL.md": skill("Elsewhere")})
    found = world.footprint(agent, start)
    parts = entries(found)
    assert sorted(world.name(part.path) for part in parts) == sorted(
        f"{one}/SKILL.md" for one in folders
    )
    assert {part.state for part in parts} == {"name-only"}
    assert all(Path(part.path).parent.name in part.text for part in parts)
    assert all(("What it does" in part.text) is (agent != "cline") for part in parts)
    assert not any("body" in part.text for part in parts)


LENGTHS = read_rows("footprint", "description_lengths")


@pytest.mark.parametrize(("agent", "folder", "length", "kept", "mark"), LENGTHS)
def test_long_descriptions_are_cut(
    world: FootprintWorld, agent: str, folder: str, length: int, kept: int, mark: str
) -> None:
    name = f"{folder}/skills/a/SKILL.md"
    world.write({name: skill("d" * length)})
    found = world.footprint(agent)
    (part,) = entries(found)
    assert f"{'d' * kept}{mark}" in part.text
    assert "d" * (kept + 1) not in part.text
    assert part.state == ("cut" if mark else "name-only")
    problems = [one for one in found.problems if one.code == "skill-lost"]
    data = (world.root / name).read_bytes()
    lost = ["d" * (length - kept)] if mark else []
    assert [data[one.range.start : one.range.end].decode() for one in problems] == lost
    assert part.lost == tuple(one.range for one in problems)


@pytest.mark.parametrize("agent", ["copilot-cli", "vibe"])
def test_a_skill_with_a_long_description_vanishes(world: FootprintWorld, agent: str) -> None:
    world.write({".agents/skills/a/SKILL.md": skill(f"'{'d' * 1_025}'")})
    found = world.footprint(agent)
    (part,) = entries(found)
    assert (part.state, part.text) == ("hidden", "")
    (problem,) = found.problems
    data = (world.root / ".agents/skills/a/SKILL.md").read_bytes()
    assert data[problem.range.start : problem.range.end] == b"d" * 1_025
    assert "over 1,024 characters makes the whole entry vanish" in problem.message


@pytest.mark.parametrize(
    ("agent", "folder", "more", "state"), read_rows("footprint", "skills_by_front_matter")
)
def test_front_matter_keeps_skills_out_of_the_list(
    world: FootprintWorld, agent: str, folder: str, more: str, state: str
) -> None:
    world.write({f"{folder}/skills/a/SKILL.md": skill("x", more)})
    (part,) = entries(world.footprint(agent))
    assert part.state == state
    assert bool(part.text) is (state == "name-only")


@pytest.mark.parametrize(("value", "state"), [("false", "later"), ("true", "name-only")])
def test_a_file_beside_a_skill_keeps_it_out_of_the_list(
    world: FootprintWorld, value: str, state: str
) -> None:
    policy = f"policy:\n  allow_implicit_invocation: {value}\n"
    folder = ".agents/skills/a"
    world.write({f"{folder}/SKILL.md": skill("x"), f"{folder}/agents/openai.yaml": policy})
    (part,) = entries(world.footprint("codex"))
    assert part.state == state


@pytest.mark.parametrize(
    ("agent", "folder", "text"),
    [
        ("claude-code", ".claude", "- a: Title\n"),
        ("copilot-cli", ".claude", "<description>Title</description>"),
        ("codex", ".agents", ""),
        ("gemini-cli", ".agents", ""),
        ("cline", ".cline", "a,\n"),
    ],
)
def test_skills_without_a_description(
    world: FootprintWorld, agent: str, folder: str, text: str
) -> None:
    world.write({f"{folder}/skills/a/SKILL.md": skill("")})
    (part,) = entries(world.footprint(agent))
    assert text in part.text
    assert part.state == ("name-only" if text else "hidden")


def test_when_to_use_belongs_to_the_description(world: FootprintWorld) -> None:
    text = skill("What", "when_to_use: When\n", name="other")
    world.write({".claude/skills/a/SKILL.md": text})
    assert listed(world, "claude-code", 200_000) == ["- other: What - When\n"]


@pytest.mark.parametrize(
    ("number", "length", "window", "kept"),
    [(30, 561, 200_000, 3), (5, 600, 200_000, 3), (300, 561, 1_000_000, 38), (3, 600, 200_000, 3)],
)
def test_claude_code_drops_whole_descriptions(
    world: FootprintWorld, number: int, length: int, window: int, kept: int
) -> None:
    skills(world, ".claude/skills", number, length)
    lines = listed(world, "claude-code", window)
    assert (len(lines), described(lines)) == (number, kept)


@pytest.mark.parametrize(
    ("agent", "names"),
    [
        ("opencode", ["ant", "mole", "nested", "owl", "zoo"]),
        ("codex", ["mole", "nested", "owl", "ant", "zoo"]),
        ("gemini-cli", ["ant", "zoo", "mole", "owl"]),
    ],
)
def test_lists_are_sorted_as_the_agent_sorts_them(
    world: FootprintWorld, agent: str, names: list[str]
) -> None:
    for folder in ("deep/nested", "mole", "owl"):
        world.write({f".agents/skills/{folder}/SKILL.md": skill("What")})
    for name in ("ant", "zoo"):
        world.write({f"~/.agents/skills/{name}/SKILL.md": skill("What")})
    assert [Path(part.path).parent.name for part in entries(world.footprint(agent))] == names


def test_claude_code_keeps_the_descriptions_of_used_skills(world: FootprintWorld) -> None:
    skills(world, ".claude/skills", 300, 561)
    usage = {"s299": {"usageCount": 9}, "s250": {"usageCount": 3}, "odd": "x"}
    world.write({"~/.claude.json": json.dumps({"skillUsage": usage})})
    lines = listed(world, "claude-code", 1_000_000)
    assert described(lines) == 38
    assert all(any(f"- {name}: d" in line for line in lines) for name in usage if name != "odd")


@pytest.mark.parametrize(
    ("fraction", "kept"), [("0.005", 12), ("0.02", 92), ('"x"', 38), ("-1", 38)]
)
def test_claude_code_reads_its_limit_from_its_settings(
    world: FootprintWorld, fraction: str, kept: int
) -> None:
    skills(world, ".claude/skills", 300, 561)
    world.write({".claude/settings.json": f'{{"skillListingBudgetFraction": {fraction}}}'})
    assert described(listed(world, "claude-code", 1_000_000)) == kept


def test_a_variable_replaces_the_limit_of_claude_code(world: FootprintWorld) -> None:
    skills(world, ".claude/skills", 30, 561)
    env = {"SLASH_COMMAND_TOOL_CHAR_BUDGET": "100000"}
    assert described(listed(world, "claude-code", 200_000, env)) == 30


def test_commands_are_in_the_list_of_claude_code(world: FootprintWorld) -> None:
    world.write({".claude/commands/a.md": "Do it now.\n", "~/.claude/commands/b.md": skill("B")})
    assert listed(world, "claude-code", 200_000) == ["- b: B\n", "- a: Do it now.\n"]


@pytest.mark.parametrize(
    ("number", "window", "kept"), [(300, 258_400, 38), (300, 475_000, 98), (60, 475_000, 561)]
)
def test_codex_shortens_all_descriptions_alike(
    world: FootprintWorld, number: int, window: int, kept: int
) -> None:
    skills(world, ".agents/skills", number, 561)
    lines = listed(world, "codex", window)
    assert len(lines) == number
    assert {line.count("d") - 1 for line in lines} == {kept}  # one is in SKILL.md


def test_copilot_names_the_skills_that_do_not_fit(world: FootprintWorld) -> None:
    skills(world, ".github/skills", 90, 561)
    lines = listed(world, "copilot-cli", 200_000)
    kept = described(lines)
    assert len(lines) == 90
    assert sum(len(line) for line in lines if "ddd" in line) <= 15_000
    assert 20 <= kept <= 25
    names = sorted(f"s{number}" for number in range(90))
    assert [name for name in names if f"{name},\n" in lines] == names[kept:]


def test_lost_descriptions_of_a_list_are_problems(world: FootprintWorld) -> None:
    skills(world, ".claude/skills", 5, 600)
    found = find_footprint("claude-code", world.root, world.places, context_window=200_000)
    lost = [one for one in found.problems if one.code == "skill-lost"]
    assert [world.name(one.path) for one in lost] == [
        ".claude/skills/s3/SKILL.md",
        ".claude/skills/s4/SKILL.md",
    ]
    assert {one.range.end - one.range.start for one in lost} == {600}
    assert "Claude Code 2.1.332: the description of this skill does not fit" in lost[0].message


def test_without_a_window_no_list_is_cut(world: FootprintWorld) -> None:
    skills(world, ".agents/skills", 300, 561)
    found = find_footprint("codex", world.root, world.places)
    assert {one.state for one in entries(found)} == {"name-only"}


@pytest.mark.parametrize(
    ("agent", "name", "text", "line"),
    [
        ("claude-code", ".claude/agents/a.md", skill("X"), "- a: X (Tools: All tools)\n"),
        ("opencode", ".opencode/agent/a.md", skill("X"), "- a: X\n"),
        ("kilo-code", ".kilo/agents/a.md", skill("X"), "- a: X\n"),
        ("copilot-cli", ".github/agents/a.md", skill("X"), "- a: X\n"),
        ("codex", "~/.codex/agents/a.toml", 'name = "b"\ndescription = "X"\n', "b: {\nX\n}\n"),
        ("gemini-cli", "~/.gemini/agents/a.md", skill("X"), "- a -> X\n"),
    ],
)
def test_sub_agents_are_described(
    world: FootprintWorld, agent: str, name: str, text: str, line: str
) -> None:
    world.write({name: text})
    (part,) = entries(world.footprint(agent))
    assert (part.kind, part.text) == ("sub-agent", line)


def test_two_hundred_skills_are_opened_once(world: FootprintWorld) -> None:
    skills(world, ".agents/skills", 200, 100)
    for agent in ("codex", "copilot-cli", "opencode", "gemini-cli"):
        assert len(entries(world.footprint(agent))) == 200
        assert world.files.opened == 200


def test_the_span_of_a_description_ends_before_the_next_key(world: FootprintWorld) -> None:
    text = f"---\ndescription: >-\n  {'d' * 600}\n  {'e' * 600}\nname: a\n---\n"
    world.write({".agents/skills/a/SKILL.md": text})
    (problem,) = world.footprint("vibe").problems
    assert text[problem.range.start : problem.range.end].startswith(">-\n  ddd")
    assert text[problem.range.start : problem.range.end].endswith("eee")


def test_kimi_sends_when_to_use_beside_a_cut_description(world: FootprintWorld) -> None:
    world.write({".agents/skills/a/SKILL.md": skill("d" * 300, "when_to_use: When\n")})
    (line,) = listed(world, "kimi-code", 200_000)
    path = world.root / ".agents/skills/a/SKILL.md"
    assert line == f"- a: {'d' * 247}...\n  When to use: When\n  Path: {path}\n"


def test_skills_that_codex_installs_itself_belong_to_its_constant(world: FootprintWorld) -> None:
    world.write({"~/.codex/skills/.system/a/SKILL.md": skill("A")})
    world.write({"~/.codex/skills/b/SKILL.md": skill("B")})
    assert [world.name(one.path) for one in entries(world.footprint("codex"))] == [
        "~/.codex/skills/b/SKILL.md"
    ]


def test_pi_sends_skills_of_the_project_once_it_is_trusted(world: FootprintWorld) -> None:
    world.write({".pi/skills/a/SKILL.md": skill("A"), ".agents/skills/b.md": skill("B")})
    parts = entries(world.footprint("pi"))
    assert [(one.state, one.text) for one in parts] == [("later", ""), ("later", "")]
    assert {one.reason for one in parts} == {"sent once you have trusted the project"}


def test_skills_that_codex_installs_itself_take_room_in_its_list(world: FootprintWorld) -> None:
    skills(world, ".agents/skills", 100, 561)
    alone = listed(world, "codex", 200_000)
    skills(world, "~/.codex/skills/.system", 100, 561)
    lines = listed(world, "codex", 200_000)
    assert len(lines) == len(alone) == 100
    assert sum(map(len, lines)) < 0.6 * sum(map(len, alone))


MAIN = {
    "claude-code": "CLAUDE.md",
    "gemini-cli": "GEMINI.md",
    "qwen-code": "QWEN.md",
    "copilot-cli": "CLAUDE.md",
    "codex": "AGENTS.md",
}
EVERY = "claude-code gemini-cli qwen-code copilot-cli"
FORMS = [
    # The line, and the agents that import docs/a.md because of it.
    ("@docs/a.md", EVERY),
    ("See @docs/a.md for more", EVERY),
    ("- @docs/a.md", EVERY),
    ("  1. text @docs/a.md", EVERY),
    ("@./docs/a.md", EVERY),
    ("@docs/../docs/a.md", EVERY),
    ("# Title @docs/a.md", EVERY),
    ("> @docs/a.md", EVERY),
    ("@docs/a.md, and", "copilot-cli"),
    ("@docs/a.md.", "copilot-cli"),
    ("(@docs/a.md)", "copilot-cli"),
    ('"@docs/a.md"', "copilot-cli"),
    ("**@docs/a.md**", "claude-code"),
    ("text <b>@docs/a.md", "claude-code copilot-cli"),
    ("`@docs/a.md`", ""),
    ("```\n@docs/a.md\n```", ""),
    ("- item\n\n  ~~~\n  @docs/a.md\n  ~~~", ""),
    ("<!-- @docs/a.md -->", "gemini-cli qwen-code copilot-cli"),
    ("<!--\n@docs/a.md\n-->", "gemini-cli qwen-code copilot-cli"),
    ("<div>\n@docs/a.md\n</div>", "gemini-cli qwen-code copilot-cli"),
    ("<!-- open\n\n@docs/a.md", "gemini-cli qwen-code copilot-cli"),
    ("[text](docs/a.md)", ""),
    ("@{docs/a.md}", ""),
    ("@docs", ""),
    ("@docs/missing.md", ""),
    ("mail@docs/a.md", ""),
]


@pytest.mark.parametrize("agent", MAIN)
@pytest.mark.parametrize(("line", "agents"), FORMS)
def test_each_agent_imports_some_forms(
    world: FootprintWorld, agent: str, line: str, agents: str
) -> None:
    world.write({MAIN[agent]: f"first\n\n{line}\n\nlast\n", "docs/a.md": "words"})
    expected = [MAIN[agent], *(["docs/a.md"] if agent in agents.split() else [])]
    assert world.sent(agent) == expected


@pytest.mark.parametrize(
    ("agent", "hops"), [("claude-code", 4), ("gemini-cli", 5), ("qwen-code", 5), ("copilot-cli", 8)]
)
def test_imports_end_after_some_hops(world: FootprintWorld, agent: str, hops: int) -> None:
    world.write({MAIN[agent]: "@f1.md"})
    world.write({f"f{number}.md": f"{number} @f{number + 1}.md" for number in range(1, 40)})
    assert world.sent(agent) == [MAIN[agent], *(f"f{number}.md" for number in range(1, hops + 1))]
    (problem,) = world.problems(agent, "import-skipped")
    assert world.name(problem.path) == f"f{hops}.md"
    assert problem.range == ByteRange(2, 2 + len(f"@f{hops + 1}.md"))
    assert f"more than {hops} imports deep" in problem.message


def test_copilot_imports_64_files_into_a_file(world: FootprintWorld) -> None:
    names = [f"docs/{number:02}.md" for number in range(70)]
    world.write({name: name for name in names} | {names[0]: "first\n@inner.md\n"})
    world.write(
        {"docs/inner.md": "inner", "docs/other.md": "other", "CLAUDE.md": "@docs/other.md\n"}
    )
    world.write({"AGENTS.md": "".join(f"@{name}\n" for name in names)})
    sent = world.sent("copilot-cli")
    assert sent == [
        "AGENTS.md",
        names[0],
        "docs/inner.md",
        *names[1:63],
        "CLAUDE.md",
        "docs/other.md",
    ]
    assert len(world.problems("copilot-cli", "import-skipped")) == 7


@pytest.mark.parametrize("agent", ["gemini-cli", "qwen-code", "copilot-cli", "claude-code"])
def test_a_file_that_is_imported_twice(world: FootprintWorld, agent: str) -> None:
    name, is_repeated = MAIN[agent], agent in ("gemini-cli", "qwen-code")
    world.write({name: "@a.md\n\n@a.md\n", "a.md": "words"})
    assert world.sent(agent) == [name, *["a.md"] * (1 + is_repeated)]
    ranges = [one.range for one in world.problems(agent, "import-twice")]
    assert ranges == ([ByteRange(7, 12)] if is_repeated else [])


SKIPPED = read_rows("footprint", "skipped_imports")


@pytest.mark.parametrize(("text", "mention", "message"), SKIPPED)
def test_a_skipped_import_is_reported_at_its_place(
    world: FootprintWorld, text: str, mention: str, message: str
) -> None:
    world.write({"CLAUDE.md": f"first\n\n{text}\n", "docs/a.md": "words"})
    (problem,) = world.problems("claude-code", "import-skipped")
    data = (world.root / "CLAUDE.md").read_bytes()
    assert data[problem.range.start : problem.range.end].decode() == mention
    assert message in problem.message
    assert problem.message.startswith("Claude Code 2.1.332 ")


@pytest.mark.parametrize(
    "text",
    ["@angular/core", "@types/node", "ask @someone", "a@b.md", "`@missing.md`", "@media (x)", "@"],
)
def test_other_words_with_an_at_sign_are_not_reported(world: FootprintWorld, text: str) -> None:
    world.write({"CLAUDE.md": f"first {text}\n"})
    assert world.footprint("claude-code").problems == ()


COMMENTS = [
    # A text, and what Claude Code sends of it. Texts of four measured places are the first ones.
    ("a\n<!-- x -->\nb\n", "a\nb\n"),
    ("<!--\nx\n\ny\n-->\nb\n", "b\n"),
    ("a\n<!-- x --> b\nc\n", "a\n b\nc\n"),
    ("a\n<!-- x -->\n\n\nb\n", "a\nb\n"),
    ("   <!-- x -->\nb\n", "b\n"),
    ("- a\n<!-- x -->\n- b\n", "- a\n- b\n"),
    ("<!-- x --><!-- y -->\nb", "b"),
    ("a <!-- x -->\n", None),
    ("- a\n  <!-- x -->\n", None),
    ("- <!-- x -->\n", None),
    ("> <!-- x -->\n", None),
    ("```\n<!-- x -->\n```\n", None),
    ("    <!-- x -->\n", None),
    ("<div>\n<!-- x -->\n</div>\n", None),
    ("<pre>\n\n<!-- x -->\n</pre>\n", None),
    ("a\n<!-- x\nb\n", None),
]


@pytest.mark.parametrize(("text", "sent"), COMMENTS)
def test_claude_code_removes_comments_that_are_blocks(
    world: FootprintWorld, text: str, sent: str | None
) -> None:
    world.write({"CLAUDE.md": text + "end"})
    (part,) = world.footprint("claude-code").parts
    assert part.text == ((text if sent is None else sent) + "end").strip()
    assert (part.state, part.lost) == ("sent", ())


@pytest.mark.parametrize("name", ["AGENTS.md", ".claude/rules/a.md", "CLAUDE.md"])
def test_claude_code_removes_front_matter(world: FootprintWorld, name: str) -> None:
    world.write({name: "---\ntitle: x\n---\n\n<!-- y -->\nwords\n"})
    assert [one.text for one in world.footprint("claude-code").parts] == ["words"]


@pytest.mark.parametrize("agent", ["codex", "opencode", "pi", "gemini-cli", "copilot-cli"])
def test_others_send_the_text_as_it_is(world: FootprintWorld, agent: str) -> None:
    text = "---\ntitle: x\n---\n<!-- y -->\nwords\n"
    world.write({"GEMINI.md" if agent == "gemini-cli" else "AGENTS.md": text})
    assert [one.text for one in world.footprint(agent).parts] == [text]


HOSTILE = [
    "`" * 500_000 + "a" * 400_000,
    " ".join("`" * length for length in range(1, 1_300)),
    "` `` " * 150_000,
    "@" + "." * 900_000,
    "@a" * 450_000,
    "(@a" * 300_000,
    "@" + "a/" * 450_000,
    "@" + "\\ " * 450_000,
    "~" * 900_000,
    "<!-- " * 200_000,
    "<!--\n" * 50_000,
    "<!-- a -->" + "<!--" * 400_000,
    "<!---->x" * 200_000,
    "<a " * 300_000,
    "<div>" * 200_000,
    "- " * 400_000,
    "- a\n" * 50_000,
    "    x\n" * 50_000,
    "---\n" * 50_000,
    "a: [" * 200_000,
    'a: "' * 200_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_every_text_is_parsed_in_linear_time(text: str) -> None:
    """The texts are so long that a parser with quadratic run time would never finish."""
    text = f"{text}\n{text} @b.md\n"
    find_block_comments(text)
    read_yaml(text)
    assert len(list(find_mentions(text, after='("'))) <= 400


@pytest.mark.parametrize(("line", "named"), read_rows("footprint", "code_spans"))
def test_code_spans_end_as_in_commonmark(line: str, named: list[str]) -> None:
    """A code span ends at the next run of backticks of the same length."""
    assert [one.path for one in find_mentions(line)] == named


def test_mentions_have_their_place() -> None:
    text = "é @a.md\n\n- `x` @b.md\n"
    found = [(text[one.start : one.end], one.path) for one in find_mentions(text)]
    assert found == [("@a.md", "a.md"), ("@b.md", "b.md")]


@pytest.mark.parametrize(("text", "value"), read_rows("footprint", "yaml_values"))
def test_front_matter_is_read_like_yaml(text: str, value: object) -> None:
    yaml = pytest.importorskip("yaml")
    value = tuple(value) if isinstance(value, list) else value
    assert read_yaml(text)["key"] == value
    real = yaml.safe_load(re.sub(r": (src/|\*)", r": \1", text))["key"]
    plain = "" if real is None else tuple(real) if isinstance(real, list) else real
    assert plain == value or "b: c" in text


@pytest.mark.parametrize(("text", "is_valid"), read_rows("footprint", "yaml_validity"))
def test_invalid_front_matter_is_found(text: str, *, is_valid: bool) -> None:
    yaml = pytest.importorskip("yaml")
    assert is_valid_front_matter(f"---\n{text}\n---\nwords\n") is is_valid
    try:
        yaml.safe_load(text)
    except yaml.YAMLError:
        assert not is_valid
    else:
        assert is_valid


def test_imports_that_are_skipped_are_hidden_parts(world: FootprintWorld) -> None:
    world.write({"CLAUDE.md": "@docs/a.md\n@nowhere.md\n@nowhere.md\n", "docs/a.md": "a"})
    hidden = world.parts(world.footprint("claude-code"), "hidden")
    assert [(one.kind, world.name(one.path), one.text) for one in hidden] == [
        ("import", "nowhere.md", "")
    ]
    assert hidden[0].reason.startswith("not imported: the file does not exist")


def test_an_import_that_another_file_imports_is_not_hidden(world: FootprintWorld) -> None:
    world.write({"CLAUDE.md": "<!-- @docs/a.md -->\n@docs/a.md\n", "docs/a.md": "a"})
    assert world.parts(world.footprint("claude-code"), "hidden") == []


def test_excluded_files_are_hidden_parts(world: FootprintWorld) -> None:
    settings = '{"claudeMdExcludes": ["**/CLAUDE.md", "**/rules/x.md"]}'
    world.write({".claude/settings.json": settings, "CLAUDE.md": "a", ".claude/rules/x.md": "x"})
    hidden = world.parts(world.footprint("claude-code"), "hidden")
    assert [(one.kind, one.reason) for one in hidden] == [
        ("instructions", "`claudeMdExcludes` excludes it"),
        ("rule", "`claudeMdExcludes` excludes it"),
    ]
