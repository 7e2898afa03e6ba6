"""Measures the time from opening a document to its exact count, and other requests meanwhile."""

from __future__ import annotations

import json
import statistics
import threading
import time

from benchmarks.client import SERVER, URI, StdioClient
from benchmarks.corpus import SIZES, source_text
from benchmarks.editing import SETTLED_SECONDS, full_tiktoken
from benchmarks.page import figure

SMALL = "file:///bench/small.md"
SPACING_SECONDS = 0.005
"""Time between requests, so that 200 requests take about as long as opening the document."""
ALONE = 5
"""How often each document is opened without other requests. The result is the median."""


def run() -> None:
    """Print the times until a document has an exact count, without and with 200 other requests."""
    print("\nA document is opened, nothing else is asked")
    drawn = figure("From opening a document to its exact number", "characters of the document")
    for name, size in SIZES.items():
        text = source_text(size)
        alone = statistics.median(_alone(text) for _ in range(ALONE))
        whole = full_tiktoken(text, ALONE)
        drawn.add("token-sidecar", size, alone)
        drawn.add("tiktoken", size, whole)
        ratio = f"{alone / whole:.2f}x of a full tiktoken count"
        print(f"  {name:>6}: exact after {alone * 1e3:.1f} ms: {ratio} ({whole * 1e3:.1f} ms)")
    _beside_another(text, whole)


def _opened(text: str) -> tuple[StdioClient, float]:
    """Send a large document to a new server. Return its client and the time of sending."""
    client = StdioClient(SERVER)
    client.initialize()
    client.open("# Title\n\nsome words\n", SMALL)
    client.request("tokens/count", {"textDocument": {"uri": SMALL}})
    frame = _opening(text)
    time.sleep(SETTLED_SECONDS)
    opened = time.perf_counter()
    client.send_raw(frame)
    return client, opened


def _alone(text: str) -> float:
    client, opened = _opened(text)
    while not _is_exact(client.receive()):
        pass
    exact = time.perf_counter() - opened
    client.close()
    return exact


def _beside_another(text: str, whole: float) -> None:
    body = json.dumps({"text": text})
    start = time.perf_counter()
    json.loads(body)
    parsing = time.perf_counter() - start
    client, opened = _opened(text)
    sent: dict[int, float] = {}
    took: list[float] = []
    thread = threading.Thread(target=_send, args=(client, sent))
    thread.start()
    exact_at, exact = None, 0.0
    while len(took) < 200 or exact_at is None:
        message = client.receive()
        now = time.perf_counter()
        if message.get("id") in sent:
            took.append(now - sent[message["id"]])
        elif exact_at is None and _is_exact(message):  # later updates contain the price
            exact_at, exact = len(took), now - opened
    thread.join()
    client.close()
    took.sort()
    print("\n200 counts of a small document while a 10 MB document opens")
    print(f"  p50 {took[100] * 1e3:.1f} ms, p99 {took[197] * 1e3:.1f} ms, ", end="")
    print(f"parsing the message alone {parsing * 1e3:.1f} ms; answered before exact: {exact_at}")
    print(f"  exact after {exact:.2f} s: {exact / whole:.2f}x of a full tiktoken count")


def _opening(text: str) -> bytes:
    """Return the encoded message that opens the large document."""
    item = {"uri": URI, "languageId": "python", "version": 1, "text": text}
    method = "textDocument/didOpen"
    message = {"jsonrpc": "2.0", "method": method, "params": {"textDocument": item}}
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def _send(client: StdioClient, sent: dict[int, float]) -> None:
    for number in range(10_000, 10_200):
        sent[number] = time.perf_counter()
        params = {"textDocument": {"uri": SMALL}}
        client.send({"jsonrpc": "2.0", "id": number, "method": "tokens/count", "params": params})
        time.sleep(SPACING_SECONDS)


def _is_exact(message: dict[str, object]) -> bool:
    params = message.get("params")
    if message.get("method") != "status/update" or not isinstance(params, dict):
        return False
    return bool(params["uri"] == URI and params["document"]["method"] == "exact")
