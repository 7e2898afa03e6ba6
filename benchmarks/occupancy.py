"""Compares the time of `context/usage` for a long and a short conversation."""

from __future__ import annotations

import statistics
import time

from benchmarks.client import SERVER, StdioClient
from benchmarks.editing import full_tiktoken
from benchmarks.page import figure

TURNS = (20, 200, 2_000)
REQUESTS = 500
WARM_UP = 50
WORDS = "Look at the failing test, say what it checks, and mend the function that it names. "


def run() -> None:
    """Print the median times of the shortest and the longest conversation, and their ratio."""
    client = StdioClient(SERVER)
    client.initialize()
    for turns in TURNS:
        made = [
            {"role": "assistant" if number % 2 else "user", "content": content}
            for number, content in enumerate(_contents(turns))
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
    medians = {turns: statistics.median(took[turns][WARM_UP:]) for turns in TURNS}
    _draw(medians)
    short, long = medians[TURNS[0]] * 1e3, medians[TURNS[-1]] * 1e3
    print("\n`context/usage` through the server, median")
    print(f"  {TURNS[0]:,} turns {short:.3f} ms, {TURNS[-1]:,} turns {long:.3f} ms: ", end="")
    print(f"{long / short:.2f}x")


def _contents(turns: int) -> list[str]:
    return [f"{number}. {WORDS}" for number in range(turns)]


def _draw(medians: dict[int, float]) -> None:
    """Draw the times beside the times for counting the whole conversation again."""
    drawn = figure("`context/usage` of a conversation (p50)", "turns of the conversation")
    for turns, seconds in medians.items():
        drawn.add("context/usage", turns, seconds)
        drawn.add("tiktoken over all turns", turns, full_tiktoken("".join(_contents(turns)), 5))
