"""Start of the server on stdio, for `token-sidecar serve`."""

from __future__ import annotations

import gc
import sys


def run(log_level: str = "WARNING") -> int:
    """Serve on standard input and output until the session ends; return the exit code."""
    # Switch from a counting worker to the event loop within half a millisecond, not five.
    sys.setswitchinterval(0.0005)
    # Importing LSP's types creates some 100,000 permanent objects: without collections in between
    # that takes a tenth less time, and frozen objects are never traversed again.
    gc.disable()
    from sidecar.server.logging import set_up_logging

    set_up_logging(log_level)
    from sidecar.server.server import create_server
    from sidecar.server.stdio import run_stdio
    from sidecar.workspace.memory import use_one_arena

    use_one_arena()
    server = create_server()
    gc.freeze()
    gc.enable()
    return run_stdio(server)
