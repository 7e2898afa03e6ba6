"""A process that prices a ledger's calls: `python -m tests.e2e.cost.pricer STATE PRICE`.

PRICE is the input price of the model `house-1`. The process prints a line after each batch.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path

from sidecar.config.settings import Price
from sidecar.cost import repricing
from sidecar.cost.book import CostBook


def own(price: str) -> tuple[Price, ...]:
    return (Price(models=("house-1",), input=Decimal(price), output=Decimal(0)),)


def main() -> None:
    """Price all calls in small batches."""
    repricing.BATCH = 20
    book = CostBook(Path(sys.argv[1]), own(sys.argv[2]))
    repricing.price_calls(book.ledger, progress=lambda share: print(share, flush=True))


if __name__ == "__main__":
    main()
