"""Runs the scenes with real agents and prints a table of the results.

Usage: `python -m tests.e2e.agents [AGENT…]`. Without arguments, it runs the agents that CI tests.
The argument `all` runs all agents that can be installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def main(names: list[str]) -> int:
    """Run pytest on this folder and return its exit code."""
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent)]
    environment = os.environ | {"AGENTS": " ".join(names)}
    return subprocess.run(command, check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
