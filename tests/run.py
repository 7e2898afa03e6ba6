"""Installs everything that the tests need, and runs the tests: `python3 tests/run.py`.

Python 3.11 or later, access to PyPI and npm and, on Debian, root permissions are required.
Everything is installed into folders that git ignores: `.venv`, `.editors`, `.agents` and
`.vocabularies`. `--python-only` installs only `.venv`, which is enough for `tests/unit`.
`--no-install` installs nothing. Other arguments are passed to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
NICE = ["nice"] if shutil.which("nice") else []
EDITABLE = ["--no-deps", "--no-build-isolation", "--editable", "."]
"""pip arguments that install only this project. Its dependencies are pinned in
`tests/requirements.txt`.
"""
ELSEWHERE = ("win32", "darwin")
"""Other operating systems. CI type-checks the code for them, but does not run it."""


def main(arguments: list[str]) -> int:
    """Install, check and test. Return the first non-zero exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    os.chdir(ROOT)
    # Tests start thousands of processes. Without a cache, each would compile the package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    python = str(_python())
    options = {"--no-install", "--python-only"} & set(arguments)
    arguments = [argument for argument in arguments if argument not in options]
    if "--no-install" not in options and (code := _install_packages(python)):
        return code
    if not options and (code := _fetch_programs(python)):
        return code
    elsewhere = ELSEWHERE if os.environ.get("CI") else ()
    for check in (["ruff", "check"], ["ruff", "format", "--check"], ["codespell_lib"]):
        if code := _run([python, "-m", *check]):
            return code
    # mypy runs beside the tests, with a low priority. Its output would be lost among theirs.
    with ThreadPoolExecutor(1) as pool:
        types = [
            pool.submit(subprocess.run, [*NICE, python, "-m", *check], stdout=subprocess.PIPE)
            for check in (["mypy"], *map(_mypy_for, elsewhere))
        ]
        # Three processes on two cores, because one of them usually waits for an editor or a server.
        code = _run([python, "-m", "pytest", "-n", "3", "--dist", "loadscope", *arguments])
    for result in (check.result() for check in types):
        print(result.stdout.decode(), end="", flush=True)
        code = code or result.returncode
    return code


def _mypy_for(system: str) -> list[str]:
    return ["mypy", "--platform", system, "--cache-dir", f".mypy_cache/{system}", "sidecar"]


def _python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _install_packages(python: str) -> int:
    if not Path(python).exists() and (code := _run([sys.executable, "-m", "venv", str(VENV)])):
        return code
    print(f"Installing what the tests need into {VENV.name}", flush=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for wanted in (["--require-hashes", "-r", "tests/requirements.txt"], EDITABLE):
        if code := _run([*pip, *wanted]):
            return code
    return 0


def _fetch_programs(python: str) -> int:
    print("Fetching the editors, coding agents and vocabularies that the tests drive", flush=True)
    for module in (
        "tests.e2e.editors_setup",
        "tests.e2e.agents.install",
        "tests.e2e.llama.vocabularies",
    ):
        if code := _run([python, "-m", module]):
            return code
    return 0


def _run(command: list[str]) -> int:
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
