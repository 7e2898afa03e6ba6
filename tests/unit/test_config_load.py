"""Tests the layers, trust and sources of settings."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path

import pytest
from platformdirs import user_cache_path, user_config_path, user_state_path

from sidecar.config import paths
from sidecar.config.load import TRUSTED_KEYS, load
from sidecar.config.paths import (
    cache_dir,
    config_file,
    find_root,
    is_root,
    settings_files,
    state_dir,
)
from sidecar.config.settings import Settings
from tests.cases import read_rows

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
