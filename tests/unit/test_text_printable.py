"""Tests that names cannot affect terminals, CI or Markdown, and how numbers are written."""

from __future__ import annotations

import ast
import re
import unicodedata
from decimal import Decimal
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sidecar.counting.count_result import band_text
from sidecar.text.printable import (
    different_usd_texts,
    markdown,
    message,
    percent_text,
    printable,
    printable_lines,
    shorten_error,
    usd_text,
)

HOSTILE = [
    "\x1b[2J\x1b]52;c;c2VjcmV0\x07",
    "\x9b31mred",
    "a\rb\nc\td\x00e\x7f",
    "safe\u202egpj.exe\u2066\u061c",
    "one\u2028two\u2029three\x85four",
    "\ud800 alone, and \udcff of a file's name",
    "hidden\U000e0041\u200b\ufeff",
]
ACTIVE = {"Cc", "Cs", "Zl", "Zp"}
BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_plain(text: str, allowed: str = "") -> bool:
    return not any(
        unicodedata.category(one) in ACTIVE or one in BIDI for one in text if one not in allowed
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_active_characters_are_escaped(text: str) -> None:
    assert is_plain(printable(text))
    assert is_plain(printable_lines(text), "\n")
    printable(text).encode("utf-8")


def test_the_escapes() -> None:
    assert printable("a\n\r\t\x1b\x9b") == r"a\n\r\t\x1b\x9b"
    assert printable("\u202e\ud800\U000e0041") == r"\u202e\ud800\U000e0041"
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


def test_a_long_error_keeps_its_start_and_its_end() -> None:
    path = "/home/a/" + "b" * 300
    assert shorten_error(f"cannot read {path}: no such file") == f"cannot read {path}: no such file"
    short = shorten_error(f"cannot read {path * 40}: choose another name")
    assert len(short) < 600
    assert short.startswith(f"cannot read {path[:200]}")
    assert short.endswith("b: choose another name")


@pytest.mark.parametrize(
    "text", ["", "prompts/AGENTS.md", "C:\\a\\b", "naïve 文書 👩‍💻", "# x [y]", "c++::std", "a: b"]
)
def test_harmless_text_is_unchanged(text: str) -> None:
    assert printable(text) == printable_lines(text) == text


def forged(line: str) -> bool:
    """Return whether GitHub's or Azure's runner would execute a line as a command."""
    return line.lstrip().startswith("::") or bool(re.search(r"##\w*\[", line))


@pytest.mark.parametrize(
    "text", ["::error::x", " \t::add-mask::x", "a ##[add-mask]x", "##vso[task.x]y", "\u00a0::x::"]
)
def test_escaped_line_is_no_ci_command(text: str) -> None:
    assert forged(text)
    assert not forged(printable(text))
    assert not any(map(forged, printable_lines(f"one\n{text}\r{text}\n{text}").split("\n")))


@given(st.text() | st.text("#[]:\n \r\x1bvso"))
def test_escaped_text_contains_no_command(text: str) -> None:
    assert is_plain(printable(text))
    assert not forged(printable(text))
    assert not any(map(forged, printable_lines(text).split("\n")))


LINK = "[x](https://host/y)"
MARKUP = [
    "![p](https://host/x.png)",
    f"{LINK} <https://host> https://host www.host.org a@host.org",
    "<img src=https://host/x.png>",
    "a | b | ![p](//host)",
    "`code` **bold** _slanted_ ~~gone~~ \\",
    "~1~ ~~2~~ (~3~ ~$4 ~~~5",
    "&#x202e; &lt;",
    "$(zap)",
    "\\![p](x) \\| \\\\[x](y)",
]
SIGNS = st.text("![]()<>|`*_~&#\\:/ ahtpsw.@$1\n")
BARE_LINK = re.compile(r"(https?|ftp)://|www\.|\w@\w", re.IGNORECASE)


def rendered(text: str) -> str:
    """Return the text in a table row's only cell. Fails if Markdown renders anything else."""
    source = f"| head |\n|---|\n| a{markdown(text)}z |\n"
    assert not BARE_LINK.search(source), "GitHub's Markdown creates a link"
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    cell = re.search(r"<tbody>\n<tr>\n<td>a([^<]*)z</td>\n</tr>\n</tbody>\n", parser.render(source))
    assert cell is not None, parser.render(source)
    return unescape(cell[1])


@pytest.mark.parametrize("text", MARKUP)
def test_escaped_markup_is_rendered_as_text(text: str) -> None:
    assert rendered(text) == printable(text)


@given(SIGNS)
def test_any_escaped_name_is_rendered_as_text(text: str) -> None:
    assert rendered(text) == printable(text)


def test_markdown_leaves_usual_names_readable() -> None:
    for name in (
        "~12 (~3 %), ~$4",
        "gpt-5",
        "o200k_base",
        "anthropic/claude-sonnet-4.5",
        "qwen3:8b",
        "tokens.json",
    ):
        assert markdown(name) == name


def test_vs_code_finds_no_icon_in_a_name() -> None:
    assert markdown("$(zap)") == r"\$(zap)"


def test_an_editors_message_has_no_links() -> None:
    shown = message("Heaviest:\n[click](command:x) [y](https://host)")
    assert not re.search(r"\]\((command|https|file):", shown)
    assert "\n" in shown


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (1234.5, "$1,234.50"),
        (8.268, "$8.27"),
        (0.9951, "$1.00"),
        (0.54, "$0.54"),
        (0.0224, "$0.022"),
        (0.001, "$0.0010"),
        (0.00099, "<$0.001"),
        (0.0, "$0.00"),
        # Halves are those of the decimal number, and are rounded to even.
        (0.00975, "$0.0098"),
        (0.00965, "$0.0096"),
        (Decimal("0.285"), "$0.28"),
        (1.005, "$1.00"),
        (2.675, "$2.68"),
        (0.00999, "$0.010"),
        (-0.028, "-$0.028"),
        (-0.00042, "-$0.00042"),
        (-0.997, "-$1.00"),
        (-1234.5, "-$1,234.50"),
    ],
)
def test_an_amount_has_two_decimals_or_two_significant_digits(
    usd: float | Decimal, text: str
) -> None:
    assert usd_text(usd) == text


@pytest.mark.parametrize(
    ("first", "second", "texts"),
    [
        ("0.193", "0.19", ("$0.193", "$0.190")),
        ("12.0004", "12", ("$12.0004", "$12.0000")),
        ("0.00042", "0.0004", ("$0.00042", "$0.00040")),
        ("0.21", "0.19", ("$0.21", "$0.19")),
        ("5", "5", ("$5.00", "$5.00")),
    ],
)
def test_different_amounts_look_different(first: str, second: str, texts: tuple[str, str]) -> None:
    assert different_usd_texts(Decimal(first), Decimal(second)) == texts


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
