"""Tests that the reference lists every key with its default, and that its examples are valid."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from sidecar.budgets.budget_rules import presets
from sidecar.config.load import TRUSTED_KEYS, load
from sidecar.config.settings import Settings, Table

ROOT = Path(__file__).parent.parent.parent
REFERENCE = (ROOT / "docs/reference/configuration.md").read_text()
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("editors/*/*.md")])
NO_KEYS = {
    *("context.warnAt", "cost.total_cost", "context.fileName", "agents.md"),
    *(
        "ledger.db",
        "ledger.db-shm",
        "ledger.db-wal",
        "tokenizer.json",
        "tokenizer.model",
        "team.id",
    ),
}
"""Names in the docs that only look like keys, such as camelCase editor keys and vendor fields."""
OTHER_PROGRAMS = re.compile(r"^\[(language-server|otel)\.", re.MULTILINE)
"""Matches configuration for Helix and Codex."""
EXAMPLES = [
    (page.name, example)
    for page in PAGES
    for example in re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    if not OTHER_PROGRAMS.search(example)
]


def keys(kind: type[Table], prefix: str = "") -> list[tuple[str, str, object]]:
    """Return each setting's heading, key and default value."""
    found: list[tuple[str, str, object]] = []
    for field in msgspec.structs.fields(kind):
        name = f"{prefix}{field.encode_name}"
        entry = (get_args(field.type) or [None])[0]
        if isinstance(field.type, type) and issubclass(field.type, Table):
            found += keys(field.type, f"{name}.")
        elif isinstance(entry, type) and issubclass(entry, Table):
            found.append(("", name, None))
            found += [(f"`[[{name}]]`", key, default) for _, key, default in keys(entry)]
        else:
            found.append(("", name, None if field.required else field.default))
    return found


def written(default: object) -> str:
    """Return a default value in the table's notation, or "" if there is none."""
    if default in (None, msgspec.NODEFAULT) or default == () or default == {}:
        return ""
    value: Any = list(default) if isinstance(default, tuple) else default
    return f"`{value if isinstance(value, Decimal) else json.dumps(value)}`"


@pytest.mark.parametrize(("heading", "key", "default"), keys(Settings))
def test_docs_list_every_key_with_its_default(heading: str, key: str, default: object) -> None:
    part = REFERENCE.split(f"### {heading}\n" if heading else "## Keys\n")[1].split("\n##")[0]
    first_cell = re.compile(rf"\|[^|]*`{re.escape(key)}`[^|]*\|")
    (row,) = [line for line in part.splitlines() if first_cell.match(line)]
    cell = row.split("|")[2].strip()
    assert cell.replace("required", "") == written(default)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_named_in_the_docs_exist(page: Path) -> None:
    """The docs refer to keys as `[table] key`, `[[table]] key` or `table.key`."""
    known = {f"{heading.strip('`[]')}.{key}".strip(".") for heading, key, _ in keys(Settings)}
    tables, text = {name.split(".")[0] for name in known}, page.read_text("utf-8")
    named = re.findall(r"`\[+([\w-]+)\]+ ([\w-]+)", text)
    named += re.findall(r"`([\w-]+)\.([\w.-]+)`", text)
    keys_named = {
        f"{a}.{b}" for a, b in named if a in tables and b != "py"
    }  # file names are not keys
    assert keys_named - known - NO_KEYS == set()


def test_docs_name_every_trusted_key() -> None:
    paragraph = REFERENCE.split("**Trusted keys.**")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == TRUSTED_KEYS


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_examples_in_the_docs_are_valid(page: str, example: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(example)
    loaded = load(None, None, {"TOKEN_SIDECAR_CONFIG": str(tmp_path / "config.toml")})
    assert loaded.problems == ()
    assert loaded.settings != Settings()


def test_presets_match_the_docs() -> None:
    rows = re.findall(
        r"^\| (`.+`) \| ([\d,]+) \|", REFERENCE.split("## Presets\n")[1], re.MULTILINE
    )
    table = {tuple(re.findall("`(.+?)`", files)): tokens for files, tokens in rows}
    known = {preset.files: f"{preset.max_tokens:,}" for preset in presets()}
    assert table == known, "update the table `Presets` of docs/reference/configuration.md"
