"""Tests that everything that the docs name exists, that links work, and the published site."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS, REFIT
from sidecar.budgets.check_report import RULES
from sidecar.budgets.findings import DEFAULT_SEVERITIES, DOCUMENTATION, INSTRUCTIONS_PAGE
from sidecar.project.loading_rules import loading_rules
from sidecar.project.mcp_servers import mcp_rules

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "editors/*/*.md", "editors/vscode/media/*.md")
    for page in ROOT.glob(pattern)
    if "node_modules" not in page.parts
)
OWN_FILES = "https://raw.githubusercontent.com/token-sidecar/token-sidecar/main/"
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
OWN_LINK = re.compile(rf"\]\({re.escape(OWN_FILES)}([^)#\s]+)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
CODE = re.compile(r"`([\w.-]+/[\w./-]+\.(?:py|ts|lua|json))`")
MEMBER = re.compile(r"`([A-Z][a-z]\w+)\.([a-z]\w+)`")
OF_VSCODE = re.compile(r"\btokenSidecar\.[\w.]*\w")
VERB = re.compile(r"(?:^|[`$|] ?)token-sidecar ([a-z][\w-]+)", re.MULTILINE)
SUBCOMMAND = re.compile(r":TokenSidecar ([a-zA-Z]+)")

IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@cache
def names_in(path: Path) -> set[str]:
    """Return a file's test names."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_to_existing_targets(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [link for link in OWN_LINK.findall(text) if not (ROOT / link).exists()]
    assert missing == []


def test_links_of_the_site_stay_in_the_site() -> None:
    docs = ROOT / "docs"
    outside = [
        (page.name, link)
        for page in docs.rglob("*.md")
        for link in LINK.findall(page.read_text("utf-8"))
        if not (page.parent / link).resolve().is_relative_to(docs)
    ]
    assert outside == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_named_tests_exist(page: Path) -> None:
    for file, name in TEST.findall(page.read_text("utf-8")):
        assert (ROOT / file).is_file(), file
        assert not name or name in names_in(ROOT / file), f"{file}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_named_files_exist(page: Path) -> None:
    """Paths may be relative to the root, the package, or the page's folder."""
    named, places = CODE.findall(page.read_text("utf-8")), (ROOT, ROOT / "sidecar", page.parent)
    settings = [rules.settings.files for rules in loading_rules().values() if rules.settings]
    settings += [file.paths for rules in mcp_rules().values() for file in rules.files]
    named = [file for file in named if file not in chain(*settings)]  # other projects have these
    assert [file for file in named if not any((at / file).exists() for at in places)] == []


@cache
def members() -> dict[str, set[str]]:
    """Return the methods and attributes of our classes."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "sidecar").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                inner = list(ast.walk(node))
                names = {n.name for n in inner if isinstance(n, ast.FunctionDef)}
                names |= {n.name for n in inner if isinstance(n, ast.AsyncFunctionDef)}
                names |= {n.attr for n in inner if isinstance(n, ast.Attribute)}
                found[node.name] = names
    return found


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_named_members_exist(page: Path) -> None:
    named = [one for one in MEMBER.findall(page.read_text("utf-8")) if one[1] not in ("md", "toml")]
    assert [one for one in named if one[1] not in members().get(one[0], ())] == []


@cache
def identifiers() -> set[str]:
    """Return all names in our code: modules, folders, classes, functions, parameters and
    attributes.
    """
    found = set[str]()
    for path in (ROOT / "sidecar").rglob("*.py"):
        found |= {path.stem, path.parent.name}
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for field in ("name", "id", "attr", "arg"):
                name = getattr(node, field, None)
                found |= {name} if isinstance(name, str) else set()
    return found


def test_modules_folders_and_functions_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text("utf-8")
    modules = {path.name for path in (ROOT / "sidecar").rglob("*.py")}
    named = set(re.findall(r"`([a-z_]\w*)`", page))
    assert named - identifiers() - {"didChange"} == set()
    assert set(re.findall(r"`(\w+\.py)`", page)) - modules == set()
    folders = {path.parent.name for path in (ROOT / "sidecar").rglob("*.py")}
    assert set(re.findall(r"`(\w+)/`", page)) - folders == set()


def test_names_in_the_glossarys_code_column_exist() -> None:
    page = (ROOT / "docs/reference/glossary.md").read_text("utf-8")
    rows = [row.split("|")[3] for row in page.splitlines() if row.count("|") == 4]
    named = {name for cell in rows for name in re.findall("`([^`]+)`", cell)}
    assert len(named) > 80
    # A name in the glossary may be part of an identifier. A capitalized name is a class.
    known = "\n".join(identifiers())
    classes = {name.partition(".")[0] for name in named if name[0].isupper() and name != "AT_LEAST"}
    assert classes - {*members(), "Store"} == set()
    words = {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in named}
    assert {word for word in words if not word.startswith("_") and word not in known} == set()


@cache
def names_of_vscode() -> set[str]:
    """Return all settings and commands of the extension, and all commands of the server."""
    manifest = json.loads((ROOT / "editors/vscode/package.json").read_text("utf-8"))["contributes"]
    parts = manifest["configuration"]
    settings = [key for part in parts for key in part["properties"]] if isinstance(parts, list) else parts["properties"]  # fmt: skip
    server = (ROOT / "sidecar/server/features/count_requests.py").read_text("utf-8")
    return {
        *settings,
        *(command["command"] for command in manifest["commands"]),
        *(f"tokenSidecar.server.{name}" for name in re.findall(r'\{PREFIX\}(\w+)"', server)),
    }


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_named_settings_and_commands_of_vscode_exist(page: Path) -> None:
    named = set(OF_VSCODE.findall(page.read_text("utf-8")))
    assert named - names_of_vscode() == set()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_named_commands_exist(page: Path) -> None:
    from sidecar.cli import VERBS

    assert set(VERB.findall(page.read_text("utf-8"))) <= {*VERBS, "serve"}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "editors/neovim/doc/token-sidecar.txt"])
def test_named_subcommands_of_neovim_exist(page: Path) -> None:
    lua = "".join(
        path.read_text("utf-8")
        for path in (ROOT / "editors/neovim/lua/token_sidecar").glob("*.lua")
    )
    for name in SUBCOMMAND.findall(page.read_text("utf-8")):
        assert re.search(rf"\b{name}\b\s*=", lua), name


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, due = set[Path](), [ROOT / "README.md"]
    while due:
        page = due.pop()
        if page in reached:
            continue
        reached.add(page)
        links = LINK.findall(page.read_text("utf-8"))
        targets = [(page.parent / link).resolve() for link in links if link.endswith(".md")]
        due += [target for target in targets if target.exists()]
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert pages - reached == set()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist has no git repository")
def test_no_page_names_a_module_that_git_does_not_have() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for page in PAGES:
        for module in re.findall(
            r"python3? -m ((?:tests|benchmarks)[\w.]*)", page.read_text("utf-8")
        ):
            path = module.replace(".", "/")
            assert f"{path}.py" in tracked or f"{path}/__main__.py" in tracked, module


def test_the_page_about_performance_describes_every_benchmark() -> None:
    page = (ROOT / "docs/explanation/performance.md").read_text("utf-8")
    table = page.split("\n## What is measured\n\n")[1].split("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()]
    assert {part for cell in cells for part in re.findall("`(.*?)`", cell)} == {*PARTS, REFIT}


@pytest.mark.parametrize("code", RULES)
def test_each_finding_has_a_heading_that_its_help_links_to(code: str) -> None:
    url = INSTRUCTIONS_PAGE if code in DEFAULT_SEVERITIES else DOCUMENTATION
    page = ROOT / "docs" / url.partition("/docs/")[2]
    assert f"\n### {code}\n" in page.read_text("utf-8")


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    (tmp_path / "mkdocs.yml").write_text(config, "utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f"- {page}\n" not in config} == set()
    program = Path(sys.executable).with_name("zensical")
    command = [str(program), "build", "--strict"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "site" / "how-to" / "mcp" / "index.html").is_file()
    assert "tokens" in (tmp_path / "site" / "search.json").read_text("utf-8")


def test_a_broken_link_fails(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Title\n\n[gone](#nowhere)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: test\nstrict: true\n")
    program = Path(sys.executable).with_name("zensical")
    command = [str(program), "build", "--strict"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode != 0
