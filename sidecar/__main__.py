"""The `token-sidecar` command. Also runs as `python -P -m sidecar`."""

from __future__ import annotations

import sys
import warnings


def start() -> None:
    """Run the command line. Hooks and `serve` skip click, which takes 20 ms to import."""
    if sys.argv[1:3] == ["hooks", "--answer"]:
        from sidecar.hooks.prompt_hook import run as run_hook

        run_hook(sys.argv[3:])
    # watchdog warns if it watches a new folder twice, which is harmless.
    warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, "watchdog")
    if sys.argv[1:] in (["serve"], ["serve", "--stdio"]):
        from sidecar.server.run import run

        sys.exit(run())
    from sidecar.cli import main

    main()


if __name__ == "__main__":
    start()
