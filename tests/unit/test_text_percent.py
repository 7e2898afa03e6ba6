"""Tests that percentages are formatted and rounded in the same way everywhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from sidecar.counting.count_result import band_text
from sidecar.text.printable import percent_text

TOP = Path(__file__).parents[2]
OWNERS = {
    "sidecar/text/printable.py",
    "sidecar/counting/count_result.py",
    "editors/vscode/src/format.ts",
}
"""The modules that format percentages and error bands, here and in the VS Code extension."""


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (13, "13 %"), (99.97, "99 %"), (100, "100 %"), (117.2, "117 %"), (-0.0, "0 %")],
)
def test_a_share_is_rounded_down(share: float, text: str) -> None:
    """Only a completely used limit is shown as 100 %."""
    assert percent_text(share) == text


def test_floating_point_error_does_not_lower_a_percentage() -> None:
    assert percent_text(0.29 * 100) == "29 %"


@pytest.mark.parametrize(("error", "text"), [(9.24, "±9.2 %"), (0.0, "±0.0 %"), (12.6, "±13 %")])
def test_a_band_has_two_digits(error: float, text: str) -> None:
    assert band_text(error) == text


def _python() -> list[str]:
    found = []
    for path in sorted((TOP / "sidecar").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.JoinedStr):
                continue
            values = zip(node.values, node.values[1:], strict=False)
            written = any(
                isinstance(before, ast.FormattedValue)
                and isinstance(after, ast.Constant)
                # Ignores percentages in HTML attributes, such as widths.
                and re.match(r"\s?%(?![\";])", str(after.value))
                for before, after in values
            )
            if written:
                found.append(path.relative_to(TOP).as_posix())
    return found


def _shims() -> list[str]:
    form = re.compile(r"(?<!width=\")\$\{[^}]*\}\s?%|%[sd]\s?%%(?!\*)")
    paths = [*TOP.glob("editors/vscode/src/*.ts"), *TOP.glob("editors/neovim/**/*.lua")]
    return [path.relative_to(TOP).as_posix() for path in paths if form.search(path.read_text())]


def test_no_other_module_formats_percentages() -> None:
    """A number in two formats would look like two different numbers."""
    assert set(_python()) | set(_shims()) <= OWNERS
