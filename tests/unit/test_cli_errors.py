"""Tests that all errors of the command line have the form `token-sidecar: reason`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main

WRONG: dict[str, tuple[list[str], str]] = {
    # name: (arguments, the last line on stderr)
    "no such option": (["--foo"], "No such option '--foo'."),
    "no such verb": (["coun"], "No such command 'coun'."),
    "no such option of a verb": (["count", "--foo"], "No such option '--foo'."),
    "nothing to count": (["count"], "Missing argument 'PATH...'."),
    "no such file": (["count", "nope"], "nope: no such file or directory, skipped"),
    "no such file to fit": (["fit", "nope", "--max-tokens", "5"], "cannot read nope: "),
    "no such day": (["cost", "--since", "someday"], "'someday' is not a valid time"),
    "no such verb of a verb": (["config", "shown"], "No such command 'shown'."),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_have_one_form(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, told = WRONG[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    (tmp_path / "config.toml").write_text("")
    result = CliRunner().invoke(main, arguments)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("token-sidecar: ")
    assert told.rstrip(".") in last
    assert "rror: " not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("LONG",), ("--LONG",), ("count", "LONG"), ("count", "--LONG"), ("check", "LONG/a"),
        ("fit", "LONG", "--max-tokens", "5"), ("fit", "-", "--max-tokens", "LONG"),
        ("cost", "--since", "LONG"), ("cost", "--by", "LONG"), ("config", "LONG"),
        ("count", "-", "--model", "LONG"), ("usage", "--session", "LONG"), ("map", "LONG"),
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("name", ["x" * 10_000, "a b" * 3_000, "\x1b\u202e" * 5_000])
def test_errors_quote_long_arguments_only_in_part(
    arguments: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    (tmp_path / "config.toml").write_text("")
    result = CliRunner().invoke(main, [one.replace("LONG", name) for one in arguments], input="a")
    assert "token-sidecar: " in result.stderr
    assert all(len(line) < 600 for line in result.stderr.splitlines())


@pytest.mark.parametrize("verb", ["count", "check"])
@pytest.mark.parametrize("below", ["", "/below"])
def test_impossible_file_name_is_reported_in_one_line(
    verb: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text("")
    name = str(tmp_path / ("x" * 300)) + below
    result = CliRunner().invoke(main, [verb, name])
    assert result.exit_code == 2
    (told,) = result.stderr.splitlines()
    assert told.startswith(f"token-sidecar: {name}: ")
    assert told.endswith(", skipped")


def test_log_messages_have_the_same_form(tmp_path: Path) -> None:
    """A subprocess is needed, because pytest captures log messages."""
    (tmp_path / "a.md").write_text("hello\n")
    settings = 'model = "llama3"\n[[tokenizer]]\nmodels = ["llama3"]\nfile = "nowhere.json"\n'
    (tmp_path / "config.toml").write_text(settings)
    places = {"TOKEN_SIDECAR_CONFIG": "config.toml", "TOKEN_SIDECAR_STATE": "state"}
    variables = os.environ | {name: str(tmp_path / place) for name, place in places.items()}
    command = [sys.executable, "-P", "-m", "sidecar", "count", str(tmp_path / "a.md")]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert result.stderr.startswith("token-sidecar: tokenizer nowhere.json: ")


@pytest.mark.parametrize(
    "arguments",
    [("count", "a.md"), ("fit", "a.md", "--max-tokens", "9"), ("cost", "export"), ("schema",)],
)
def test_full_disk_is_reported(arguments: tuple[str, ...], tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no device here is always full")
    (tmp_path / "a.md").write_text("hello\n")
    command = [sys.executable, "-P", "-m", "sidecar", *arguments]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 2
    assert result.stderr.startswith("token-sidecar: cannot write to standard output: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["", "files", "export"])
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_unusable_state_folder_is_reported(
    verb: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The existing file's contents and mode do not change."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "file").chmod(0o644)
    before = (tmp_path / "file").stat().st_mode
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / place))
    arguments = ["cost", verb, "--workspace", str(tmp_path)]
    result = CliRunner().invoke(main, [argument for argument in arguments if argument])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"token-sidecar: the ledger {tmp_path / place / 'ledger.db'} ")
    assert result.stderr.endswith("cannot be opened: Not a directory\n")
    assert (tmp_path / "file").stat().st_mode == before


@pytest.mark.skipif(sys.platform == "win32", reason="a closed pipe is no error there")
def test_closed_pipe_ends_the_command_silently(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("hello\n")
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "sidecar", "count", "a.md"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # the first line may already have been printed
        said = process.stderr.read()
    assert said == b""
    assert process.returncode == 1


def test_a_tokenizer_name_with_line_ends_is_printed_on_one_line(tmp_path: Path) -> None:
    settings = '[[tokenizer]]\nmodels = ["mine"]\nfile = "a\\n::error::forged"\n'
    (tmp_path / "config.toml").write_text(settings)
    places = {"TOKEN_SIDECAR_CONFIG": "config.toml", "TOKEN_SIDECAR_STATE": "state"}
    variables = os.environ | {name: str(tmp_path / place) for name, place in places.items()}
    command = [sys.executable, "-P", "-m", "sidecar", "config", "check"]
    result = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    for output in (result.stdout, result.stderr):
        (line,) = output.splitlines()
        assert r"a\n::error::forged: No such file" in line


@pytest.mark.skipif(os.name == "nt", reason="Windows does not delete the current folder")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "."), ("config", "check"), ("cost",), ("cost", "export"), ("count", "."),
        ("footprint",), ("map",), ("map", "--json"), ("mcp", "--install", "vscode"), ("usage",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_deleted_current_folder_is_an_error(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    last = result.stderr.splitlines()[-1]
    assert last == "token-sidecar: the current folder was deleted; change to another folder"
