"""Entry point of `token-sidecar serve`."""

from __future__ import annotations

import gc
import sys


def run(log_level: str = "WARNING") -> int:
    """Serve on stdin and stdout until the session ends. Returns the exit code."""
    # Let the event loop interrupt a counting thread after 0.5 ms instead of 5 ms.
    sys.setswitchinterval(0.0005)
    # Importing LSP's types creates about 100,000 permanent objects: that is 10 % faster without
    # collections, which never traverse frozen objects later.
    gc.disable()
    from sidecar.server.logging import set_up_logging

    set_up_logging(log_level)
    from sidecar.server.server import create_server
    from sidecar.server.stdio import serve_stdio
    from sidecar.workspace.memory import use_one_arena

    use_one_arena()
    server = create_server()
    gc.freeze()
    gc.enable()
    return serve_stdio(server)
