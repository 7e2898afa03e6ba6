"""Tests `token-sidecar config init`, `show` and `check`."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.config.load import TRUSTED_KEYS, load
from sidecar.config.paths import PROJECT_FILE, config_file
from sidecar.config.settings import Settings


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["config", *arguments])


@pytest.mark.parametrize(("value", "shown"), [("0.05", 0.05), ("5", 5), ("12.50", 12.5)])
def test_amounts_are_shown_as_numbers(value: str, shown: float) -> None:
    config_file().write_text(f"[cost]\nsoft-cap-usd = {value}\nteam-hard-cap-usd = {value}\n")
    for key in ("soft-cap-usd", "team-hard-cap-usd"):
        (row,) = json.loads(run("show", "--json", f"cost.{key}").stdout)["values"]
        assert row["value"] == json.dumps(shown)


def uncommented(text: str) -> str:
    """Return the sample configuration with all keys enabled."""
    keys = re.compile(r"^# (?=\[|[\w-]+ = )", re.MULTILINE)
    return keys.sub("", text)


def test_sample_does_not_replace_the_settings_in_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.token-sidecar]\nmodel = "gpt-4o"\n')
    result = run("init", "--workspace", str(tmp_path))
    assert result.exit_code == 2
    assert "pyproject.toml has settings in [tool.token-sidecar]" in result.stderr
    assert not (tmp_path / PROJECT_FILE).exists()


@pytest.mark.parametrize("user", [False, True])
def test_sample_is_valid_and_changes_no_setting(user: bool, tmp_path: Path) -> None:
    arguments = ["--workspace", str(tmp_path), *(["--user"] if user else [])]
    if user:
        config_file().unlink(missing_ok=True)
    assert run("init", *arguments).exit_code == 0
    path = config_file() if user else tmp_path / PROJECT_FILE
    assert load(tmp_path).settings == Settings()
    assert load(tmp_path).problems == ()
    text = path.read_text("utf-8")
    path.write_text(uncommented(text), "utf-8")
    assert load(tmp_path).problems == ()
    assert load(tmp_path).settings != Settings()
    keys = tomllib.loads(path.read_text("utf-8")).keys()
    assert bool(keys & TRUSTED_KEYS) == user


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).write_text("# mine\n")
    result = run("init", "--workspace", str(tmp_path))
    assert result.exit_code == 2
    assert "was not changed" in result.output
    assert (tmp_path / PROJECT_FILE).read_text() == "# mine\n"


def test_each_value_is_shown_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / PROJECT_FILE
    file.write_text('model = "gpt-4o"\n[context]\nreserve = 7\n')
    result = run("show", "--workspace", str(tmp_path))
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert lines["model"].endswith(f'"gpt-4o"  ({file}:1)')
    assert lines["context.reserve"].endswith(f"7  ({file}:3)")
    assert lines["tokenize.use-endpoint"].endswith("false  (default)")
    rows = json.loads(run("show", "--workspace", str(tmp_path), "--json").output)["values"]
    assert {"key": "context.reserve", "value": "7", "from": f"{file}:3"} in rows


def test_problems_are_reported_with_exit_code_2(tmp_path: Path) -> None:
    assert run("check", "--workspace", str(tmp_path)).exit_code == 0
    (tmp_path / PROJECT_FILE).write_text("[context]\nreserve = -1\n")
    result = run("check", "--workspace", str(tmp_path))
    assert result.exit_code == 2
    assert f"{PROJECT_FILE}:2" in result.output
    assert "reserve" in result.output
    told = json.loads(run("check", "--workspace", str(tmp_path), "--json").output)
    assert len(told["problems"]) == 1


def test_problems_are_sorted_by_line(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).write_text("zzz = 1\n[status]\nhide = 1\n[context]\nreserve = -1\n")
    problems = json.loads(run("check", "--workspace", str(tmp_path), "--json").output)["problems"]
    assert [int(problem.partition(PROJECT_FILE)[2].split(":")[1]) for problem in problems] == [
        1,
        3,
        5,
    ]


def test_the_sample_names_each_default(tmp_path: Path) -> None:
    config_file().unlink(missing_ok=True)
    assert run("init", "--workspace", str(tmp_path), "--user").exit_code == 0
    rows = json.loads(run("show", "--workspace", str(tmp_path), "--json").output)["values"]
    defaults = {row["key"]: row["value"] for row in rows}
    table, seen = "", set()
    for line in config_file().read_text("utf-8").splitlines():
        if heading := re.match(r"# (\[+)([\w-]+)\]", line):
            table = "[[" if heading[1] == "[[" else f"{heading[2]}."
        elif (found := re.match(r"# ([\w-]+) = (.+?)(?:  +# (.*))?$", line)) and table != "[[":
            named = re.match(r"default: (\w+)", found[3] or "")
            value = named[1].replace("unset", "null") if named else found[2]
            assert defaults[table + found[1]] == value
            seen.add(table + found[1])
    assert {"model", "presets", "context.warn-at", "agents.enabled"} < seen


def test_without_a_command_the_help_has_lines() -> None:
    result = run()
    assert result.exit_code == 2
    assert "\n  init " in result.output
    assert "\\n" not in result.output


def test_one_value_is_shown_by_its_key_and_a_table_by_its_name(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).write_text('model = "gpt-4"\n')
    where = ("--workspace", str(tmp_path))
    (line,) = run("show", "model", *where).output.splitlines()
    assert line == f'model  "gpt-4"  ({tmp_path / PROJECT_FILE}:1)'
    rows = json.loads(run("show", "context", "--json", *where).output)["values"]
    assert {row["key"] for row in rows} >= {"context.reserve", "context.warn-at"}
    assert all(row["key"].startswith("context.") for row in rows)
    wrong = run("show", "modle", *where)
    assert wrong.exit_code == 2
    assert wrong.stderr.endswith(
        "token-sidecar: unknown setting: modle; `token-sidecar config show` lists all settings\n"
    )


@pytest.mark.parametrize(
    "setting",
    [
        'model = "claude-sonet-5"\n',
        '[[budget]]\nfiles = ["*.md"]\nmax-tokens = 9\nmodel = "claude-sonet-5"\n',
    ],
)
def test_check_warns_of_an_unknown_model(tmp_path: Path, setting: str) -> None:
    (tmp_path / PROJECT_FILE).write_text(setting)
    result = run("check", "--workspace", str(tmp_path))
    assert result.exit_code == 0
    assert result.stdout.startswith("warning: claude-sonet-5 is not a known model; did you mean ")
    assert "claude-sonnet-5" in result.stdout
    told = json.loads(run("check", "--workspace", str(tmp_path), "--json").stdout)
    assert [told["problems"], len(told["warnings"])] == [[], 1]


def test_check_reports_each_tokenizer_file_of_overlapping_globs(tmp_path: Path) -> None:
    entries = [("*", "first"), ("org/mine-*", "second"), ("a[bc]*", "third")]
    config_file().write_text(
        "".join(
            f'[[tokenizer]]\nmodels = ["{glob}"]\nfile = "{name}.json"\n' for glob, name in entries
        )
    )
    output = run("check", "--workspace", str(tmp_path)).stdout
    assert re.findall(r"^tokenizer (\w+)\.json: ", output, re.MULTILINE) == [
        "first",
        "second",
        "third",
    ]
