"""Sends random edits to a real server: `python -m tests.fuzz.server_soak --edits 100000`.

Each edit is sent as `didChange` over stdio. `tokens/count` must return the same number as tiktoken
for the expected text. With `--openings 10`, ten more documents of 10 MB are edited while they are
being opened. One third of the documents are larger than 20 KB, and each position encoding is used
in one third of the sessions. The exit code is 1 if a number differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from benchmarks.client import SERVER, StdioClient
from benchmarks.corpus import source_text
from sidecar.counting.exact_engines import Reference
from sidecar.text.document import Encoding, Position, Range, TextDocument
from tests.fuzz import edits, oracle

EDITS_PER_DOCUMENT = 100
EDITS_WHILE_OPENING = 20
OPENED_CHARACTERS = 10_000_000
ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")


def position(place: Position) -> dict[str, int]:
    return {"line": place.line, "character": place.character}


class Session:
    """A server, a client with one position encoding, and each document's expected text."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.client = StdioClient(SERVER)
        general = {"positionEncodings": [encoding]}
        answer = self.client.request("initialize", {"capabilities": {"general": general}})
        assert answer["capabilities"]["positionEncoding"] == encoding
        self.client.notify("initialized", {})

    def soak(self, seed: int, wanted: int) -> bool:
        """Edit a document `wanted` times, and return whether it is larger than 20 KB."""
        rng = random.Random(seed)
        size = rng.randrange(20_500, 60_000) if seed % 3 == 0 else rng.randrange(1, 4_000)
        # `doc` is needed only to choose valid edits. The reference model gives the expected text.
        doc = TextDocument("untitled:soak", edits.document_text(rng, size), encoding=self.encoding)
        uri, text = f"file:///soak/{seed}.txt", doc.text
        model, name = rng.choice((("gpt-5", "o200k_base"), ("gpt-4", "cl100k_base")))
        item = {"uri": uri, "languageId": "plaintext", "version": 0, "text": text}
        self.client.notify("textDocument/didOpen", {"textDocument": item})
        for version in range(1, wanted + 1):
            span, new = edits.edit(rng, doc)
            text = oracle.edited(text, span, new, self.encoding)
            doc.apply(span, new)
            self._change(uri, version, span, new)
            count = self.client.request(
                "tokens/count", {"textDocument": {"uri": uri}, "model": model}
            )
            full = Reference(name).count_whole(text)
            got = (count["tokens"], count["method"], count["version"], count["characters"])
            assert got == (full, "exact", version, len(text)), f"seed {seed}, edit {version}: {got}"
        self.client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
        self.client.notifications.clear()
        return size > 20_000

    def opening(self, seed: int, size: int) -> None:
        """Send edits while a long document is being opened and counted."""
        rng, uri = random.Random(seed), f"file:///soak/long{seed}.txt"
        some = edits.document_text(rng, 20_000)
        doc = TextDocument("untitled:soak", source_text(size) + some, encoding=self.encoding)
        text = doc.text
        item = {"uri": uri, "languageId": "plaintext", "version": 0, "text": text}
        self.client.notify("textDocument/didOpen", {"textDocument": item})
        for version in range(1, EDITS_WHILE_OPENING + 1):
            time.sleep(rng.random() * 0.05)
            span, new = edits.edit(rng, doc)
            text = oracle.edited(text, span, new, self.encoding)
            doc.apply(span, new)
            self._change(uri, version, span, new)
        count = self.client.request("tokens/count", {"textDocument": {"uri": uri}})
        got = (count["tokens"], count["method"], count["characters"])
        assert got == (Reference("o200k_base").count(text), "exact", len(text)), f"{seed}: {got}"
        self.client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
        self.client.notifications.clear()

    def _change(self, uri: str, version: int, span: Range, new: str) -> None:
        identifier = {"uri": uri, "version": version}
        change = {
            "range": {"start": position(span.start), "end": position(span.end)},
            "text": new,
        }
        params = {"textDocument": identifier, "contentChanges": [change]}
        self.client.notify("textDocument/didChange", params)


def main() -> int:
    """Run sessions until enough edits have been sent, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--openings", type=int, default=0, help="long documents to edit while they are opened"
    )
    args = parser.parse_args()
    sessions = [Session(encoding) for encoding in ENCODINGS]
    began, done, long, seed = time.monotonic(), 0, 0, args.seed
    while done < args.edits:
        wanted = min(EDITS_PER_DOCUMENT, args.edits - done)
        try:
            long += sessions[seed // 3 % 3].soak(seed, wanted)
        except AssertionError as error:
            sys.stderr.write(f"DIFFERENT: {error}\n")
            return 1
        done, seed = done + wanted, seed + 1
    for number in range(args.openings):
        try:
            sessions[number % 3].opening(args.seed + number, OPENED_CHARACTERS)
        except AssertionError as error:
            sys.stderr.write(f"DIFFERENT: {error}\n")
            return 1
    for session in sessions:
        session.client.close()
    sys.stdout.write(
        f"{done} edits through the server, {seed - args.seed} documents ({long} over 20 KB), "
        f"{args.openings} long documents edited while they were opened, "
        f"{', '.join(ENCODINGS)}: all equal to tiktoken, {time.monotonic() - began:.0f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
