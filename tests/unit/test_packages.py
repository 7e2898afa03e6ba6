"""Tests that published packages are reproducible and complete, and have the same version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import sidecar

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

DATA = (".css", ".gz", ".json", ".toml")


def build(kind: str, folder: Path) -> Path:
    """Build a wheel or an sdist from the working tree."""
    folder.mkdir()
    script = f"from hatchling.build import build_{kind}; build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


def test_wheel_and_sdist_are_reproducible(tmp_path: Path) -> None:
    for kind in ("wheel", "sdist"):
        first, second = build(kind, tmp_path / f"{kind}1"), build(kind, tmp_path / f"{kind}2")
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist has no git repository")
def test_the_sdist_has_everything_that_the_tests_need(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path / "sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files", "sidecar", "tests", "benchmarks", "docs", "editors", "contrib", "plugin"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    assert set(tracked) - names == set()
    assert {"pyproject.toml", "LICENSE", "README.md", ".ci/run", "mkdocs.yml"} <= names


def test_wheel_has_all_data_and_a_readme_with_absolute_links(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", tmp_path / "wheel")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        readme = wheel.read(name).decode().partition("\n\n")[2]
        packed = set(wheel.namelist())
    data = (path for path in (ROOT / "sidecar").rglob("*.*") if path.suffix in DATA)
    assert {path.relative_to(ROOT).as_posix() for path in data} <= packed
    source = (ROOT / "README.md").read_text("utf-8")
    link = re.compile(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"")
    assert len(link.findall(readme)) == len(link.findall(source)) > 20
    repository = "https://raw.githubusercontent.com/token-sidecar/token-sidecar/main/"
    for found, original in zip(link.finditer(readme), link.finditer(source), strict=True):
        target, path = (next(filter(None, one.groups())) for one in (found, original))
        if path.startswith("https:"):
            assert target == path
        elif path.endswith((".png", ".svg")):
            assert target == repository + path
        else:
            assert target == f"{PROJECT['urls']['Homepage']}/blob/main/{path}"


def test_every_package_has_the_same_version() -> None:
    version = PROJECT["version"]
    assert sidecar.__version__ == version
    extension = json.loads((ROOT / "editors/vscode/package.json").read_text("utf-8"))
    assert extension["version"] == version
    assert "private" not in extension
    assert {
        "repository",
        "license",
        "icon",
        "homepage",
        "bugs",
        "galleryBanner",
    } <= extension.keys()
    server = json.loads((ROOT / "contrib/mcp-registry/server.json").read_text("utf-8"))
    assert {server["version"], *(package["version"] for package in server["packages"])} == {version}
    assert f"token-sidecar@{version}\n" in (ROOT / "contrib/mason/package.yaml").read_text("utf-8")
    assert f"-{version}.tar.gz" in (ROOT / "contrib/homebrew/token-sidecar.rb").read_text("utf-8")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
