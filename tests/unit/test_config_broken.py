"""Tests that problems in a configuration are reported with their key and line, and that all other
settings apply.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.config.load import MAX_PROBLEMS, load
from sidecar.config.settings import Settings
from tests.cases import read_cases

# Valid settings before and after each mistake. They must still apply.
ABOVE = 'model = "above"\n'
BELOW = "\n[status]\nhide = true\n"


class Mistake(msgspec.Struct):
    """A mistake in a configuration, and the problem that is reported for it."""

    text: str
    key: str
    line: int
    message: str


INVALID: dict[str, tuple[str, str, int]] = {
    # name: (text from line 2 on, expected key, expected line)
    "no value": ("presets =", "presets", 2),
    "open string": ('[[budget]]\nfiles = "a', "files", 3),
    "open header": ("[context\nreserve = 7", "context", 2),
    "a table twice": ("[team]\n[ledger]\n[team]\nstore = 'x'", "team", 4),
    "a key twice": ("presets = true\npresets = false", "presets", 3),
    "bare value": ("presets = yes", "presets", 2),
    "the first of several": ("presets = yes\nmodel = no\n[context", "presets", 2),
    "not UTF-8": ("# \udcff", "", 2),
    "over a limit": ("[[budget]]\n" * 20_000, "", 5_001),
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"TOKEN_SIDECAR_CONFIG": str(tmp_path / "config.toml")}


@pytest.mark.parametrize("mistake", read_cases("config_mistakes", Mistake))
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_problem_names_key_and_line_and_other_settings_apply(
    mistake: Mistake, newline: str, tmp_path: Path, env: dict[str, str]
) -> None:
    below = BELOW if "[status]" not in mistake.text else ""
    path = tmp_path / "config.toml"
    path.write_bytes((ABOVE + mistake.text + below).replace("\n", newline).encode())
    loaded = load(None, None, env)
    (problem,) = loaded.problems
    assert (problem.key, problem.line) == (mistake.key, mistake.line)
    assert mistake.message in problem.message
    place = f"{mistake.line}:{problem.column}" if problem.column else mistake.line
    assert str(problem).startswith(f"{path}:{place}: {mistake.key}: ")
    assert "planted" not in str(problem)
    assert loaded.settings.model == "above"
    assert loaded.settings.status.hide is bool(below)


def write_invalid(path: Path, name: str, newline: str = "\n") -> None:
    text = (ABOVE + INVALID[name][0] + BELOW).replace("\n", newline)
    path.write_bytes(text.encode(errors="surrogateescape"))


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_first_syntax_error_is_reported_and_lower_layers_apply(
    name: str, newline: str, tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "config.toml").write_text("model = 'below'\npresets = true\n")
    path = tmp_path / ".token-sidecar.toml"
    write_invalid(path, name, newline)
    loaded = load(tmp_path, {"codeLens": False}, env)
    (problem,) = loaded.problems
    assert (problem.file, problem.key, problem.line) == (path, *INVALID[name][1:])
    assert problem.message.endswith("; this file is ignored")
    assert problem.severity == "error"
    assert (loaded.settings.model, loaded.settings.presets) == ("below", True)
    assert loaded.settings.code_lens is False
    assert loaded.settings.status.hide is False


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("source", ["user", "project"])
def test_broken_file_keeps_its_last_valid_settings(
    name: str, source: str, tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "config.toml").touch()
    path = tmp_path / ("config.toml" if source == "user" else ".token-sidecar.toml")
    path.write_text("model = 'valid'\nunknown = 1\n[status]\nhide = true\n")
    valid = load(tmp_path, None, env)
    write_invalid(path, name)
    broken = load(tmp_path, {"codeLens": False}, env, previous=valid)
    (problem,) = broken.problems
    assert problem.line == INVALID[name][2]
    assert problem.message.endswith("; the last valid settings of this file remain in effect")
    assert (broken.settings.model, broken.settings.status.hide) == ("valid", True)
    assert broken.settings.code_lens is False  # the settings of other layers still apply
    assert load(tmp_path, None, env, previous=broken).settings == valid.settings
    path.write_text("model = 'mended'\n")
    mended = load(tmp_path, None, env, previous=broken)
    assert (mended.settings.model, mended.settings.status.hide) == ("mended", False)
    assert mended.problems == ()
    write_invalid(path, name)
    path.unlink()
    (tmp_path / "config.toml").touch()
    assert load(tmp_path, None, env, previous=broken).settings == Settings()


def test_only_known_agents_are_read(tmp_path: Path, env: dict[str, str]) -> None:
    """If a list contains no known agent, no agents are read."""
    for written, kept in (('["codx", "pi"]', ("pi",)), ('["codx"]', ()), ("[]", ())):
        (tmp_path / "config.toml").write_text(f"[agents]\nsources = {written}\n")
        assert load(None, None, env).settings.agents.sources == kept


def test_unknown_agents_and_codes_of_findings_are_reported(
    tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "config.toml").write_text(
        '[footprint]\nagents = ["cursor", "codx"]\n'
        'severity = { instructions-cut = "error", import-twice = "of", imports = "off" }\n'
    )
    loaded = load(None, None, env)
    assert loaded.settings.footprint.agents == ("cursor",)
    assert loaded.settings.footprint.severity == {"instructions-cut": "error"}
    wrong = {problem.key: problem.message for problem in loaded.problems}
    assert "position 2; did you mean codex? " in wrong["footprint.agents"]
    assert '"error", "warning", "information" or "off"' in wrong["footprint.severity.import-twice"]
    assert wrong["footprint.severity.imports"].startswith("unknown code; known codes: ")


def test_invalid_entry_is_dropped_and_others_stay(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "config.toml").write_text(
        '[[budget]]\nfiles = 5\nmax-tokens = 1\n[[budget]]\nfiles = "b"\nmax-tokens = 2\n'
    )
    loaded = load(None, None, env)
    assert [budget.files for budget in loaded.settings.budgets] == [("b",)]
    assert loaded.origins["budget[0]"].line == 4
    assert loaded.origins["budget[0]"].path == ("budget", 1)


@pytest.mark.parametrize(
    ("content", "line"), [(b"\xff\xfe", 1), (b"model = '\xe4'\n", 1), (b"a\n\xff", 2)]
)
def test_file_that_is_not_utf8_is_reported(
    content: bytes, line: int, tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    (problem,) = load(None, None, env).problems
    assert (problem.message, problem.line) == ("is not UTF-8; this file is ignored", line)


def test_byte_order_mark_is_allowed(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "config.toml").write_bytes(b'\xef\xbb\xbfmodel = "x"\n')
    loaded = load(None, None, env)
    assert (loaded.settings.model, loaded.problems) == ("x", ())


@pytest.mark.parametrize("name", ["config.toml", "c" * 300], ids=["short", "too long"])
def test_missing_file_named_by_the_environment_is_reported(name: str, tmp_path: Path) -> None:
    (problem,) = load(None, None, {"TOKEN_SIDECAR_CONFIG": str(tmp_path / name)}).problems
    assert problem.file == tmp_path / name
    assert "no such file (set by TOKEN_SIDECAR_CONFIG)" in problem.message


def test_folder_instead_of_the_file_is_reported(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "config.toml").mkdir()
    (problem,) = load(None, None, env).problems
    assert "cannot be read" in problem.message


@pytest.mark.parametrize("variable", ["x", "-1", "0", "1.5", "9" * 40])
def test_invalid_context_max_tokens_is_ignored_with_a_problem(
    variable: str, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text("")
    env = {"TOKEN_SIDECAR_CONFIG": str(tmp_path / "c.toml"), "CONTEXT_MAX_TOKENS": variable}
    loaded = load(None, None, env)
    (problem,) = loaded.problems
    assert str(problem).startswith("environment settings: CONTEXT_MAX_TOKENS: must be")
    assert loaded.settings == Settings()


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "a.b.c.d = 1\na.b = 2",
        "[budget]\n[[budget]]",
        "d = 2020-01-01\n[context]\nlimit = 12:00:00",
        "[[budget]]\nfiles = []\nmax-tokens = " + "9" * 4000,
    ],
)
def test_loading_garbage_never_raises(text: str, tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "config.toml").write_text(text)
    loaded = load(None, None, env)
    assert 1 <= len(loaded.problems) <= MAX_PROBLEMS + 1
    assert isinstance(loaded.settings, Settings)


@pytest.mark.parametrize("editor", [{"context": []}, {"budget": {}}, {"budget": [1]}, {"x": 1}])
def test_invalid_settings_from_the_editor_are_reported(editor: dict[str, Any]) -> None:
    loaded = load(None, editor, {"TOKEN_SIDECAR_CONFIG": os.devnull})
    assert len(loaded.problems) == 1
    assert loaded.problems[0].source == "editor"
    assert loaded.settings == Settings()


def test_a_second_table_says_where_its_keys_belong(env: dict[str, str]) -> None:
    Path(env["TOKEN_SIDECAR_CONFIG"]).write_text("[team]\nstore-user = 'x'\n[team]\n")
    (problem,) = load(None, None, env).problems
    assert "duplicate table; move its keys into the first one" in problem.message
