"""Measures typing into a 1 MB file in a real Neovim, with our server and with an idle one.

python -m benchmarks.neovim_typing [--runs 5] [--keys 1000] [--bytes 1000000]

python -m benchmarks.neovim_typing --bytes 10000 --keys 500 --beside 10000000

With `--beside`, a file of this size is opened in a second window when the first key is sent. With
the idle server, the longest time shows how long Neovim itself takes to read and send the file.

Each key is sent after the previous one has been painted, and the time from key to paint is
measured. Both servers receive the same edits, and the idle one discards them. Runs alternate. The
ratio compares the medians of the runs' p99. The benchmark fails if the final number is not exact.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from benchmarks.corpus import source_text
from tests.e2e.neovim.harness import NVIM, SHIM, environment
from tests.truth import truth

IDLE_SERVER = """\
import json, sys
while True:
    length = 0
    while line := sys.stdin.buffer.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    if not length:
        sys.exit(1)
    message = json.loads(sys.stdin.buffer.read(length))
    if message["method"] == "exit":
        sys.exit(0)
    if "id" in message:
        sync = {"openClose": True, "change": 2}
        result = {"capabilities": {"positionEncoding": "utf-8", "textDocumentSync": sync}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        body = json.dumps(answer).encode()
        sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
        sys.stdout.buffer.flush()
"""
INIT = """\
vim.opt.runtimepath:prepend('{shim}')
vim.o.swapfile = false
vim.o.laststatus = 2
vim.o.statusline = "%f|%{{v:lua.require'token_sidecar'.statusline()}}|"
{extra}
"""
IDLE_INIT = """\
vim.g.token_sidecar_enabled = false
vim.lsp.config('idle', {{ cmd = {{ '{python}', '{script}' }} }})
vim.lsp.enable('idle')
"""
OPEN_BESIDE = "vim.cmd('belowright vsplit {file} | wincmd p | startinsert')"
HAS_SERVER = "return #vim.lsp.get_clients({{ bufnr = vim.fn.bufnr('{file}') }}) > 0"
SHOWN = "local d = (vim.b[vim.fn.bufnr('{file}')].token_sidecar_status_dict or {{}}).document"
LINE = "The quick brown fox jumps over the lazy dog, 1234 times (or so).\n"
TYPED = "lorem ipsum dolor sit amet, "
WAIT_SECONDS = 120.0
MOST = 1.25
"""Maximum ratio of our time per key to the idle server's."""


class Screen:
    """An embedded Neovim that sends its screen to this process as msgpack."""

    def __init__(self, folder: Path, init: str, file: Path) -> None:
        (folder / "init.lua").write_text(init, encoding="utf-8")
        self._process = subprocess.Popen(
            [NVIM, "--embed", "--clean", "-n", "-u", folder / "init.lua", file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(folder),
        )
        self._unpacker = msgpack.Unpacker(strict_map_key=False)
        self._id = 0
        self._cursor: tuple[int, ...] = ()
        self.call("nvim_ui_attach", 100, 30, {"ext_linegrid": True})

    def _messages(self) -> Any:
        assert self._process.stdout is not None
        while True:
            yield from self._unpacker
            self._unpacker.feed(os.read(self._process.stdout.fileno(), 1 << 16))

    def _send(self, method: str, arguments: tuple[object, ...]) -> int:
        assert self._process.stdin is not None
        self._id += 1
        self._process.stdin.write(msgpack.packb([0, self._id, method, arguments]))
        self._process.stdin.flush()
        return self._id

    def start(self, code: str) -> None:
        """Start running Lua without waiting for the result."""
        self._send("nvim_exec_lua", (code, []))

    def call(self, method: str, *arguments: object) -> Any:
        """Call a function of Neovim's API and return its result."""
        number = self._send(method, arguments)
        for message in self._messages():
            if message[0] == 2 and message[1] == "redraw":
                moves = [event[-1] for event in message[2] if event[0] == "grid_cursor_goto"]
                self._cursor = tuple(moves[-1]) if moves else self._cursor
            if message[0] == 1 and message[1] == number:
                if message[2]:
                    raise RuntimeError(str(message[2]))
                return message[3]
        raise RuntimeError("Neovim ended")

    def paint(self, key: str) -> float:
        """Return the seconds from a key until the screen shows the moved cursor."""
        start = time.perf_counter()
        self._send("nvim_input", (key,))
        before = self._cursor
        for message in self._messages():
            if message[0] != 2 or message[1] != "redraw":
                continue
            for event in message[2]:
                if event[0] == "grid_cursor_goto":
                    self._cursor = tuple(event[-1])
                if event[0] == "flush" and self._cursor != before:
                    return time.perf_counter() - start
        raise RuntimeError("Neovim ended")

    def wait(self, code: str) -> Any:
        """Poll a Lua expression until its result is true."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := self.call("nvim_exec_lua", code, [])):
            if time.monotonic() > deadline:
                raise TimeoutError(code)
            time.sleep(0.05)
        return found

    def close(self) -> None:
        """End Neovim."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def one_run(ours: bool, keys: int, size: int, beside: int = 0) -> tuple[float, float]:
    """Return the p99 and the longest time from key to paint, in seconds.

    Raises:
        TimeoutError: The exact number is not shown at the end.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = LINE * (size // len(LINE))
        file = folder / "big.txt"
        file.write_text(text)
        idle = folder / "idle.py"
        idle.write_text(IDLE_SERVER)
        extra = "" if ours else IDLE_INIT.format(python=sys.executable, script=idle)
        screen = Screen(folder, INIT.format(shim=SHIM, extra=extra), file)
        screen.wait("local c = vim.lsp.get_clients({ bufnr = 0 })[1]; return c and c.initialized")
        if ours:
            screen.wait("return vim.b.token_sidecar_status_dict")
        middle = text.count("\n") // 2
        screen.call("nvim_win_set_cursor", 0, [middle, 0])
        screen.call("nvim_command", "startinsert | redraw")
        screen.wait("return vim.fn.mode() == 'i'")
        typed = (TYPED * (keys // len(TYPED) + 1))[:keys]
        other = _other_file(folder, beside)
        if beside:
            screen.start(OPEN_BESIDE.format(file=other))
        times = sorted(screen.paint(key) for key in typed)
        if beside:
            screen.wait(HAS_SERVER.format(file=other))
        if ours and beside:
            expected = truth(other.read_text())
            screen.wait(f"{SHOWN.format(file=other)}; return d ~= nil and d.tokens == {expected}")
        if ours:
            where = len(LINE) * (middle - 1)
            expected = truth(text[:where] + typed + text[where:])
            shown = "local d = (vim.b.token_sidecar_status_dict or {}).document"
            screen.wait(f"{shown}; return d ~= nil and d.tokens == {expected}")
        screen.close()
        return times[int(len(times) * 0.99) - 1], times[-1]


def _other_file(folder: Path, size: int) -> Path:
    file = folder / "beside.txt"
    if size:
        file.write_text(source_text(size))
    return file


def main() -> int:
    """Print a line for each run and the ratio. The exit code is 1 if the ratio is too high."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--beside", type=int, default=0)
    options = parser.parse_args()
    p99: dict[bool, list[float]] = {True: [], False: []}
    for run in range(options.runs):
        # Runs affect the next run, so neither server is always the second.
        for ours in (False, True) if run % 2 == 0 else (True, False):
            seconds, longest = one_run(ours, options.keys, options.bytes, options.beside)
            p99[ours].append(seconds)
            side = "token-sidecar" if ours else "idle server"
            took = f"{seconds * 1000:7.2f} ms, longest {longest * 1000:7.2f} ms"
            print(f"run {run + 1}  {side:14} p99 key to paint {took}", flush=True)
    mine, idle = statistics.median(p99[True]), statistics.median(p99[False])
    print(f"median p99: {mine * 1000:.2f} ms beside {idle * 1000:.2f} ms, ratio {mine / idle:.2f}")
    return int(mine / idle > MOST)


if __name__ == "__main__":
    sys.exit(main())
