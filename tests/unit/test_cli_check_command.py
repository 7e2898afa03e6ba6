"""Tests `token-sidecar check`: its reports, formats and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from sidecar.cli.check import check

FIXTURES = Path(__file__).parent.parent / "fixtures"
CONFIGURATION = """\
[[budget]]
files = "AGENTS.md"
max-tokens = 20
[[budget]]
files = "prompts/**/*.md"
max-tokens = 100
sections = { "Context" = 10 }
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    write(root, ".token-sidecar.toml", CONFIGURATION)
    write(root, "AGENTS.md", "one two three four five six seven eight nine ten\n" * 5)
    write(
        root, "prompts/a b/plan.md", "# Plan\n\n## Context\n\nSome words of context, some more.\n"
    )
    write(root, "fine.txt", "Nothing to say.\n")
    monkeypatch.chdir(root)
    return root


def write(root: Path, name: str, text: str | bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(check, arguments, input=stdin, catch_exceptions=False)


def found(*arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run("--format", "json", *arguments).stdout)
    return {file["path"]: file for file in report["files"]}


@pytest.mark.usefixtures("project")
def test_text() -> None:
    result = run(".")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "AGENTS.md:2:45: error: AGENTS.md is 55 tokens, 35 over its budget of 20 (gpt-5, exact)"
        " [budget-exceeded]",
        "prompts/a b/plan.md:5:33: warning: Plan > Context in prompts/a b/plan.md is 11 tokens, "
        "1 over its budget of 10 (gpt-5, exact) [budget-exceeded]",
        "4 files checked: 2 budgets exceeded, 0 near",
    ]


@pytest.mark.usefixtures("project")
def test_json_has_the_documented_fields() -> None:
    files = found(".")
    assert set(files) == {".token-sidecar.toml", "AGENTS.md", "fine.txt", "prompts/a b/plan.md"}
    agents = files["AGENTS.md"]
    assert (agents["tokens"], agents["method"]) == (55, "exact")
    (finding,) = agents["findings"]
    contract = {key: finding[key] for key in ("severity", "budget", "tokens", "over", "section")}
    assert contract == {
        "severity": "error",
        "budget": 20,
        "tokens": 55,
        "over": 35,
        "section": None,
    }
    assert files["prompts/a b/plan.md"]["findings"][0]["section"] == "Plan > Context"
    assert files["fine.txt"]["findings"] == []
    assert run("--json", ".").stdout == run("--format", "json", ".").stdout


@pytest.mark.usefixtures("project")
def test_sarif_is_valid_by_its_schema() -> None:
    # The schema is from @microsoft/sarif-multitool 5.7.0.
    schema = json.loads((FIXTURES / "sarif-2.1.0.json").read_text())
    log = json.loads(run("--format", "sarif", ".").stdout)
    checker = jsonschema.Draft202012Validator
    checker.check_schema(schema)
    assert [str(error) for error in checker(schema).iter_errors(log)] == []
    results = log["runs"][0]["results"]
    assert [result["level"] for result in results] == ["error", "warning"]
    place = results[1]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "prompts/a%20b/plan.md"
    assert place["region"] == {"startLine": 5, "startColumn": 33, "endLine": 6, "endColumn": 1}
    broken = {**log, "version": "9"}
    assert list(checker(schema).iter_errors(broken))


def test_github_annotations(project: Path) -> None:
    write(project, "prompts/50%,a:b.md", "# Context\n" + "x " * 30)
    lines = run("--format", "github", ".").stdout.splitlines()
    assert lines[0] == (
        "::error file=AGENTS.md,line=2,title=Token budget::"
        "AGENTS.md is 55 tokens, 35 over its budget of 20 (gpt-5, exact)"
    )
    assert lines[1].startswith(
        "::error file=prompts/50%25%2Ca%3Ab.md,line=2,title=Token budget::"
        "Context in prompts/50%25,a:b.md is "
    )


def test_no_annotations_without_findings(project: Path) -> None:
    result = run("--format", "github", "fine.txt")
    assert (result.exit_code, result.stdout) == (0, "")
    assert run("fine.txt").stdout == "1 file checked: no budget matches it\n"
    write(project, "AGENTS.md", "a")
    assert run("fine.txt", "AGENTS.md").stdout == "2 files checked: all within budget\n"


def test_without_a_budget_the_summary_says_how_to_set_one(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "a")
    result = CliRunner().invoke(check, ["--root", str(tmp_path), str(tmp_path / "a.md")])
    assert result.exit_code == 0
    assert result.output.startswith("1 file checked. No budgets are configured. ")
    assert "`token-sidecar config init`" in result.output
    assert result.output.endswith(" creates a sample.\n")


def test_near_budget_exits_with_0(project: Path) -> None:
    write(project, "AGENTS.md", "a b c d e f g h i j k l m n o p q r s")
    result = run("AGENTS.md")
    assert result.exit_code == 0
    assert result.stdout.startswith("AGENTS.md:1:1: information: AGENTS.md is 19 tokens, 95 % of ")


def test_another_model(project: Path) -> None:
    files = found("--model", "claude-sonnet-4-5", "AGENTS.md")
    assert files["AGENTS.md"]["method"] != "exact"
    message = files["AGENTS.md"]["findings"][0]["message"]
    assert message.startswith("AGENTS.md is ~")
    assert "(claude-sonnet-4-5, " in message


def test_misspelled_models_of_budgets_and_settings_are_reported_once(project: Path) -> None:
    rule = '[[budget]]\nfiles = "*.txt"\nmax-tokens = 100\nmodel = "claude-sonet-4-5"\n'
    write(project, ".token-sidecar.toml", f'model = "gpt-55"\n{rule}{rule}')
    lines = [line for line in run(".").stderr.splitlines() if "did you mean" in line]
    assert [line.split()[1] for line in lines] == ["gpt-55", "claude-sonet-4-5"]


@pytest.mark.parametrize("arguments", [["no-such-file"], [], ["--format", "xml", "."]])
def test_invalid_arguments_exit_with_2(project: Path, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_mistakes_in_the_configuration(project: Path) -> None:
    write(project, ".token-sidecar.toml", CONFIGURATION + "[context]\nreserve = 'x'\n")
    result = run("fine.txt")
    assert result.exit_code == 2
    assert ".token-sidecar.toml:9:11: context.reserve: must be a whole number" in result.stderr
    assert result.stdout == "1 file checked: no budget matches it\n"
    assert "budgets affected by the configuration errors above were not checked" in result.stderr
    write(project, ".token-sidecar.toml", CONFIGURATION + "unknown = 1\n")
    result = run("fine.txt")
    assert (result.exit_code, "has errors" in result.stderr) == (0, False)


def test_a_report_says_that_the_configuration_is_broken(project: Path) -> None:
    write(project, ".token-sidecar.toml", "presets = true\n[[budget\n")
    assert "No budgets are configured" not in run("fine.txt").stdout
    assert run("fine.txt").stdout.startswith("1 file checked. Budgets affected by configuration")
    (problem,) = json.loads(run("--json", "fine.txt").stdout)["problems"]
    assert (problem["path"], problem["line"], problem["severity"]) == (
        ".token-sidecar.toml",
        2,
        "error",
    )
    place = "file=.token-sidecar.toml,line=2,title=Token budget configuration"
    assert run("--format", "github", "fine.txt").stdout.startswith(f"::error {place}::")
    (log,) = json.loads(run("--format", "sarif", "fine.txt").stdout)["runs"]
    (invocation,) = log["invocations"]
    assert not invocation["executionSuccessful"]
    (notification,) = invocation["toolConfigurationNotifications"]
    assert notification["message"]["text"].startswith(".token-sidecar.toml:2: ")


@pytest.mark.parametrize("name", [".token-sidecar.toml", "pyproject.toml"])
@pytest.mark.parametrize("broken", [b"[context", b"# \xff"], ids=["syntax", "bytes"])
def test_broken_configuration_exits_with_2(project: Path, name: str, broken: bytes) -> None:
    (project / ".token-sidecar.toml").unlink()
    rule = b'[[tool.token-sidecar.budget]]\nfiles = "*"\nmax-tokens = 1\n'
    if name == ".token-sidecar.toml":
        rule = rule.replace(b"tool.token-sidecar.", b"")
    write(project, name, rule + broken)
    result = run("fine.txt", str(project / "AGENTS.md"))
    assert result.exit_code == 2
    assert f"{name}:4" in result.stderr
    assert "this file is ignored" in result.stderr


def test_rule_without_files_is_reported_for_a_whole_check(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(
        project,
        ".token-sidecar.toml",
        'presets = true\n[[budget]]\nfiles = "*.md"\n'
        'max-tokens = 900\n[[budget]]\nfiles = "promts/"\nmax-tokens = 9\n',
    )
    told = f"token-sidecar: {place}:5: budget[1]: `files` matches no file\n"
    for arguments in ((".",), (str(project), "--no-cache"), (".", "--json")):
        result = run(*arguments)
        assert (result.exit_code, result.stderr) == (0, told)
    assert run("AGENTS.md", "prompts").stderr == ""
    monkeypatch.setattr("sidecar.budgets.check_run.MAX_MATCHES", 3)
    assert run(".").stderr == ""


def test_unmatched_rule_of_the_user_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = write(tmp_path, "user.toml", CONFIGURATION)
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(user))
    write(tmp_path / "project", "fine.txt", "Nothing to say.\n")
    monkeypatch.chdir(tmp_path / "project")
    assert run(".").stderr == ""


def test_gitignore_does_not_apply_to_named_files(project: Path) -> None:
    write(project, ".gitignore", "AGENTS.md\n/prompts/\n")
    assert set(found(".")) == {".gitignore", ".token-sidecar.toml", "fine.txt"}
    assert set(found("AGENTS.md", "fine.txt", "./fine.txt")) == {"AGENTS.md", "fine.txt"}


def test_root_above_a_path_is_used(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "prompts")
    files = found("a b", "../AGENTS.md")
    assert set(files) == {"a b/plan.md", "../AGENTS.md"}
    assert all(file["findings"] for file in files.values())


def test_each_path_has_its_own_root(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, ".token-sidecar.toml", '[[budget]]\nfiles = "*.txt"\nmax-tokens = 1\n')
    path = write(other, "x.txt", "more than one token")
    files = found("fine.txt", str(path))
    assert [len(files[name]["findings"]) for name in ("fine.txt", str(path))] == [0, 1]


def test_group_budgets_include_other_files(project: Path) -> None:
    write(
        project, ".token-sidecar.toml", '[[budget]]\nfiles = "*.md"\nmax-tokens = 60\nsum = true\n'
    )
    files = found("AGENTS.md")
    assert set(files) == {"AGENTS.md"}
    (finding,) = files["AGENTS.md"]["findings"]
    assert finding["tokens"] == 55 + found("prompts")["prompts/a b/plan.md"]["tokens"]
    assert finding["message"].startswith("AGENTS.md and 1 other file together are ")
    assert len(run(".").stdout.splitlines()) == 2  # the finding and the summary


def test_groups_of_two_projects_are_both_reported(project: Path, tmp_path: Path) -> None:
    """Both projects have a rule with the key `budget[0]`, which defines a group."""
    other = tmp_path / "other"
    for root in (project, other):
        text = '[[budget]]\nfiles = "*.txt"\nmax-tokens = 1\nsum = true\n'
        write(root, ".token-sidecar.toml", text)
        for name in ("x.txt", "y.txt"):
            write(root, name, "more than one token")
    lines = run(".", str(other)).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ["fine.txt", str(other / "x.txt")]
    assert lines[-1].endswith("2 budgets exceeded, 0 near")


def test_standard_input(project: Path) -> None:
    text = "word " * 40
    result = run("--stdin-name", "AGENTS.md", "-", stdin=text)
    assert result.exit_code == 1
    assert "AGENTS.md is 4" in result.stdout
    assert run("-", stdin=text).exit_code == 0
