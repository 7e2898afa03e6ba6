"""Measures how long an edit and its new exact count take, beside counting the whole text."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.client import SERVER, URI, StdioClient
from benchmarks.corpus import SIZES, source_text
from benchmarks.page import figure, installed
from tests.truth import encoding

HERE = Path(__file__).resolve().parent
NODE_MODULES = HERE.parent / ".editors" / "benchmarks"

SETTLED_SECONDS = 2.0
"""Time in which a new server reads prices and searches for sessions. It is not measured."""


def edit_and_count(text: str, edits: int = 200) -> float:
    """Return the median seconds of an edit at a random place and `tokens/count`, over stdio."""
    client = StdioClient(SERVER)
    client.initialize()
    client.open(text)
    client.request("tokens/count", {"textDocument": {"uri": URI}})
    time.sleep(SETTLED_SECONDS)
    lines = text.split("\n")
    chance = random.Random(1)
    times = []
    for version in range(2, edits + 2):
        line = chance.randrange(len(lines))
        times.append(_one(client, version, line))
    client.close()
    return statistics.median(times)


def _one(client: StdioClient, version: int, line: int) -> float:
    place = {"line": line, "character": 0}
    change = {"range": {"start": place, "end": place}, "text": "x"}
    start = time.perf_counter()
    identifier = {"uri": URI, "version": version}
    params = {"textDocument": identifier, "contentChanges": [change]}
    client.notify("textDocument/didChange", params)
    answer = client.request("tokens/count", {"textDocument": {"uri": URI}})
    took = time.perf_counter() - start
    assert answer["version"] == version
    assert answer["method"] == "exact"
    return took


def full_tiktoken(text: str, runs: int) -> float:
    """Return the median seconds of counting a whole text with tiktoken."""
    encode = encoding("o200k_base").encode_ordinary
    encode("a")
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        len(encode(text))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def full_gpt_tokenizer(text: str, runs: int) -> float:
    """Return the median seconds of counting a whole text with npm's gpt-tokenizer, in Node."""
    NODE_MODULES.mkdir(parents=True, exist_ok=True)
    if not (NODE_MODULES / "node_modules" / "gpt-tokenizer").exists():
        (NODE_MODULES / "package.json").write_text('{"private": true}')
        npm = ["npm", "install", "--silent", "--no-save", "gpt-tokenizer@3"]
        subprocess.run(npm, cwd=NODE_MODULES, check=True)
    installed(NODE_MODULES / "node_modules" / "gpt-tokenizer")
    script = shutil.copy(HERE / "gpt_tokenizer.mjs", NODE_MODULES)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        command = ["node", str(script), file.name, str(runs)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(out)["milliseconds"]) / 1000


def run() -> None:
    """Print a row for each size."""
    print("\nEdit + exact count through the server (p50), against a full count at each edit")
    print(
        f"{'size':>8} {'sidecar':>11} {'tiktoken':>11} {'ratio':>8} {'gpt-tok.':>11} {'ratio':>8}"
    )
    first = 0.0
    drawn = figure("An edit and its exact count (p50)", "characters of the document")
    for name, size in SIZES.items():
        text = source_text(size)
        runs = 5 if size > 1_000_000 else 11
        ours = edit_and_count(text)
        first = first or ours
        tik, gpt = full_tiktoken(text, runs), full_gpt_tokenizer(text, runs)
        drawn.add("token-sidecar", size, ours)
        drawn.add("tiktoken", size, tik)
        drawn.add("gpt-tokenizer", size, gpt)
        row = f"{name:>8} {ours * 1e3:8.3f} ms {tik * 1e3:8.2f} ms {tik / ours:7.1f}x"
        print(f"{row} {gpt * 1e3:8.2f} ms {gpt / ours:7.1f}x   {ours / first:.2f}x of 10 KB")
