"""Tests findings about prompt files: place, severity, agents, and their form in `check`."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from sidecar.budgets.instruction_findings import character_offsets, check_instructions, locate
from sidecar.cli.check import check
from sidecar.config.settings import FootprintSettings, Settings
from sidecar.project.files import decode
from sidecar.project.source_files import SourceFiles
from tests.cases import read_rows
from tests.unit.footprint_world import FootprintWorld

TEXTS = [
    "plain\nlines\n",
    "é日本語\r\n🙂 and \r\n",
    "👩‍👩‍👧 family é\r\n" * 20,
]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("text", TEXTS)
def test_offsets_between_characters_are_exact(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    mark = len("".encode(encoding))
    wanted, at = {mark: 0}, mark
    for position, character in enumerate(text, 1):
        at += len(character.encode(encoding)) - mark
        wanted[at] = position
    found = character_offsets(data, wanted)
    assert {offset: (bounds.start, bounds.end) for offset, bounds in found.items()} == {
        offset: (position, position) for offset, position in wanted.items()
    }


@pytest.mark.parametrize(
    ("data", "offset", "start", "end"),
    [
        ("aé".encode(), 2, 1, 2),
        ("a🙂b".encode(), 1, 1, 1),
        ("a🙂b".encode(), 2, 1, 2),
        ("a🙂b".encode(), 4, 1, 2),
        ("a🙂b".encode(), 5, 2, 2),
        ("é".encode(), 1, 0, 1),
        ("é".encode("utf-8-sig"), 0, 0, 0),
        ("é".encode("utf-8-sig"), 2, 0, 0),
        ("é".encode("utf-8-sig"), 4, 0, 1),
        ("é".encode("utf-8-sig"), 5, 1, 1),
        ("🙂".encode("utf-16"), 4, 0, 1),
        (b"a\xe2b", 2, 1, 2),
        (b"a\xffb", 2, 2, 2),
        (b"a\0b", 2, 0, 0),
        (b"ab", 9, 2, 2),
    ],
)
def test_an_offset_inside_a_character_has_the_character_around_it(
    data: bytes, offset: int, start: int, end: int
) -> None:
    assert character_offsets(data, [offset])[offset] == (start, end)


def test_offsets_in_damaged_text_are_those_of_the_decoded_text() -> None:
    chance = random.Random(7)
    for _ in range(200):
        data = bytes(
            chance.choice(b"a\n\r\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\xff") for _ in range(12)
        )
        decoded = decode(data)
        assert decoded is not None
        found = character_offsets(data, range(13))
        assert found[0] == (0, 0)
        assert found[12].end == len(decoded.text)
        starts = [found[offset].start for offset in range(13)]
        assert starts == sorted(starts)


@pytest.fixture
def world(tmp_path: Path) -> FootprintWorld:
    return FootprintWorld(tmp_path)


@pytest.mark.parametrize(
    ("windows", "is_lost"),
    [({}, False), ({"claude-code": 1_000_000}, False), ({"claude-code": 200_000}, True)],
)
def test_a_skill_is_lost_only_in_a_window_that_is_known_to_be_small(
    world: FootprintWorld, windows: Mapping[str, int], is_lost: bool
) -> None:
    description = "word " * 120
    world.write(
        {
            f".claude/skills/s{number}/SKILL.md": f"---\ndescription: {description}\n---\nBody.\n"
            for number in range(5)
        }
    )
    settings = Settings(footprint=FootprintSettings(agents=("claude-code",)))
    found = check_instructions(world.root, settings, SourceFiles(), windows=windows)
    codes = {row.problem.code for rows in found.values() for row in rows}
    assert codes == ({"skill-lost"} if is_lost else set())


def test_a_lost_description_is_underlined(world: FootprintWorld) -> None:
    text = "---\nname: long\ndescription: é" + "x" * 1_024 + "\n---\nBody.\n"
    world.write({".github/skills/long/SKILL.md": text})
    settings = Settings(footprint=FootprintSettings(agents=("copilot-cli",)))
    (rows,) = check_instructions(world.root, settings, SourceFiles()).values()
    (finding,) = locate(rows, text.encode())
    assert finding.code == "skill-lost"
    assert text[finding.start : finding.end] == "é" + "x" * 1_024


def test_the_first_line_of_a_rule_without_a_scope_is_underlined(world: FootprintWorld) -> None:
    text = "---\r\ndescription: Style\r\n---\r\nBe brief.\r\n"
    world.write(
        {
            ".claude/rules/a.md": text,
            ".claude/rules/b.md": "---\npaths: src/**\n---\nBe kind.\n",
        }
    )
    agents = ("claude-code", "copilot-cli")
    settings = Settings(footprint=FootprintSettings(agents=agents))
    (rows,) = check_instructions(world.root, settings, SourceFiles()).values()
    (finding,) = locate(rows, text.encode())
    assert (finding.code, finding.severity) == ("rule-always-loaded", "information")
    assert text[finding.start : finding.end] == "---"
    assert finding.agents == agents
    assert "Add `paths` if" in finding.message


FIXTURES = Path(__file__).parent.parent / "fixtures"
CLAUDE = "# Rules\r\n\r\né 🙂 see @docs/style.md, please\r\n"
CODEX_BYTES = 32_768


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository whose imports end with a comma, on a machine with Claude Code."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "objects").mkdir()
    (folder / ".git" / "refs").mkdir()
    write(folder / "CLAUDE.md", CLAUDE)
    write(folder / "docs/style.md", "Be brief.\n")
    (tmp_path / "home" / ".claude").mkdir()
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(folder)
    return folder


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(check, arguments, input=stdin, catch_exceptions=False)


def found(*arguments: str, stdin: str | None = None) -> list[dict[str, Any]]:
    report = json.loads(run("--json", *arguments, stdin=stdin).stdout)
    rows: list[dict[str, Any]] = report.get("instructions", [])
    return rows


def codes(*arguments: str) -> list[tuple[str, str, list[str]]]:
    return [(row["path"], row["code"], row["agents"]) for row in found(*arguments)]


@pytest.mark.usefixtures("root")
def test_text_has_a_line_for_each_finding_and_where_it_is_explained() -> None:
    result = run(".")
    first, summary, explained = result.stdout.splitlines()
    assert first.startswith("CLAUDE.md:3:9: warning: Claude Code ")
    assert first.endswith("Put white space after the path. [import-skipped]")
    assert summary.startswith("2 files checked")
    assert explained.startswith("1 finding about what coding agents load: https://")
    assert result.exit_code == 0


@pytest.mark.usefixtures("root")
def test_json_has_the_documented_fields() -> None:
    (row,) = found(".")
    assert row.pop("message").startswith("Claude Code ")
    assert row == {
        "path": "CLAUDE.md",
        "severity": "warning",
        "code": "import-skipped",
        "agents": ["claude-code"],
        "line": 3,
        "column": 9,
        "endLine": 3,
        "endColumn": 24,
    }


@pytest.mark.usefixtures("root")
def test_sarif_is_valid_and_links_to_the_explanation() -> None:
    log = json.loads(run("--format", "sarif", ".").stdout)
    schema = json.loads((FIXTURES / "sarif-2.1.0.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(log)
    (result,) = log["runs"][0]["results"]
    rule = log["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert (result["ruleId"], result["level"], rule["id"]) == (
        "import-skipped",
        "warning",
        "import-skipped",
    )
    assert rule["helpUri"].endswith("instruction-findings.md#import-skipped")
    assert rule["defaultConfiguration"] == {"level": "warning"}
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "CLAUDE.md"}
    assert place["region"] == {"startLine": 3, "startColumn": 9, "endLine": 3, "endColumn": 24}
    assert result["properties"] == {"agents": ["claude-code"]}


@pytest.mark.usefixtures("root")
def test_annotations_are_at_the_first_line() -> None:
    lines = run("--format", "github", ".").stdout.splitlines()
    assert [line.partition("::Claude")[0] for line in lines] == [
        "::warning file=CLAUDE.md,line=3,title=Agent instructions"
    ]


@pytest.mark.usefixtures("root")
def test_markdown_has_a_row() -> None:
    rows = [line for line in run("--format", "markdown", ".").stdout.splitlines() if "|" in line]
    assert rows[-1].startswith("| CLAUDE.md:3 | warning | Claude Code ")


@pytest.mark.parametrize(
    ("settings", "severities", "exit_code"), read_rows("check", "instruction_settings")
)
def test_settings_choose_severities_and_agents(
    root: Path, settings: str, severities: list[str], exit_code: int
) -> None:
    (root / ".token-sidecar.toml").write_text(f"[footprint]\n{settings}\n")
    assert [row["severity"] for row in found(".")] == severities
    assert run(".").exit_code == exit_code


def test_agents_that_are_not_used_here_are_checked_only_in_ci(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "AGENTS.md", "a" * (CODEX_BYTES + 1))
    hidden = ("AGENTS.md", "instructions-hidden", ["claude-code"])
    cut = ("AGENTS.md", "instructions-cut", ["codex"])
    assert hidden in codes(".")
    assert cut not in codes(".")
    monkeypatch.setenv("CI", "true")
    assert hidden in codes(".")
    assert cut in codes(".")
    (root / ".token-sidecar.toml").write_text('[footprint]\nagents = ["codex"]\n')
    assert codes(".") == [cut]


def test_all_agents_are_checked_if_none_is_used_here(root: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / ".claude").rmdir()
    assert codes("CLAUDE.md") == [("CLAUDE.md", "import-skipped", ["claude-code"])]
    (root / ".token-sidecar.toml").write_text("[footprint]\nagents = []\n")
    assert codes("CLAUDE.md") == []


def test_only_checked_files_are_reported(root: Path) -> None:
    write(root / "AGENTS.md", "Rules.\n")
    assert codes("docs") == []
    assert codes("AGENTS.md") == [("AGENTS.md", "instructions-hidden", ["claude-code"])]
    assert [path for path, _, _ in codes(".")] == ["AGENTS.md", "CLAUDE.md"]


def test_paths_are_those_of_the_command_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".token-sidecar.toml").touch()
    assert [row["path"] for row in found(str(root / "CLAUDE.md"))] == [str(root / "CLAUDE.md")]
    monkeypatch.chdir(root / "docs")
    assert [row["path"] for row in found("../CLAUDE.md")] == ["../CLAUDE.md"]


@pytest.mark.usefixtures("root")
def test_standard_input_counts_as_the_text_of_the_named_file() -> None:
    assert found("-", "--stdin-name", "CLAUDE.md", stdin="see @docs/style.md please\n") == []
    (row,) = found("-", "--stdin-name", "CLAUDE.md", stdin="\n\n(@docs/style.md)\n")
    assert (row["path"], row["line"], row["column"]) == ("CLAUDE.md", 3, 2)
    assert found("-", "--stdin-name", "docs/style.md", stdin="(@other.md)\n") == []


@pytest.mark.parametrize(
    ("head", "column"),
    [(b"", CODEX_BYTES + 1), (b"\xef\xbb\xbf", CODEX_BYTES - 2)],
    ids=["plain", "byte order mark"],
)
def test_a_cut_starts_at_the_first_lost_byte(root: Path, head: bytes, column: int) -> None:
    (root / ".token-sidecar.toml").write_text('[footprint]\nagents = ["codex"]\n')
    write(root / "AGENTS.md", head + b"a" * CODEX_BYTES + b"bc\n")
    (row,) = found("AGENTS.md")
    assert (row["code"], row["line"], row["column"]) == ("instructions-cut", 1, column)
    assert (row["endLine"], row["endColumn"]) == (2, 1)


def test_the_same_finding_of_several_agents_is_reported_once(root: Path) -> None:
    (root / ".token-sidecar.toml").write_text(
        '[footprint]\nagents = ["claude-code", "codex", "copilot-cli"]\n'
    )
    write(root / "CLAUDE.md", "see @docs/gone.md\nand (@docs/style.md)\n")
    same, only = found(".")
    assert same["agents"] == ["claude-code", "copilot-cli"]
    assert " The same applies to Copilot CLI " in same["message"]
    assert only["agents"] == ["claude-code"]
    assert "The same" not in only["message"]


def test_a_hostile_file_has_a_limited_number_of_findings(root: Path) -> None:
    write(root / "CLAUDE.md", "@docs/style.md,\n" * 5_000)
    assert len(found(".")) == 100


def test_control_characters_of_names_do_not_reach_a_terminal(root: Path) -> None:
    write(root / "CLAUDE.md", "@docs/\x1b[31mred.md\n")
    assert "\x1b" not in run(".").stdout
    assert "\x1b" not in run("--format", "github", ".").stdout
