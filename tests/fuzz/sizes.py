"""Tests large inputs: `python -m tests.fuzz.sizes`.

The inputs are a 100 MB document, 1,000 open documents, 200 root folders and a folder with 100,000
files. The server must answer all requests and exit normally. Time and memory are printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.client import SERVER, StdioClient

LINE = "The quick brown fox counts 12 tokens, or about that many, in a line of prose.\n"
START = {"line": 0, "character": 0}


class Server(StdioClient):
    """A server with the given root folders."""

    def __init__(self, *folders: Path) -> None:
        super().__init__([*SERVER, "--log-level", "ERROR"])
        self.initialize(*folders)

    def count(self, uri: str) -> dict[str, Any]:
        """Return an open document's token count."""
        found: dict[str, Any] = self.request("tokens/count", {"textDocument": {"uri": uri}})
        return found

    def peak(self) -> int:
        """Return the process's peak memory in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) // 1024

    def end(self, what: str, began: float) -> None:
        """Print time and memory, and shut down the server as an editor does."""
        print(f"{what}: {time.monotonic() - began:.1f} s, {self.peak()} MB at most")
        self.close()
        assert self.process.returncode == 0


def huge_document(folder: Path) -> None:
    """Open a 100 MB document, count it, edit its start, and count it again."""
    began, server, uri = time.monotonic(), Server(folder), f"{folder.as_uri()}/huge.md"
    server.open(LINE * (100_000_000 // len(LINE)), uri)
    first = server.count(uri)["tokens"]
    edit = {"range": {"start": START, "end": START}, "text": "One more line.\n"}
    document = {"uri": uri, "version": 2}
    server.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [edit]})
    edited = time.monotonic()
    assert server.count(uri)["tokens"] > first
    print(f"  count after an edit: {time.monotonic() - edited:.2f} s")
    server.end("a document of 100 MB", began)


def many_documents(folder: Path) -> None:
    """Open 1,000 documents and count them all."""
    began, server = time.monotonic(), Server(folder)
    uris = [f"{folder.as_uri()}/{number}.md" for number in range(1_000)]
    for uri in uris:
        server.open(LINE * 130, uri)
    assert len({server.count(uri)["tokens"] for uri in uris}) == 1
    server.end("1,000 documents of 10 KB", began)


def many_folders(folder: Path) -> None:
    """Open 200 root folders, each with its own settings."""
    began = time.monotonic()
    folders = [folder / f"root-{number}" for number in range(200)]
    for number, each in enumerate(folders):
        each.mkdir()
        model = "gpt-4" if number % 2 else "gpt-5"
        (each / ".token-sidecar.toml").write_text(f'model = "{model}"\n')
    server = Server(*folders)
    for number, each in enumerate(folders):
        server.open(LINE, f"{each.as_uri()}/a.md")
        assert server.count(f"{each.as_uri()}/a.md")["model"] == (
            "gpt-4" if number % 2 else "gpt-5"
        )
        assert server.request("context/usage", {"workspace": each.as_uri()})["session"] is None
    server.end("200 folders", began)


def many_files(folder: Path) -> None:
    """Run `check` on 100,000 files twice. The second run uses cached counts."""
    for number in range(100_000):
        if number % 1_000 == 0:
            (folder / f"part-{number // 1_000}").mkdir()
        (folder / f"part-{number // 1_000}" / f"{number}.md").write_text(LINE)
    (folder / ".token-sidecar.toml").write_text('[[budget]]\nfiles = "**/*.md"\nmax-tokens = 100\n')
    (folder / "part-0" / "0.md").write_text(LINE * 50)
    check = [sys.executable, "-P", "-m", "sidecar", "check", str(folder)]
    for what in ("cold", "warm"):
        began = time.monotonic()
        result = subprocess.run(check, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (1, ""), result
        print(f"check of 100,000 files, {what}: {time.monotonic() - began:.1f} s")


def main() -> None:
    """Run all tests, each in its own folder."""
    each: Callable[[Path], None]
    for each in (many_documents, many_folders, huge_document, many_files):
        with tempfile.TemporaryDirectory() as name:
            each(Path(name))


if __name__ == "__main__":
    main()
