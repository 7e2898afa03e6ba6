"""Write the requirements of Install Server: `python editors/vscode/lock.py [--upgrade]`.

`requirements.txt` pins every dependency of the server, with hashes, for all platforms and every
Python from 3.11. `requirements-mcp.txt` adds those of the extra `mcp`. uv (in the extra `test`)
asks the registry that it is configured for; the files name none. Run this when the dependencies in
pyproject.toml change.
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
MCP_REQUIREMENTS = HERE / "requirements-mcp.txt"
HEADER = (
    "# Made by lock.py beside it, from the dependencies in pyproject.toml, whose digest is\n# {}\n"
)
COMPILE = (
    *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
    *("--only-binary", ":all:", "--generate-hashes", "--no-annotate", "--no-header"),
)


def header() -> str:
    """Return the first lines of both files, which change with the project's dependencies."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    dependencies = [*project["dependencies"], *project["optional-dependencies"]["mcp"]]
    return HEADER.format(hashlib.sha256("\n".join(dependencies).encode()).hexdigest())


def main(arguments: list[str]) -> int:
    """Write both files. Pins that still fit are kept unless `--upgrade` is given."""
    for file, options in (
        (REQUIREMENTS, []),
        (MCP_REQUIREMENTS, ["--extra", "mcp", "--constraint", str(REQUIREMENTS)]),
    ):
        output = ["--output-file", str(file)]
        command = [sys.executable, "-I", "-m", "uv", *COMPILE, *output, *options]
        code = subprocess.run(  # noqa: S603 - uv, no shell
            [*command, *arguments, str(PROJECT)], check=False, cwd=HERE
        ).returncode
        if code:
            return code
        file.write_text(header() + file.read_text("utf-8"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
