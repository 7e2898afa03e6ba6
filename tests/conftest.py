"""No test reads or writes the person's own configuration or state."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.e2e.agents.scores"]

TESTS = Path(__file__).parent
WITH_PROCESSES = (TESTS / "e2e", TESTS / "protocol")
"""Tests of several processes or threads, which a machine that is out of breath can upset."""
REAL_AGENTS = TESTS / "e2e" / "agents"
"""Never tried twice: a call that is billed wrongly by a race must not pass at the second try."""

SHARING_FOLDERS = ("llama", "vscode")
"""Folders whose tests share a program that takes long to start."""

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def fresh_logging() -> None:
    """Undo the logging set-up of a server that an earlier test started in this process."""
    ours = logging.getLogger("sidecar")
    ours.setLevel(logging.NOTSET)
    ours.propagate = True
    ours.handlers.clear()


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of processes be tried twice; the summary tells of each second try, and why."""
    for item in items:
        has_processes = any(item.path.is_relative_to(folder) for folder in WITH_PROCESSES)
        if has_processes and not item.path.is_relative_to(REAL_AGENTS):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With `-n 2`, run tests that share an editor or a server in one process.

    VS Code and the model servers are started once for their folders, the others once for a module.
    """
    from xdist.scheduler import LoadScopeScheduling

    class BySharedProgram(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            path = Path(nodeid.partition("::")[0])
            if path.parent.name in SHARING_FOLDERS:
                return str(path.parent)
            has_processes = any((TESTS.parent / path).is_relative_to(one) for one in WITH_PROCESSES)
            return str(path) if has_processes else nodeid

    return BySharedProgram(config, log)
