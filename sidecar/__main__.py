"""The console script `token-sidecar`, also run by `python -P -m sidecar`."""

from __future__ import annotations

import sys
import warnings


def start() -> None:
    """Run the command line. Starting a server skips the import of click, which takes 20 ms."""
    # watchdog adds a folder twice if it is created while its parent is read, which is harmless.
    warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, "watchdog")
    if sys.argv[1:] in (["serve"], ["serve", "--stdio"]):
        from sidecar.server.run import run

        sys.exit(run())
    from sidecar.cli import main

    main()


if __name__ == "__main__":
    start()
