"""Tests the layers, trust, sources and problems of settings."""

from __future__ import annotations

import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from platformdirs import user_cache_path, user_config_path, user_state_path

from sidecar.config import paths
from sidecar.config.load import MAX_PROBLEMS, TRUSTED_KEYS, load
from sidecar.config.paths import (
    cache_dir,
    config_file,
    find_root,
    is_root,
    settings_files,
    state_dir,
)
from sidecar.config.settings import Settings
from tests.cases import read_cases, read_rows

CONTRACT_EXAMPLE = """\
model = "gpt-5"
presets = false                 # budgets for well-known prompt files
[tokenize]
use-endpoint = false            # false: not even a probe
[[endpoint]]                    # none by default
url = "http://127.0.0.1:8080"
models = ["qwen-*"]
api-key-env = "LLAMA_API_KEY"
[[tokenizer]]                   # none by default
models = ["llama-3*"]
file = "~/models/llama-3/tokenizer.json"
[[price]]                       # USD a million tokens, for models that no list prices
models = ["qwen-*"]
input = 0.0
output = 0.0
[context]
# limit = 32768
reserve = 500
warn-at = [0.8, 0.95]
keep-turns = 4
[cost]
soft-cap-usd = 5.0
hard-cap-usd = 20.0
[[budget]]
files = "AGENTS.md"
max-tokens = 2000
warn-at = 0.9
[[budget]]
files = "prompts/**/*.md"
max-tokens = 8000
truncation = "middle"
sections = { "Context" = 1500, "Plan > Recent diffs" = 1200 }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.fixture
def env(user_file: Path, tmp_path: Path) -> dict[str, str]:
    user_file.write_text("")
    return {"TOKEN_SIDECAR_CONFIG": str(user_file), "TOKEN_SIDECAR_STATE": str(tmp_path / "state")}


def test_defaults_apply_without_any_file(root: Path, env: dict[str, str]) -> None:
    loaded = load(root, None, env)
    assert loaded.settings == Settings()
    assert loaded.problems == ()
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}


def test_documented_example_loads(user_file: Path, env: dict[str, str]) -> None:
    user_file.write_text(CONTRACT_EXAMPLE)
    loaded = load(None, None, env)
    assert loaded.problems == ()
    settings = loaded.settings
    assert settings.endpoints[0].api_key_env == "LLAMA_API_KEY"
    assert settings.tokenizers[0].models == ("llama-3*",)
    assert settings.prices[0].output == 0
    assert settings.cost.hard_cap_usd == Decimal("20.0")
    assert settings.budgets[0].files == ("AGENTS.md",)
    assert settings.budgets[1].sections == {"Context": 1500, "Plan > Recent diffs": 1200}
    assert str(loaded.origins["context.reserve"]) == f"{user_file}:18"
    assert str(loaded.origins["budget[1]"]) == f"{user_file}:28"
    assert str(loaded.origins["context.limit"]) == "default"


def test_later_layers_override_single_keys(
    root: Path, user_file: Path, env: dict[str, str]
) -> None:
    user_file.write_text('model = "a"\n[context]\nreserve = 1\nkeep-turns = 1\nlimit = 1\n')
    (root / ".token-sidecar.toml").write_text('model = "b"\n[context]\nreserve = 2\n')
    loaded = load(root, {"context": {"keepTurns": 3}, "model": None}, env)
    context = loaded.settings.context
    assert (loaded.settings.model, context.reserve, context.keep_turns, context.limit) == (
        ("b", 2, 3, 1)
    )
    origins = {key: origin.source for key, origin in loaded.origins.items()}
    assert origins["model"] == "project"
    assert origins["context.reserve"] == "project"
    assert origins["context.keep-turns"] == "editor"
    assert origins["context.limit"] == "user"


def test_later_lists_replace_earlier_ones(root: Path, user_file: Path, env: dict[str, str]) -> None:
    entry = '[[budget]]\nfiles = "{}"\nmax-tokens = 1\n'
    user_file.write_text(entry.format("a") + entry.format("b"))
    (root / ".token-sidecar.toml").write_text(entry.format("c"))
    loaded = load(root, None, env)
    assert [budget.files for budget in loaded.settings.budgets] == [("c",)]
    assert [key for key in loaded.origins if key.startswith("budget[")] == ["budget[0]"]


def test_list_without_valid_entries_is_ignored(root: Path, env: dict[str, str]) -> None:
    (root / ".token-sidecar.toml").write_text('[[budget]]\nfiles = "a"\nmax-tokens = 1\n')
    wrong = {"files": "b", "maxTokens": "many"}
    loaded = load(root, {"budget": [wrong]}, env)
    assert [budget.files for budget in loaded.settings.budgets] == [("a",)]
    assert [problem.key for problem in loaded.problems] == ["budget[0].max-tokens"]
    assert loaded.origins["budget[0]"].source == "project"
    partly = load(root, {"budget": [wrong, {"files": "c", "maxTokens": 2}]}, env)
    assert [budget.files for budget in partly.settings.budgets] == [("c",)]
    assert load(root, {"budget": []}, env).settings.budgets == ()


def test_own_file_is_preferred_to_pyproject(root: Path, env: dict[str, str]) -> None:
    (root / "pyproject.toml").write_text('[tool.token-sidecar]\nmodel = "pyproject"\n')
    assert load(root, None, env).settings.model == "pyproject"
    assert str(load(root, None, env).origins["model"]).endswith("pyproject.toml:2")
    (root / ".token-sidecar.toml").write_text('model = "own"\n')
    loaded = load(root, None, env)
    assert loaded.settings.model == "own"
    (problem,) = loaded.problems
    assert problem.severity == "warning"
    assert "[tool.token-sidecar] has no effect" in problem.message
    (root / "pyproject.toml").write_text('[tool.other]\nmodel = "token-sidecar"\n')
    assert load(root, None, env).problems == ()


def test_pyproject_without_our_section_is_ignored(root: Path, env: dict[str, str]) -> None:
    (root / "pyproject.toml").write_text("[tool.other\nbroken")
    assert load(root, None, env).problems == ()


@pytest.mark.parametrize("key", sorted(TRUSTED_KEYS))
def test_project_cannot_set_trusted_keys(key: str, root: Path, env: dict[str, str]) -> None:
    (root / ".token-sidecar.toml").write_text(f'model = "m"\n[{key}]\nurl = "http://evil"\n')
    loaded = load(root, None, env)
    assert loaded.settings == Settings(model="m")
    (problem,) = loaded.problems
    assert (problem.key, problem.line, problem.severity) == (key, 2, "warning")
    assert "only in your own settings" in problem.message
    assert "config init --user" in problem.message


def test_editor_settings_use_camel_case(root: Path, env: dict[str, str]) -> None:
    section = {
        "inlayHints": True,
        "tokenize": {"useEndpoint": True},
        "endpoint": [{"url": "http://127.0.0.1:1", "apiKeyEnv": "KEY"}],
        "budget": [{"files": "a.md", "maxTokens": 5, "sections": {"Plan > recentDiffs": 2}}],
        "cost": {"sessionHardCapUsd": 0.1},
        "server": {"path": "/x"},
    }
    loaded = load(root, section, env)
    assert loaded.problems == ()
    settings = loaded.settings
    assert settings.inlay_hints
    assert settings.tokenize.use_endpoint
    assert settings.endpoints[0].api_key_env == "KEY"
    assert settings.budgets[0].sections == {"Plan > recentDiffs": 2}
    assert settings.cost.session_hard_cap_usd == Decimal("0.1")


def test_problems_with_editor_settings_use_camel_case(env: dict[str, str]) -> None:
    loaded = load(None, {"inlayHint": True}, env)
    (problem,) = loaded.problems
    assert str(problem) == "editor settings: inlayHint: unknown key; did you mean inlayHints?"


@pytest.mark.parametrize(
    ("written", "variable", "limit", "source"),
    [
        (None, "4096", 4096, "environment"),
        (8192, "4096", 4096, "environment"),
        (2048, "4096", 2048, "user"),
        (2048, "", 2048, "user"),
    ],
)
def test_context_max_tokens_lowers_the_limit(
    written: int | None,
    variable: str,
    limit: int,
    source: str,
    user_file: Path,
    env: dict[str, str],
) -> None:
    user_file.write_text(f"[context]\nlimit = {written}\n" if written else "")
    loaded = load(None, None, {**env, "CONTEXT_MAX_TOKENS": variable})
    assert loaded.settings.context.limit == limit
    assert loaded.origins["context.limit"].source == source


def test_environment_variables_override_the_paths(
    root: Path, tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert config_file() == tmp_path / "config.toml"
    assert state_dir() == tmp_path / "state"
    assert cache_dir() == tmp_path / "state" / "cache"
    assert [path.name for path in settings_files(root)] == [
        "config.toml",
        "config.toml",
        ".token-sidecar.toml",
        "pyproject.toml",
    ]
    assert not state_dir().exists()


@pytest.mark.parametrize("home", ["/home/someone", "/home/some one"])
def test_default_paths_are_the_folders_of_the_user(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOKEN_SIDECAR_CONFIG", "TOKEN_SIDECAR_STATE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    app = "token-sidecar"
    assert config_file() == user_config_path(app, appauthor=False, roaming=True) / "config.toml"
    assert state_dir() == user_state_path(app, appauthor=False)
    assert cache_dir() == user_cache_path(app, appauthor=False)


def test_find_root_searches_parent_folders(root: Path) -> None:
    deep = root / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "x.md").write_text("")
    (root / "pyproject.toml").write_text("[tool.token-sidecar]\n")
    assert find_root(deep / "x.md") == root
    (root / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert find_root(deep) == root
    (root / "a" / ".git").mkdir()
    assert find_root(deep) == root / "a"
    (deep / ".token-sidecar.toml").write_text("")
    assert find_root(deep) == deep


@pytest.mark.parametrize(("name", "text", "expected"), read_rows("config", "roots"))
def test_root_has_git_or_a_configuration(
    name: str, text: str, *, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert is_root(tmp_path) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs is asked")
@pytest.mark.parametrize(
    "home", ["/home/some.one", "", "relative", "/", "/with a blank", "~", "/home/../x", "//two"]
)
@pytest.mark.parametrize("named", [None, "", "/else/where", "relative", "~/x", "/a b", "/end/"])
def test_default_folders_equal_those_of_platformdirs(
    home: str, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from platformdirs import user_cache_path, user_config_path, user_state_path

    monkeypatch.delenv("TOKEN_SIDECAR_CONFIG", raising=False)
    monkeypatch.delenv("TOKEN_SIDECAR_STATE", raising=False)
    monkeypatch.setenv("HOME", home)
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        if named is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, named)
    app = paths.APP
    assert paths.config_file() == user_config_path(app, appauthor=False) / "config.toml"
    assert paths.state_dir() == user_state_path(app, appauthor=False)
    assert paths.cache_dir() == user_cache_path(app, appauthor=False)


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


def test_folder_instead_of_the_file_is_reported(tmp_path: Path) -> None:
    (problem,) = load(None, None, {"TOKEN_SIDECAR_CONFIG": str(tmp_path)}).problems
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
