"""Tests that imports follow docs/explanation/architecture.md, and that pure packages do no I/O."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "sidecar"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A package may import itself and the packages that are listed after it. Packages in the same line
# do not import each other.
ORDER = (
    "cli",
    "server",
    "mcp",
    "hooks",
    "workspace",
    "conversations",
    "budgets",
    "project",
    "agents",
    "cost",
    "counting",
    "endpoints",
    "messages",
    "models",
    "config",
    "text",
)

# Packages and modules that do no I/O.
PURE = (
    "text/",
    "messages/",
    "models/",
    *(f"budgets/{name}.py" for name in ("budget_rules", "findings")),
    "conversations/",
    *(f"counting/{name}.py" for name in ("count_result", "fitting", "message_tokens")),
    "counting/tokenizer_interface.py",
    *(f"cost/{name}.py" for name in ("days", "ledger_events", "cost_protocol")),
)
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


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Return a module's imports, including those inside functions."""
    found: list[str] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            found.append(node.module or "")
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def roots_of(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(path)}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def package_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def test_every_package_is_listed() -> None:
    packages = {package_of(path) for path in MODULES} - {""}
    assert packages == set(" ".join(ORDER).split()), "a package needs its place in `ORDER`"


def test_imports_point_down() -> None:
    rank = {name: place for place, names in enumerate(ORDER) for name in names.split()}
    found = {
        (name_of(path), name.removeprefix("sidecar."))
        for path in MODULES
        for name in reached(path)
        if (package := package_of(path)) and name.count(".") > 1
        if (below := name.split(".")[1]) != package and rank[below] <= rank[package]
    }
    assert found == set()


def test_only_the_server_knows_lsp() -> None:
    apart = {"methods.py", "stdio.py"}
    assert apart <= {path.name for path in MODULES if package_of(path) == "server"}
    others = [path for path in MODULES if package_of(path) != "server" or path.name in apart]
    assert [name_of(path) for path in others if roots_of(path) & {"pygls", "lsprotocol"}] == []


def test_pure_packages_do_no_io() -> None:
    wrong = []
    for path in MODULES:
        if not name_of(path).startswith(PURE):
            continue
        calls = {
            node.func.id
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        found = roots_of(path) & IO_MODULES | calls & {"open", "print", "input"}
        wrong += [(name_of(path), name) for name in found]
    assert wrong == []


def test_errors_have_one_base() -> None:
    """`server/protocol.py` recognizes our exceptions by their base class, `SidecarError`."""
    builtin = {"Exception", "ValueError", "RuntimeError", "OSError", "LookupError"}
    wrong = []
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                if bases & builtin and "SidecarError" not in bases:
                    wrong.append(node.name)
    assert wrong == ["SidecarError"]


def test_bad_params_have_one_spelling() -> None:
    spelled = [path for path in MODULES if 'RequestError("badParams"' in path.read_text("utf-8")]
    assert spelled == []


@cache
def modules_by_name() -> dict[str, Path]:
    names = {
        path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in MODULES
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def reached(path: Path) -> set[str]:
    """Return the modules of this project that a module imports, for types and in functions too."""
    known, found = modules_by_name(), set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else str(node.module) for name in inner}
    return found & set(known)


def in_cycles() -> set[str]:
    return cyclic({name: reached(path) for name, path in modules_by_name().items()})


def cyclic(direct: dict[str, set[str]]) -> set[str]:
    """Return the modules that import themselves indirectly, given what each imports directly."""
    above = {name: set(names) - {name} for name, names in direct.items()}
    while True:  # repeat until no more modules are found
        more = {name: names.union(*(above[one] for one in names)) for name, names in above.items()}
        if more == above:
            return {name for name, names in above.items() if name in names}
        above = more


def test_no_module_imports_itself_through_others_even_for_types() -> None:
    assert in_cycles() == set()


def test_cycles_are_found() -> None:
    direct = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a", "d"}}
    assert cyclic(direct) == {"b", "c"}


FEATURES = [path for path in MODULES if name_of(path).startswith("server/features/")]


def test_a_feature_knows_neither_the_server_nor_another_feature() -> None:
    allowed = {"client", "methods", "protocol", "section_feature"}
    found = {
        (path.stem, name)
        for path in FEATURES
        for name in reached(path)
        if name.startswith("sidecar.server.")
        and name.removeprefix("sidecar.server.") not in allowed
    }
    assert found == set()
    assert "sidecar.server.protocol" in reached(PACKAGE / "server/features/hover.py")


def test_a_feature_gets_only_what_it_uses() -> None:
    for path in FEATURES:
        text = path.read_text("utf-8")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                parameters = [parameter.arg for parameter in node.args.args]
                assert "server" not in parameters, path
                kept = set(re.findall(r"self\._\w+(?=[,:]? .*=)", ast.unparse(node)))
                assert [name for name in kept if text.count(name) < 2] == [], path


def test_globs_are_matched_in_one_module() -> None:
    """And those for models' names in another one."""

    def users(name: str) -> set[str]:
        texts = {name_of(path): path.read_text("utf-8") for path in MODULES}
        return {place for place, text in texts.items() if re.search(rf"\b{name}\b", text)}

    assert users("fnmatchcase") == {"text/globs.py"}
    assert users("matches_any") == {"cost/records.py", "models/names.py", "text/globs.py"}


def test_typed_decoding_is_in_one_module() -> None:
    by_type = re.compile(r"msgspec\.convert\(|json\.Decoder\(|json\.decode\(.*\btype=")
    users = [path for path in MODULES if by_type.search(path.read_text("utf-8"))]
    assert {path.relative_to(PACKAGE).as_posix() for path in users} == {"typed.py"}


@pytest.mark.parametrize("verb", ["count", "group", "doctor", "fit", "check", "cost", "usage"])
def test_commands_other_than_serve_import_no_lsp(verb: str) -> None:
    code = (
        "import sys, importlib\n"
        f"importlib.import_module('sidecar.cli.{verb}')\n"
        "print(sorted(m for m in ('pygls', 'lsprotocol', 'genai_prices', 'httpx', 'rich')"
        " if m in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_server_imports_lsp_only_while_garbage_collection_is_disabled() -> None:
    """With garbage collection, the import takes a fifth longer."""
    code = "import sys, sidecar.server.run; print('lsprotocol' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_the_server_starts_without_modules_that_are_slow_to_import() -> None:
    slow = ("sidecar.text.prompt_markdown", "sidecar.budgets.findings", "watchdog", "rich", "httpx")
    code = f"import sys, sidecar.server.server; print([m for m in {slow} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_no_server_exists_at_module_level() -> None:
    code = "import sidecar.server.server as m; print([n for n in vars(m) if n == 'server'])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# Only these modules create tasks and timers directly. All others use `sidecar.tasks`.
# - protocol.py runs each request as a task.
# - run.py needs a timer without an event loop, so that the process exits even if a worker hangs.
# - local_servers.py must open and close LM Studio's SDK in the same task.
TASK_MODULES = {
    "tasks.py",
    "server/protocol.py",
    "server/run.py",
    "endpoints/local_servers.py",
}
TASK_CALLS = {"create_task", "ensure_future", "call_later", "call_at", "TaskGroup", "Timer"}


def test_tasks_and_timers_are_created_in_one_place() -> None:
    found = {
        name_of(path)
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in TASK_CALLS
    }
    assert found == TASK_MODULES
