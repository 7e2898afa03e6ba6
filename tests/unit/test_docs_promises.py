"""Tests that docs/reference/promises.md has a correct row for each method, setting and command."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from sidecar.cli import main
from sidecar.config.settings import Settings
from sidecar.server.methods import NOTIFICATIONS, REQUESTS
from tests.unit.test_config_docs import keys

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/promises.md"
ROW = re.compile(
    r"^\| `([^`]+)`[^|]*\| \[[^\]]*\]\(([^)#]+)#([^)]+)\) \| `([^`:]+)::(\w+)` \|$", re.M
)
ROWS = ROW.findall(PAGE.read_text("utf-8"))


def of(heading: str) -> set[str]:
    """Return the names in a table's first column."""
    part = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {found[0] for found in ROW.findall(part)}


def verbs(group: click.Group, before: str = "") -> Iterator[str]:
    """Return the names of all commands and subcommands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from verbs(command, f"{before}{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield before + name


def slug(heading: str) -> str:
    """Return the anchor that GitHub creates for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def sections(page: Path) -> dict[str, str]:
    """Return each section of a page, with its subsections, by anchor."""
    found: dict[str, str] = {}
    text = re.sub(r"^```.*?^```", lambda code: code[0].replace("\n#", "\n "), page.read_text("utf-8"), flags=re.M | re.S)  # fmt: skip
    heads = list(re.finditer(r"^(#+) (.+)$", text, re.M))
    for index, head in enumerate(heads):
        after = (next_.start() for next_ in heads[index + 1 :] if len(next_[1]) <= len(head[1]))
        found[slug(head[2])] = text[head.start() : next(after, len(text))]
    return found


def test_every_method_has_a_row() -> None:
    assert of("Methods") == {*REQUESTS, *NOTIFICATIONS}


def test_every_setting_has_a_row() -> None:
    assert of("Settings") == {
        f"{heading.strip('`')} {key}".strip() for heading, key, _ in keys(Settings)
    }


def test_every_command_of_the_command_line_has_a_row() -> None:
    assert of("Command line") - {name for name in of("Command line") if name[0] == "-"} == set(
        verbs(main)
    )


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the full name of each command or group, and the command or group itself."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command
        yield before + name, command
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")


def test_options_with_a_row_belong_to_the_named_commands() -> None:
    """Tests rows such as "`--since` of `cost` and `usage`".

    All commands that print results must also have `--json`.
    """
    known = {
        name: {opt for param in it.params for opt in param.opts} for name, it in commands(main)
    }
    rows = re.findall(r"^\| `(--[\w-]+)` of ([^|]+) \|", PAGE.read_text("utf-8"), re.M)
    assert {option for option, _ in rows} == {name for name in of("Command line") if name[0] == "-"}
    for option, verbs_named in rows:
        for verb in re.findall(r"`([^`]+)`", verbs_named):
            assert option in known[verb], (option, verb)
    silent = {"serve", "mcp", "schema", "config", "cost export"}
    assert [name for name, has in known.items() if "--json" not in has and name not in silent] == []


def test_every_command_of_the_palette_has_a_row() -> None:
    manifest = json.loads((ROOT / "editors/vscode/package.json").read_text("utf-8"))
    palette = {command["command"].split(".")[1] for command in manifest["contributes"]["commands"]}
    assert of("Commands of the editors") == palette


def test_every_command_of_the_server_has_a_row() -> None:
    text = (ROOT / "sidecar/server/features/sections.py").read_text("utf-8")
    ids = {f"tokenSidecar.server.{name}" for name in re.findall(r'\{PREFIX\}(\w+)"', text)}
    assert of("Commands of the server") == ids


def test_promises_about_faults_name_existing_tests() -> None:
    part = PAGE.read_text("utf-8").split("\n## What other tools get wrong\n")[1]
    rows = [row for row in part.splitlines() if row.startswith("| ")][1:]
    named = [re.fullmatch(r"\| .+ \| .+ \| `([^`:]+)::(\w+)` \|", row) for row in rows]
    assert len(rows) > 40
    for row, found in zip(rows, named, strict=True):
        assert found, row
        assert found[2] in functions_of(ROOT / found[1]), row


@cache
def functions_of(file: Path) -> set[str]:
    """Return the names of all functions in a file."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    return {node.name for node in nodes if isinstance(node, kinds)}


@pytest.mark.parametrize(("name", "page", "anchor", "file", "test"), ROWS)
def test_rows_name_what_exists(name: str, page: str, anchor: str, file: str, test: str) -> None:
    section = sections((PAGE.parent / page).resolve()).get(anchor)
    assert section is not None, f"{page} has no heading {anchor}"
    word = name.split()[-1] if name.startswith("[[") else name
    assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", section), f"{anchor} says nothing"
    assert test in functions_of(ROOT / file)
