"""Starting the server on stdio: what `token-sidecar serve` does."""

from __future__ import annotations

import gc


def run(log_level: str = "WARNING") -> int:
    """Serve on standard input and output until the session ends; the process's exit code."""
    # Importing LSP's types makes some 100,000 objects that live as long as the process: without
    # collections in between it takes a tenth less, and frozen they are never walked again.
    gc.disable()
    from sidecar.server.logging import set_up_logging

    set_up_logging(log_level)
    from sidecar.server.server import create_server
    from sidecar.server.stdio import run_stdio

    server = create_server()
    gc.freeze()
    gc.enable()
    return run_stdio(server)
