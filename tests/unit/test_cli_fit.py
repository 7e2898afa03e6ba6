"""Tests `token-sidecar fit`: input, output and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.fit import fit

TEXT = "".join(f"line {number} of the text\r\n" for number in range(100))


@pytest.fixture(autouse=True)
def _no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "empty.toml"))
    monkeypatch.chdir(tmp_path)


def test_it_prints_the_text_with_its_own_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    result = CliRunner().invoke(fit, ["a.txt", "--max-tokens", "70", "--mode", "start"])

    assert result.exit_code == 0
    assert result.stdout_bytes.startswith(b"line 0 of the text\r\nline 1 of the text\r\n")
    assert TEXT.encode().startswith(result.stdout_bytes)
    assert (tmp_path / "a.txt").read_bytes() == TEXT.encode()


def test_json_says_what_was_removed_and_how_it_was_counted() -> None:
    arguments = ["-", "--max-tokens", "70", "--model", "gpt-4", "--json"]
    result = CliRunner().invoke(fit, arguments, input=TEXT.encode())

    answer = json.loads(result.stdout)
    assert answer["changed"]
    assert answer["tokens"] <= 70
    assert answer["removedLines"] > 80
    assert (answer["model"], answer["tokenizer"]) == ("gpt-4", "cl100k_base")
    assert (answer["method"], answer["errorPercent"]) == ("exact", 0.0)


def test_bytes_that_are_not_utf8_pass_through() -> None:
    text = b"caf\xe9 " * 50
    result = CliRunner().invoke(fit, ["-", "--max-tokens", "20", "--mode", "end"], input=text)

    assert result.exit_code == 0
    assert text.endswith(result.stdout_bytes)


@pytest.mark.parametrize(
    ("arguments", "content"),
    [(["missing.txt", "--max-tokens", "5"], b""), (["-", "--max-tokens", "5"], b"\0\1\2")],
)
def test_binary_file_is_refused(arguments: list[str], content: bytes) -> None:
    result = CliRunner().invoke(fit, arguments, input=content)

    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("arguments", [["-"], ["-", "--max-tokens", "-1"], ["-", "--mode", "x"]])
def test_invalid_arguments_to_fit_exit_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(fit, arguments, input=b"text").exit_code == 2


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_broken_configuration_is_reported_and_the_text_is_shortened(
    form: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / ".token-sidecar.toml").write_text("model = 5\n")
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    result = CliRunner().invoke(fit, ["a.txt", "--max-tokens", "70", *form])

    assert result.exit_code == 2
    assert "line 0 of the text" in result.stdout
    assert result.stderr.startswith("token-sidecar: ")
    assert ".token-sidecar.toml" in result.stderr
    assert "model" in result.stderr


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r"])
@pytest.mark.parametrize("marker", ["\n...\n", "\n\n[cut]\n", "\r\n--\r\n", "a\nb"])
def test_the_marker_has_the_line_ends_of_the_text(tmp_path: Path, end: str, marker: str) -> None:
    text = TEXT.replace("\r\n", end)
    (tmp_path / "a.txt").write_bytes(text.encode())
    result = CliRunner().invoke(fit, ["a.txt", "--max-tokens", "70", "--marker", marker])
    written = result.stdout_bytes.decode()
    assert marker.strip().replace("\n", end) in written
    assert not {"\r", "\n"} & set(written.replace(end, ""))


def test_a_file_called_dash_is_read(tmp_path: Path) -> None:
    (tmp_path / "-").write_text("the file\n")
    for name, text in (("./-", "the file\n"), (str(tmp_path / "-"), "the file\n"), ("-", "stdin")):
        result = CliRunner().invoke(fit, [name, "--max-tokens", "70"], input="stdin")
        assert result.stdout == text
