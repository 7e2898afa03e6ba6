"""Tests that all platform-specific code is in one module, and tests that module's Windows code."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest

from benchmarks.client import StdioClient
from sidecar import operating_system
from tests.unit import windows_simulation
from tests.unit.test_architecture import MODULES, name_of, tree_of

SIMULATION = [sys.executable, "-P", windows_simulation.__file__]
ASKS = {"sys.platform", "os.name", "platform.system"}
"""Matches expressions that check the operating system."""
ONLY_SOMEWHERE = {
    *("ctypes", "fcntl", "grp", "msvcrt", "pwd", "resource", "select", "termios", "winreg"),
    "_winapi",
}
ONLY_POSIX = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}


def test_modules_of_posix_are_imported_by_tests_only_when_needed() -> None:
    """On Windows, pytest cannot load a test module that imports POSIX modules at the top level."""
    root = Path(__file__).parents[2]
    paths = [
        path
        for pattern in ("tests/*.py", "tests/unit/*.py", "benchmarks/**/*.py")
        for path in root.glob(pattern)
    ]
    importing = set()
    for path in paths:
        for node in tree_of(path).body:
            if isinstance(node, ast.Import) and {one.name for one in node.names} & ONLY_POSIX:
                importing.add(path.name)
    assert importing == set()


def test_one_module_asks_for_the_system() -> None:
    asking = set()
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            asks_os = isinstance(node, ast.Call) and ast.unparse(node).startswith(
                ("getattr(os,", "hasattr(os,")
            )
            if asks_os or (isinstance(node, ast.Attribute) and ast.unparse(node) in ASKS):
                asking.add(name_of(path))
            if isinstance(node, ast.Import) and {name.name for name in node.names} & ONLY_SOMEWHERE:
                asking.add(name_of(path))
    assert asking == {"operating_system.py"}


@pytest.fixture
def windows() -> Iterator[Any]:
    """Load the Windows branch of the module."""
    modules = {name: sys.modules.get(name) for name in ("_winapi", "msvcrt")}
    try:
        yield windows_simulation.load_windows_branch()
    finally:
        sys.modules["sidecar.operating_system"] = operating_system
        sys.modules["sidecar"].operating_system = operating_system  # type: ignore[attr-defined]
        for name, module in modules.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def test_windows_tells_running_processes_from_ended_ones(windows: Any) -> None:
    assert [windows.is_alive(number) for number in (100, 200, 300, 400, 0)] == [
        *(True, False, True, False, False)
    ]


def test_windows_lets_others_rename_an_open_file(windows: Any, tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(b"one\r\n\x1atwo")
    with os.fdopen(windows.open_to_read(file), "rb") as opened:
        assert opened.read() == b"one\r\n\x1atwo"
    read, write, delete = 1, 2, 4
    assert sys.modules["_winapi"].opened == [read | write | delete]


def test_windows_pipes_carry_utf8_and_plain_line_ends(
    windows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="cp1252", newline="\r\n")
    windows.use_utf8(stream)
    stream.write("≥ $8.27 · é\n")
    stream.flush()
    assert raw.getvalue() == "≥ $8.27 · é\n".encode()


def test_windows_tries_again_to_replace_a_file_that_is_being_read(
    windows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, failures, replace = tmp_path / "calibration.json", [1, 2], os.replace

    def refuse_twice(source: str, to: Path) -> None:
        if failures:
            failures.pop()
            raise PermissionError
        replace(source, to)

    monkeypatch.setattr(os, "replace", refuse_twice)
    (tmp_path / "new").write_text("new")
    windows.replace_file(str(tmp_path / "new"), target)
    assert target.read_text() == "new"


@pytest.mark.skipif(operating_system.IS_WINDOWS, reason="Windows tries again")
def test_other_systems_fail_at_once_to_replace_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def refuse(source: str, _: Path) -> None:
        calls.append(source)
        raise PermissionError

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        operating_system.replace_file("source", tmp_path / "target")
    assert calls == ["source"]


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("", "/c:/Work/notes.md", r"c:\Work\notes.md"),
        ("localhost", "/C:/Work", r"C:\Work"),
        ("server", "/share/notes.md", r"\\server\share\notes.md"),
        ("", "/no-drive", r"\no-drive"),
    ],
)
def test_windows_uris_become_paths(host: str, path: str, expected: str) -> None:
    assert operating_system.windows_path(host, path) == PureWindowsPath(expected)


@pytest.mark.skipif(os.name == "nt", reason="Windows itself is no simulation")
def test_the_commands_run_without_posix_functions(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("hello world", "utf-8")
    (tmp_path / ".token-sidecar.toml").write_text(
        '[[budget]]\nfiles = "*.md"\nmax-tokens = 1\n', "utf-8"
    )

    def run(*arguments: str) -> tuple[int, str]:
        result = subprocess.run(
            [*SIMULATION, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert "Traceback" not in result.stderr, result.stderr
        return result.returncode, result.stdout

    assert run("count", "--model", "gpt-5", "prompt.md") == (0, "2 prompt.md\n")
    code, text = run("check", ".")
    assert code == 1
    assert "prompt.md" in text
    for arguments in (["cost"], ["usage"], ["doctor"], ["map"], ["config", "show"]):
        assert run(*arguments)[0] == 0, arguments


@pytest.mark.skipif(os.name == "nt", reason="Windows itself is no simulation")
def test_the_server_runs_without_posix_functions(tmp_path: Path) -> None:
    """Windows' event loop cannot watch pipes, so the server reads and writes on threads."""
    client = StdioClient([*SIMULATION, "serve"])
    params = {"processId": 100, "rootUri": tmp_path.as_uri(), "capabilities": {}}
    assert client.request("initialize", params)["serverInfo"]["name"] == "token-sidecar"
    client.notify("initialized", {})
    result = client.request("tokens/count", {"text": "hello world", "model": "gpt-5"})
    assert result["tokens"] == 2
    text = "word " * 100_000
    result = client.request("tokens/count", {"text": text, "model": "gpt-5"})
    assert result["tokens"] == 100_001
    client.close()
    assert client.process.returncode == 0
