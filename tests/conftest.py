"""No test reads or writes the person's own configuration or state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pathlib import Path

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
