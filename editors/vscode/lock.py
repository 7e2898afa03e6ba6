"""Writes requirements.txt, for Install Server: `python editors/vscode/lock.py [--upgrade]`.

Every dependency of the server, and theirs, pinned, with the hashes of all their files: for every
Python from 3.11 and every platform at once. uv (of the extra `test`) asks the registry that it is
configured for; none is named in the file. To be run when the dependencies in pyproject.toml change.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1] / "pyproject.toml"
REQUIREMENTS = HERE / "requirements.txt"
HEADER = (
    "# Made by lock.py beside it, from the dependencies in pyproject.toml, whose digest is\n# {}\n"
)
COMPILE = (
    *(
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
        "--only-binary",
        ":all:",
    ),
    *("--generate-hashes", "--no-annotate", "--no-header", "--output-file", str(REQUIREMENTS)),
)


def header() -> str:
    """The first lines of the file: they change when the project's dependencies do."""
    dependencies = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["dependencies"]
    return HEADER.format(hashlib.sha256("\n".join(dependencies).encode()).hexdigest())


def main(arguments: list[str]) -> int:
    """Pins that are there stay while they fit, unless `--upgrade` is among the arguments."""
    command = [sys.executable, "-I", "-m", "uv", *COMPILE, *arguments, str(PROJECT)]
    code = subprocess.run(command, check=False, cwd=HERE).returncode  # noqa: S603 - uv, no shell
    if code == 0:
        REQUIREMENTS.write_text(header() + REQUIREMENTS.read_text("utf-8"), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
