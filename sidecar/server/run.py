"""Starting the server on stdio: what `token-sidecar serve` does."""

from __future__ import annotations

import gc
import sys


def run(log_level: str = "WARNING") -> int:
    """Serve on standard input and output until the session ends; the process's exit code."""
    # A count on a worker gives the event loop its turn within half a millisecond, not five.
    sys.setswitchinterval(0.0005)
    # Importing LSP's types makes some 100,000 objects that live as long as the process: without
    # collections in between it takes a tenth less, and frozen they are never walked again.
    gc.disable()
    from sidecar.server.logging import set_up_logging

    set_up_logging(log_level)
    from sidecar.server.memory import use_one_arena
    from sidecar.server.server import create_server
    from sidecar.server.stdio import run_stdio

    use_one_arena()
    server = create_server()
    gc.freeze()
    gc.enable()
    return run_stdio(server)
