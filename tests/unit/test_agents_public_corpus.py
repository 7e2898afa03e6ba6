"""Tests the script that compares trackers with a vendor's bill."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.fixtures.agents import check

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "corpus.md"
RUN = "codex-resumed"
FIELDS = ("--rows", "data.totals", "--prompt", "in,cached", "--output", "out")


def command(prompt: int, output: int) -> str:
    """Return a command that prints these numbers, as a tracker would."""
    rows = {"data": {"totals": [{"in": prompt - 5, "cached": 5, "out": output}]}}
    return f"{sys.executable} -c 'print({json.dumps(json.dumps(rows))})'"


def test_own_numbers_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["token-sidecar", "--run", RUN]) == 0
    assert f"| {RUN} | right |" in capsys.readouterr().out


def test_wrong_numbers_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    billed = check.billed_tokens(RUN)
    for prompt, output, text in (
        (billed.prompt, billed.output, "right"),
        (billed.prompt + billed.prompt // 4, billed.output, "prompt +25.0 %"),
        (billed.prompt, billed.output // 2, "output -50.0 %"),
        (5, 0, "prompt -100.0 %, output -100.0 %"),
    ):
        code = check.main(["--command", command(prompt, output), *FIELDS, "--run", RUN])
        assert code == (text != "right")
        assert f"| {RUN} | {text} |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "text"),
    [("exit 3", "failed"), ("echo {}", "no numbers in its output"), ("echo no", "no numbers")],
)
def test_tools_that_fail_are_named(
    script: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["--command", f"sh -c '{script}'", *FIELDS, "--run", RUN]) == 1
    assert text in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_other_trackers_have_the_numbers_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["--install", str(tmp_path)]) == 1
    table = capsys.readouterr().out
    assert table.strip() in PAGE.read_text("utf-8")
