"""Tests that the requirements of the VS Code extension and CI are pinned, hashed and up to date."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCK = load(".ci/lock.py")
LICENSES = load(".ci/licenses.py")


def pins(file: Path) -> dict[NormalizedName, tuple[Requirement, int]]:
    """Return each package's pin in a requirements file, and how many hashes the pin has.

    If a package has several pins, only the one for the current system is returned.
    """
    entries = re.sub(r"\\\n\s+", "", file.read_text("utf-8")).splitlines()
    found = [
        (Requirement(entry.split(" --hash")[0]), entry.count("--hash=sha256:"))
        for entry in entries
        if not entry.startswith("#")
    ]
    found.sort(key=lambda pin: applies(pin[0]))
    return {canonicalize_name(pin.name): (pin, hashes) for pin, hashes in found}


def applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


PINS = pins(LOCK.REQUIREMENTS)


def version(pin: Requirement) -> str:
    (only,) = pin.specifier
    assert only.operator == "=="
    return only.version


@pytest.mark.parametrize("file", LOCK.OPTIONS, ids=lambda file: file.name)
def test_every_pin_is_one_version_with_hashes_and_no_index_address(file: Path) -> None:
    entries = pins(file)
    assert len(entries) > 20
    for pin, hashes in entries.values():
        assert version(pin)
        assert pin.url is None
        assert hashes > 0
    assert "://" not in file.read_text("utf-8")


@pytest.mark.parametrize("file", LOCK.OPTIONS, ids=lambda file: file.name)
def test_the_pins_match_the_projects_dependencies(file: Path) -> None:
    """If this fails, run `python .ci/lock.py`."""
    assert file.read_text("utf-8").startswith(LOCK.header(file))
    entries = pins(file)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for wanted in map(Requirement, project["dependencies"]):
        pin, _ = entries[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version(pin))
        assert (wanted.marker is None) == (pin.marker is None)


def test_the_mcp_server_adds_to_the_same_pins() -> None:
    added = pins(LOCK.MCP_REQUIREMENTS)
    assert {name: str(added[name][0]) for name in PINS} == {
        name: str(pin) for name, (pin, _) in PINS.items()
    }
    assert "mcp" in added


def test_the_tests_run_on_what_users_install() -> None:
    tested = pins(LOCK.TEST_REQUIREMENTS)
    assert {name: version(tested[name][0]) for name in PINS} == {
        name: version(pin) for name, (pin, _) in PINS.items()
    }


def test_all_dependencies_have_accepted_licenses(tmp_path: Path) -> None:
    """Reads the licenses from a software bill of materials (SBOM) like the one in a release."""
    file = tmp_path / "sbom.json"
    command = ["cyclonedx_py", "environment", "--no-validate"]  # validation takes 20 s
    command += ["--output-file", str(file), sys.prefix]
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    components = {
        canonicalize_name(component["name"]): component
        for component in json.loads(file.read_text("utf-8"))["components"]
    }
    shipped = [name for name in pins(LOCK.MCP_REQUIREMENTS) if name in components]
    assert len(shipped) > 20
    named = {name: LICENSES.licenses(components[name]) for name in shipped}
    assert [(name, text) for name, text in named.items() if not LICENSES.is_accepted(text)] == []


@pytest.mark.parametrize(
    ("named", "accepted"),
    [
        ("MIT", True),
        ("GPL-2.0-only OR MIT", True),
        ("BSD-3-Clause AND 0BSD AND MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("LGPL / MIT", False),
        ("", False),
    ],
)
def test_every_license_of_a_package_must_be_accepted(named: str, accepted: bool) -> None:
    assert LICENSES.is_accepted(named) == accepted


def test_dependencies_of_pinned_packages_are_pinned() -> None:
    """Uses the metadata of installed packages that have the pinned version."""
    seen = 0
    for name, (pin, _) in PINS.items():
        here = next(iter(metadata.distributions(name=name)), None)
        if here is None or here.version != version(pin):
            continue
        seen += 1
        needed = [each for each in map(Requirement, here.requires or ()) if applies(each)]
        assert {canonicalize_name(each.name) for each in needed} <= set(PINS), name
    assert seen > 0
