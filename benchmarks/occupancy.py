"""`context/usage` of a long conversation beside that of a short one, through the whole server."""

from __future__ import annotations

import statistics
import time

from benchmarks.client import SERVER, StdioClient

TURNS = (20, 2_000)
REQUESTS = 500
WARM_UP = 50
WORDS = "Look at the failing test, say what it checks, and mend the function that it names. "


def run() -> None:
    """Print the median time of each, asked in turn, and their ratio."""
    client = StdioClient(SERVER)
    client.initialize()
    for turns in TURNS:
        made = [
            {"role": "assistant" if number % 2 else "user", "content": f"{number}. {WORDS}"}
            for number in range(turns)
        ]
        client.request("context/append", {"session": str(turns), "turns": made})
    took: dict[int, list[float]] = {turns: [] for turns in TURNS}
    for _ in range(WARM_UP + REQUESTS):
        for turns in TURNS:
            start = time.perf_counter()
            usage = client.request("context/usage", {"session": str(turns)})
            took[turns].append(time.perf_counter() - start)
            assert usage["turns"] == turns
    client.close()
    short, long = (statistics.median(took[turns][WARM_UP:]) * 1e3 for turns in TURNS)
    print("\n`context/usage` through the server, median")
    print(f"  {TURNS[0]:,} turns {short:.3f} ms, {TURNS[1]:,} turns {long:.3f} ms: ", end="")
    print(f"{long / short:.2f}x")
