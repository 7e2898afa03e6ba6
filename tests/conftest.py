"""Fixtures that isolate tests from the developer's own configuration and state."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.e2e.agents.scores"]

TESTS = Path(__file__).parent
WITH_PROCESSES = (TESTS / "e2e", TESTS / "protocol")
"""Tests in these folders use several processes or threads, so they may fail on a busy machine."""
REAL_AGENTS = TESTS / "e2e" / "agents"
"""Tests in this folder are never retried, because a retry would hide race conditions in billing."""

TIMEOUT = pytest.StashKey[Any]()

SHARING_FOLDERS = ("llama", "vscode")
"""Folders whose tests share a program that starts slowly."""

# Durations depend more on the machine's load than on the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def fresh_logging() -> None:
    """Reset the logging configuration, which a server in an earlier test may have changed."""
    ours = logging.getLogger("sidecar")
    ours.setLevel(logging.NOTSET)
    ours.propagate = True
    ours.handlers.clear()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty user configuration and its own state and home folders."""
    config = tmp_path / "user-config.toml"
    config.write_text("")
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(config))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "etc"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.delenv("CONTEXT_MAX_TOKENS", raising=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow one retry for process tests. The summary lists each retry with its reason."""
    for item in items:
        has_processes = any(item.path.is_relative_to(folder) for folder in WITH_PROCESSES)
        if has_processes and not item.path.is_relative_to(REAL_AGENTS):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Interrupt a test that hangs again and again, in case it waits once more while it ends."""
    result = yield
    if settings.method == "signal" and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout)
    item.stash[TIMEOUT] = settings
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _set_timer_again(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    _set_timer_again(item)


def _set_timer_again(item: pytest.Item) -> None:
    """Set the timer that a failure has canceled. pytest-timeout sets it once, before any retry."""
    if found := item.stash.get(TIMEOUT, None):
        item.config.hook.pytest_timeout_set_timer(item=item, settings=found)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the collected tests from garbage collection.

    They live until the end of the run. If they were included, a full collection would take 0.3 s,
    and some tests trigger one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With `-n`, run tests that share an editor or a server in the same process.

    VS Code and the model servers are started once per folder, and other programs once per module.
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
