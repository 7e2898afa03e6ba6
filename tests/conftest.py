"""No test reads or writes the person's own configuration or state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty user configuration and a state folder of the test's own."""
    config = tmp_path / "user-config.toml"
    config.write_text("")
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(config))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("CONTEXT_MAX_TOKENS", raising=False)
