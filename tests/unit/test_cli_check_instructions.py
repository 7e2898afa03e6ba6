"""Tests that `token-sidecar check` reports what coding agents lose of prompt files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from sidecar.cli.check import check
from tests.cases import read_rows

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


def test_a_cut_inside_a_character_includes_the_character(root: Path) -> None:
    (root / ".token-sidecar.toml").write_text('[footprint]\nagents = ["codex"]\n')
    write(root / "AGENTS.md", "a" + "é" * 20_000)
    (row,) = found("AGENTS.md")
    kept = (CODEX_BYTES - 1) // 2
    assert (row["line"], row["column"]) == (1, 1 + kept + 1)


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
