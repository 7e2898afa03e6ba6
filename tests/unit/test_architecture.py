"""The direction of imports, and that the pure rooms do no I/O: what docs/explanation tells."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).resolve().parents[2] / "sidecar"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Each room may import itself and the rooms after its colon.
BELOW = {
    "cli": {"server", "workspace", "context", "budget", "cost", "endpoints", "counting"},
    "server": {"workspace", "context", "budget", "cost", "endpoints", "counting"},
    "workspace": {"context", "budget", "cost", "endpoints", "counting"},
    "context": {"endpoints", "counting"},
    "budget": {"endpoints", "counting"},
    "cost": {"endpoints", "counting"},
    "endpoints": set(),
    "counting": set(),
    "text": set(),
    "config": set(),
}
BASE = {"text", "config", ""}

# Rooms, or files of rooms, that do no I/O at all.
PURE = ("text/", "budget/", "context/", "counting/incremental.py", "counting/fit.py")
IO_MODULES = {
    "asyncio",
    "builtins.open",
    "httpx",
    "os",
    "pathlib",
    "pygls",
    "shutil",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
    "urllib",
}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def test_every_room_is_known() -> None:
    rooms = {room_of(path) for path in MODULES} - {""}
    assert rooms <= set(BELOW), "a new room needs its place in the direction of imports"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    if room == "":
        return
    allowed = {room} | BELOW[room] | BASE
    for name in imports_of(path):
        if name.startswith("sidecar."):
            target = name.split(".")[1]
            assert target in allowed or target == "__version__", f"{path} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_server_knows_lsp(path: Path) -> None:
    if room_of(path) == "server" and path.name not in ("messages.py", "schema.py", "framing.py"):
        return
    roots = {name.split(".")[0] for name in imports_of(path)}
    assert not roots & {"pygls", "lsprotocol"}


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if str(p.relative_to(PACKAGE).as_posix()).startswith(PURE)],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_pure_rooms_do_no_io(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports_of(path)}
    assert not roots & IO_MODULES
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input"}


@pytest.mark.parametrize("verb", ["count", "schema", "doctor", "fit", "check", "cost", "usage"])
def test_verbs_that_are_no_server_import_no_lsp(verb: str) -> None:
    code = (
        "import sys, importlib\n"
        f"importlib.import_module('sidecar.cli.{verb}')\n"
        "print(sorted(m for m in ('pygls', 'lsprotocol', 'genai_prices', 'httpx', 'rich')"
        " if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_are_small() -> None:
    long = {p.name: n for p in MODULES if (n := len(p.read_text("utf-8").splitlines())) > 400}
    assert long == {}


def test_functions_are_small() -> None:
    long = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long.append(f"{path.name}:{node.name} ({lines})")
    assert long == []


def test_there_is_no_server_at_module_level() -> None:
    code = "import sidecar.server.server as m; print([n for n in vars(m) if n == 'server'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
