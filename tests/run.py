"""Installs everything that the tests need, and runs the tests: `python3 tests/run.py`.

Python 3.11 or later, access to PyPI and npm and, on Debian, root permissions are required.
Everything is installed into folders that git ignores: `.venv`, `.editors`, `.agents` and
`.vocabularies`. `--python-only` installs only `.venv`, which is enough for `tests/unit`.
`--no-install` installs nothing. Other arguments are passed to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
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
    checks = [["mypy"], *map(_mypy_for, elsewhere)]  # the longest first
    checks += [["ruff", "check"], ["ruff", "format", "--check"], ["codespell_lib"]]
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda check: _run([python, "-m", *check]), checks))
    if any(codes):
        return next(filter(None, codes))
    # Two processes even if there are more cores, because the editors need CPU time, too.
    return _run([python, "-m", "pytest", "-n", "2", "--dist", "loadscope", *arguments])


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
