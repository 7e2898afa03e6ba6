"""The console script `token-sidecar`, and `python -P -m sidecar`, which is the same."""

from __future__ import annotations

import sys


def start() -> None:
    """Run the command line, without importing click (20 ms) for a server as editors start it."""
    if sys.argv[1:] in (["serve"], ["serve", "--stdio"]):
        from sidecar.server.run import run

        sys.exit(run())
    from sidecar.cli import main

    main()


if __name__ == "__main__":
    start()
