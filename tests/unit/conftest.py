"""Fixtures that several modules of unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest

from sidecar.cost.book import CostBook


@pytest.fixture
def book(tmp_path: Path) -> Iterator[CostBook]:
    """Open the books of an empty ledger whose days begin at midnight UTC."""
    book = CostBook(tmp_path / "state", zone=UTC)
    yield book
    book.close()
