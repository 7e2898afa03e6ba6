"""A peer: a minimal pygls server with one custom request, on pygls' own stdio loop."""

from __future__ import annotations

from typing import Any

from pygls.lsp.server import LanguageServer


def create() -> LanguageServer:
    """Return a server with the custom request `bench/echo`, which answers at once."""
    server = LanguageServer("bare", "0")

    @server.feature("bench/echo")
    def echo(params: Any) -> dict[str, int]:
        return {"tokens": len(params.text)}

    return server


if __name__ == "__main__":
    create().start_io()
