"""Tests that the documentation describes every method and command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sidecar.cli import main
from sidecar.server.methods import NOTIFICATIONS, REQUESTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PALETTE = [
    command["command"].split(".")[1]
    for command in json.loads((ROOT / "editors/vscode/package.json").read_text("utf-8"))[
        "contributes"
    ]["commands"]
]


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the full name of each command or group, and the command or group itself."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command
        yield before + name, command
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")


COMMANDS = dict(commands(main))


@pytest.mark.parametrize("method", [*REQUESTS, *NOTIFICATIONS])
def test_every_method_has_a_heading(method: str) -> None:
    protocol = (DOCS / "reference/protocol.md").read_text("utf-8")
    assert re.search(rf"^#+ `?{re.escape(method)}`?$", protocol, re.M)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_command_line_is_described(name: str) -> None:
    pages = "".join(page.read_text("utf-8") for page in DOCS.glob("*/*.md"))
    assert re.search(rf"token-sidecar {name}\b", pages)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_prints_results_has_json(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert ("--json" in options) == (name not in {"serve", "mcp", "config", "team", "cost export"})


@pytest.mark.parametrize("name", PALETTE)
def test_every_command_of_vscode_is_described(name: str) -> None:
    assert f"`tokenSidecar.{name}`" in (DOCS / "how-to/vscode.md").read_text("utf-8")


def test_every_command_of_the_server_is_described() -> None:
    source = (ROOT / "sidecar/server/features/count_requests.py").read_text("utf-8")
    page = (DOCS / "how-to/other-editors.md").read_text("utf-8")
    names = re.findall(r'\{PREFIX\}(\w+)"', source)
    assert names
    assert [name for name in names if f"`tokenSidecar.server.{name}`" not in page] == []
