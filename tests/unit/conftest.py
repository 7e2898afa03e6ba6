"""Fixtures that several modules of unit tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC
from pathlib import Path

import pytest

from sidecar.cost.book import CostBook
from sidecar.workspace.services import Services
from sidecar.workspace.state_folder import State


@pytest.fixture
def book(tmp_path: Path) -> Iterator[CostBook]:
    """Open the books of an empty ledger whose days begin at midnight UTC."""
    book = CostBook(tmp_path / "state", zone=UTC)
    yield book
    book.close()


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    """Return configured services whose state folder is empty."""
    services = Services(state=State(tmp_path / "state"))
    services.configured.set()
    yield services
    await services.aclose()
    services.workers.close()
