"""Pin all dependencies with hashes: `python .ci/lock.py [--upgrade]`.

Each file is for every Python from 3.11, and for the platforms that pyproject.toml names under
`tool.uv`:

- `editors/vscode/requirements.txt`: what the VS Code extension installs, with the extra `treemap`.
- `editors/vscode/requirements-mcp.txt`: the same with the extra `mcp`.
- `tests/requirements.txt`: what `tests/run.py` installs, also in CI on Linux.
- `tests/requirements-unit.txt`: what CI needs for the unit tests on macOS and Windows, for the
  documentation and for the audit.

uv (in the extra `test`) asks the registry that it is configured for; the files name none. Run this
when the dependencies in pyproject.toml change. Pins that still fit are kept unless `--upgrade` is
given.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
REQUIREMENTS = ROOT / "editors/vscode/requirements.txt"
MCP_REQUIREMENTS = ROOT / "editors/vscode/requirements-mcp.txt"
TEST_REQUIREMENTS = ROOT / "tests/requirements.txt"
UNIT_REQUIREMENTS = ROOT / "tests/requirements-unit.txt"
OPTIONS = {
    REQUIREMENTS: ("--extra", "treemap"),
    MCP_REQUIREMENTS: ("--extra", "treemap", "--extra", "mcp"),
    # For Linux on x86-64 alone, as the editors are: `required-environments` does not apply.
    TEST_REQUIREMENTS: ("--extra", "test", "--no-config"),
    UNIT_REQUIREMENTS: (
        *("--group", "unit-tests", "--group", "docs", "--group", "audit"),
        *("--extra", "huggingface", "--extra", "mcp"),
        *("--extra", "qwen", "--extra", "sentencepiece", "--extra", "treemap"),
    ),
}
"""What each file pins, as options of uv."""
HEADER = "# Made by .ci/lock.py, from the dependencies in pyproject.toml, whose digest is\n# {}\n"
COMPILE = (
    *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
    *("--only-binary", ":all:", "--generate-hashes", "--no-annotate", "--no-header"),
)


def header(file: Path) -> str:
    """Return a file's first lines, which change with the dependencies in pyproject.toml."""
    text = tomllib.loads(PROJECT.read_text("utf-8"))
    extras = text["project"]["optional-dependencies"]
    named = [text["project"]["dependencies"], extras["mcp"], extras["treemap"]]
    if file in (TEST_REQUIREMENTS, UNIT_REQUIREMENTS):
        named += [text["project"]["optional-dependencies"], text["dependency-groups"]]
    return HEADER.format(hashlib.sha256(repr(named).encode()).hexdigest())


def main(arguments: list[str]) -> int:
    """Write all files."""
    for file, options in OPTIONS.items():
        command = [sys.executable, "-I", "-m", "uv", *COMPILE, "--output-file", str(file), *options]
        if file != REQUIREMENTS:
            command += ["--constraint", str(REQUIREMENTS)]
        code = subprocess.run(  # noqa: S603 - uv, no shell
            [*command, *arguments, str(PROJECT)], check=False, cwd=ROOT
        ).returncode
        if code:
            return code
        file.write_text(header(file) + file.read_text("utf-8"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
