"""Tests that `python editors/generate_types.py` generates the editors' types from the schema."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> object:
    sys.path.insert(0, str(ROOT / "editors"))
    try:
        import generate_types  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    return generate_types


def test_the_generated_types_are_up_to_date(generator: object) -> None:
    assert generator.main(["--check"]) == 0, "run: python editors/generate_types.py"  # type: ignore[attr-defined]


def test_a_change_of_the_schema_is_noticed(
    generator: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = generator.json_schema()  # type: ignore[attr-defined]
    schema["$defs"]["Count"]["properties"]["another"] = {"type": "integer"}
    monkeypatch.setattr(generator, "json_schema", lambda: schema)
    assert generator.main(["--check"]) == 1  # type: ignore[attr-defined]
    assert "types.lua is out of date" in capsys.readouterr().err


def test_null_members_and_missing_members_differ(generator: object) -> None:
    schema = {
        "requests": {"a/b": {"params": {"$ref": "#/$defs/P"}, "result": {"$ref": "#/$defs/R"}}},
        "notifications": {},
        "$defs": {
            "P": {
                "description": "The params.",
                "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                "required": [],
            },
            "R": {
                "description": "The result.",
                "properties": {
                    "y": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                    "z": {"type": "object", "additionalProperties": {"type": "number"}},
                },
            },
        },
    }
    typescript = generator.render(generator.TypeScript(), schema)  # type: ignore[attr-defined]
    assert "x?: number | null;" in typescript
    assert "y: string | null;" in typescript
    lua = generator.render(generator.Lua(), schema)  # type: ignore[attr-defined]
    assert "---@field x? integer" in lua
    assert "---@field z table<string, number>" in lua
