"""Tests the command line in real terminals of 80 and 120 columns, and without a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.cli.output import print_lines
from sidecar.text.printable import compact_number, duration_text, first_names, whole_percents
from sidecar.text.tables import wrap_line
from tests.e2e.pictures.sessions import write_day

SCREENS = (
    ("usage", "--all"),
    ("usage",),
    ("usage", "--session", "flaky"),
    ("cost",),
    ("cost", "--by", "block,agent"),
    ("cost", "--by", "week,workspace"),
    ("cost", "--by", "session"),
)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a day of recorded sessions from three agents."""
    home = tmp_path / "home"
    root = home / "parser"
    root.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(root)
    write_day(home, root)
    assert CliRunner().invoke(main, ["cost"]).exit_code == 0
    return root


def run_in_terminal(width: int, *arguments: str) -> str:
    """Return a command's output in a terminal, including escape codes."""
    pty, fcntl, termios = map(pytest.importorskip, ("pty", "fcntl", "termios"))
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    env.pop("COLUMNS", None)
    command = [sys.executable, "-P", "-m", "sidecar", *arguments]
    with subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env) as process:
        os.close(other)
        output = b"".join(_read_until_closed(terminal))
    os.close(terminal)
    assert process.returncode == 0, output
    return output.decode()


def _read_until_closed(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # Linux raises this error when the other side has been closed
        while data := os.read(terminal, 4096):
            yield data


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("width", [80, 120])
def test_screens_fit_the_terminal_and_cut_no_number_off(width: int) -> None:
    for arguments in SCREENS:
        shown = run_in_terminal(width, *arguments)
        assert "\x1b[" in shown, arguments
        lines = ESCAPE.sub("", shown).replace("\r", "").split("\n")
        assert len(lines) > 3, arguments
        assert all(len(line) <= width for line in lines), (arguments, lines)
        # The names of yesterday's sessions end in a date, and long names are shortened.
        text = re.sub(r"· \d\d \w{3} [\d:]*…", "", "\n".join(lines))
        assert not re.search(r"[\d$.%k]…", text), (arguments, lines)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("keys", ["day,agent,model,workspace", "session,model,agent,day"])
def test_costs_by_four_keys_break_no_word(keys: str, width: int) -> None:
    shown = ESCAPE.sub("", run_in_terminal(width, "cost", "--by", keys)).replace("\r", "")
    head = shown.split("\n")[0].split()
    assert head[:5] == [*keys.split(","), "calls"]
    assert "cost" in head
    names = {"sonnet-4-5", "haiku-4-5", "sonnet-5", "gpt-5.2-codex", "claude-code", "opencode"}
    assert names <= set(shown.split())


@pytest.mark.parametrize("arguments", [("doctor",), ("cost", "files"), ("usage",)])
def test_long_lines_are_wrapped_at_spaces(project: Path, arguments: tuple[str, ...]) -> None:
    config = '[context]\nlimit = 200000\n[[budget]]\nfiles = ["AGENTS.md"]\nmax-tokens = 2000\n'
    (project / ".token-sidecar.toml").write_text(config)
    (project / "AGENTS.md").write_text("Prefer small functions. " * 99)
    whole = run_in_terminal(400, *arguments)
    wrapped = run_in_terminal(40, *arguments)
    assert len(wrapped.split("\n")) > len(whole.split("\n"))
    clean = [ESCAPE.sub("", text).replace("\r", "") for text in (whole, wrapped)]
    assert not any(len(line) > 40 and " " in line.strip() for line in clean[1].split("\n"))


def test_wrapped_lines_start_below_the_value() -> None:
    line = "Session  Read all files and their tests, claude-code"
    assert wrap_line(line, 30).split("\n") == [
        "Session  Read all files and",
        "         their tests,",
        "         claude-code",
    ]
    assert wrap_line(line, 52) == line
    assert wrap_line("plain text of two-part words", 16) == "plain text of\ntwo-part words"
    assert wrap_line("Session  修正解析器 并添加测试 claude-code", 20).split("\n") == [
        "Session  修正解析器",
        "         并添加测试",
        "         claude-code",
    ]


@pytest.mark.usefixtures("project")
def test_wrapped_context_keeps_its_color() -> None:
    def colored(width: int) -> list[str]:
        shown = run_in_terminal(width, "usage")
        return " ".join(re.findall(r"\x1b\[(?:1;)?3[123]m(.*?)\x1b\[0m", shown)).split()

    assert "usable" in colored(400)
    assert colored(30) == colored(400)


class _Wrapper(io.StringIO):
    """A terminal's stream without a file descriptor."""

    def isatty(self) -> bool:
        return True


def test_lines_stay_whole_if_the_width_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Wrapper()
    monkeypatch.setattr(sys, "stdout", stream)
    line = "plain text of two-part words " * 20
    print_lines(line)
    assert stream.getvalue() == f"{line}\n"


def test_the_help_of_commands_is_not_cut_off() -> None:
    for group in ([], ["cost"], ["config"]):
        commands = CliRunner().invoke(main, [*group, "--help"]).output.partition("Commands:")[2]
        assert commands
        assert "..." not in commands


def test_all_sessions_are_listed_by_name_in_80_columns(project: Path) -> None:
    lines = ESCAPE.sub("", run_in_terminal(80, "usage", "--all")).replace("\r", "").split("\n")
    head, running = lines[0].split(), lines[1]
    assert head == ["session", "context", "cost", "updated", "model"]
    assert running.startswith("● Make the parser incremental ")
    assert re.search(r"44 % ███▌░░░░ +\$\d+\.\d\d +just now +sonnet-4-5", running)
    assert any(line.startswith("  fix/flaky-login · ") for line in lines)
    assert sum("●" in line for line in lines) == 1, "only the shown session is marked"
    assert str(project) not in "\n".join(lines)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("width", [66, 60, 54])
def test_narrow_lists_of_sessions_shorten_names_but_no_number(width: int) -> None:
    lines = ESCAPE.sub("", run_in_terminal(width, "usage", "--all")).replace("\r", "").split("\n")
    assert re.match(r"● \S.*… +44 % ███▌░░░░  ", lines[1]), lines
    assert all(re.search(r" \d+ % [█▏▎▍▌▋▊▉░]{8}  ", line) for line in lines[1:-1]), lines


@pytest.mark.usefixtures("project")
def test_costs_by_session_name_the_sessions_on_a_terminal() -> None:
    def first_cells(*arguments: str) -> set[str]:
        lines = ESCAPE.sub("", run_in_terminal(120, *arguments)).replace("\r", "").split("\n")
        return {line.removeprefix("●").strip().split("  ")[0] for line in lines[1:]}

    listed = first_cells("usage", "--all") & first_cells("cost", "--by", "session")
    assert {"Make the parser incremental"} <= listed
    as_json = CliRunner().invoke(main, ["cost", "--by", "session", "--json"]).output
    assert not any(row["session"] in listed for row in json.loads(as_json)["rows"])


@pytest.mark.usefixtures("project")
def test_sessions_of_every_folder_have_names_in_cost_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    table = ESCAPE.sub("", run_in_terminal(120, "cost", "--by", "session"))
    page = CliRunner().invoke(main, ["cost", "--html", "-"]).output
    for title in (
        "Make the parser incremental",
        "Document the retry policy",
        "Review the storage layer",
    ):
        assert title in table
        assert title in page


@pytest.mark.usefixtures("project")
def test_each_agent_has_one_note_about_its_costs() -> None:
    shown = ESCAPE.sub("", run_in_terminal(120, "cost"))
    for agent in ("claude-code", "codex", "opencode"):
        assert len(re.findall(rf"\b{agent}\b", shown.partition("total")[2])) == 1


def test_rounded_percentages_add_up_to_100() -> None:
    assert whole_percents([1, 1, 1]) == [34, 33, 33]
    assert whole_percents([996, 2, 2]) == [100, 0, 0]
    assert whole_percents([7, 8, 5, 0]) == [35, 40, 25, 0]
    assert whole_percents([0, 0]) == [0, 0]
    assert whole_percents([]) == []


def test_long_lists_of_names_are_shortened() -> None:
    assert first_names(["amp", "cline", "codex", "crush"]) == "amp, cline, codex, crush"
    assert first_names(["amp", "cline", "codex", "crush", "pi"]) == "amp, cline, codex and 2 more"


@pytest.mark.usefixtures("project")
def test_without_a_terminal_nothing_is_colored() -> None:
    for arguments in SCREENS:
        output = CliRunner().invoke(main, arguments).output
        assert "\x1b" not in output, arguments
        assert "file://" not in output, arguments


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("usge", "usage"), ("costs", "cost"), ("stausline", "statusline"), ("count-files", "count")],
)
def test_a_mistyped_command_is_answered_with_a_similar_one(typed: str, meant: str) -> None:
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2
    assert f"No such command '{typed}'. Did you mean {meant}?" in result.output


def test_a_command_like_no_other_is_answered_without_one() -> None:
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).output


def test_numbers_and_durations_for_narrow_places() -> None:
    assert [compact_number(number) for number in (0, 812, 9_996, 54_148, 1_240_000)] == [
        "0",
        "812",
        "10k",
        "54.1k",
        "1.24M",
    ]
    minutes = [timedelta(minutes=number) for number in (-1, 14, 134, 4_260, 4_320, 10_000, 13_700)]
    assert [duration_text(minute) for minute in minutes] == [
        *("0 min", "14 min", "2 h 14 min", "2 days 23 h", "3 days", "6 days 23 h", "10 days"),
    ]
