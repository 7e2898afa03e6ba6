"""The console script `token-sidecar`, and `python -P -m sidecar`, which is the same."""

from __future__ import annotations

import sys


def start() -> None:
    """Run the command line. Neither a server as editors start it nor a plain `check` or `count`
    waits for click to be imported: that takes as long as their own rooms (20 ms)."""
    if sys.argv[1:] in (["serve"], ["serve", "--stdio"]):
        from sidecar.server.run import run

        sys.exit(run())
    from sidecar.cli.plain import is_plain, run_plain

    if is_plain(sys.argv[1:]):
        sys.exit(run_plain(*sys.argv[1:]))
    from sidecar.cli.group import main

    main()


if __name__ == "__main__":
    start()
