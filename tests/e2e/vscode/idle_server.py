"""A language server that does nothing, used to measure VS Code's own latency."""

from __future__ import annotations

import json
import sys
from typing import Any, BinaryIO

CAPABILITIES = {"textDocumentSync": {"openClose": True, "change": 2}}


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """Return the next message, or None at the end of the input."""
    length = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if not length:
        return None
    message: dict[str, Any] = json.loads(stream.read(length))
    return message


def main() -> None:
    """Answer every request with null until `exit` is received."""
    while (message := read(sys.stdin.buffer)) is not None and message.get("method") != "exit":
        if "id" not in message or "method" not in message:
            continue
        result = {"capabilities": CAPABILITIES} if message["method"] == "initialize" else None
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
