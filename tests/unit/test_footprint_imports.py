"""Tests which `@path` mentions each agent imports, and which comments are removed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sidecar.project.footprint import ByteRange
from sidecar.text.prompt_markdown import (
    find_block_comments,
    find_mentions,
    is_valid_front_matter,
    read_yaml,
)
from tests.cases import read_rows
from tests.unit.footprint_world import FootprintWorld

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


@pytest.fixture
def world(tmp_path: Path) -> FootprintWorld:
    return FootprintWorld(tmp_path)


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
