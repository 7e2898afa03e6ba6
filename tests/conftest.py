"""No test reads or writes the person's own configuration or state."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
WITH_PROCESSES = (TESTS / "e2e", TESTS / "protocol")
"""Tests of several processes or threads, which a machine that is out of breath can upset."""

SHARING_FOLDERS = ("llama", "vscode")
"""Folders whose tests share a program that takes long to start."""

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty user configuration, a state folder and a home of the test's own."""
    config = tmp_path / "user-config.toml"
    config.write_text("")
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(config))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.delenv("CONTEXT_MAX_TOKENS", raising=False)


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of processes be tried twice, and run those that share something in one process.

    The summary tells of each second try, and why. VS Code and the model servers are started once
    for their folders, other editors and servers once for a module.
    """
    for item in items:
        folder = next((one for one in WITH_PROCESSES if item.path.is_relative_to(one)), None)
        if folder is None:
            continue
        item.add_marker(pytest.mark.flaky(reruns=1))
        is_shared = item.path.parent.name in SHARING_FOLDERS
        group = item.path.parent if is_shared else item.path
        item.add_marker(pytest.mark.xdist_group(str(group.relative_to(TESTS))))
