"""The console script `token-sidecar`, and `python -P -m sidecar`, which is the same."""

from __future__ import annotations

import sys
import warnings


def start() -> None:
    """Run the command line, without importing click (20 ms) for a server as editors start it."""
    # watchdog adds a folder twice that is created while it reads the parent, which is harmless.
    warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, "watchdog")
    if sys.argv[1:] in (["serve"], ["serve", "--stdio"]):
        from sidecar.server.run import run

        sys.exit(run())
    from sidecar.cli import main

    main()


if __name__ == "__main__":
    start()
