"""The packages that Install Server installs are pinned, hashed and up to date."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTENSION = Path(__file__).resolve().parents[2] / "editors/vscode"
REQUIREMENTS = EXTENSION / "requirements.txt"
MCP_REQUIREMENTS = EXTENSION / "requirements-mcp.txt"


def pins(file: Path) -> dict[str, tuple[Requirement, int]]:
    """Return the pins of a file by name, with their number of hashes."""
    entries = re.sub(r"\\\n\s+", "", file.read_text("utf-8")).splitlines()
    return {
        canonicalize_name(pin.name): (pin, entry.count("--hash=sha256:"))
        for entry in entries
        if not entry.startswith("#")
        for pin in [Requirement(entry.split(" --hash")[0])]
    }


PINS = pins(REQUIREMENTS)


def lock() -> Any:
    spec = importlib.util.spec_from_file_location("lock", EXTENSION / "lock.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version(pin: Requirement) -> str:
    (only,) = pin.specifier
    assert only.operator == "=="
    return only.version


def test_every_pin_is_one_version_with_hashes_and_no_index_address() -> None:
    assert len(PINS) > 20
    for pin, hashes in PINS.values():
        assert version(pin)
        assert pin.url is None
        assert hashes > 0
    for file in (REQUIREMENTS, MCP_REQUIREMENTS):
        assert "://" not in file.read_text("utf-8")


def test_the_mcp_server_adds_to_the_same_pins() -> None:
    added = pins(MCP_REQUIREMENTS)
    assert MCP_REQUIREMENTS.read_text("utf-8").startswith(lock().header())
    assert {name: str(added[name][0]) for name in PINS} == {
        name: str(pin) for name, (pin, _) in PINS.items()
    }
    assert "mcp" in added
    assert all(hashes for _, hashes in added.values())


def test_the_pins_match_the_projects_dependencies() -> None:
    """If this fails, run `python editors/vscode/lock.py`."""
    assert REQUIREMENTS.read_text("utf-8").startswith(lock().header())
    project = tomllib.loads((EXTENSION.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    for wanted in map(Requirement, project["dependencies"]):
        pin, _ = PINS[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version(pin))
        assert (wanted.marker is None) == (pin.marker is None)


def test_dependencies_of_pinned_packages_are_pinned() -> None:
    """Uses the metadata of packages that are installed in the pinned version."""
    seen = 0
    for name, (pin, _) in PINS.items():
        here = next(iter(metadata.distributions(name=name)), None)
        if here is None or here.version != version(pin):
            continue
        seen += 1
        needed = [each for each in map(Requirement, here.requires or ()) if applies(each)]
        assert {canonicalize_name(each.name) for each in needed} <= set(PINS), name
    assert seen > 0


def applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})
