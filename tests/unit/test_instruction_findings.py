"""Tests where findings about prompt files are, how severe they are, and for which agents."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from sidecar.budgets.instruction_findings import character_offsets, check_instructions, locate
from sidecar.config.settings import FootprintSettings, InstructionSeverity, Settings
from sidecar.project.files import decode
from sidecar.project.source_files import SourceFiles
from tests.unit.footprint_world import FootprintWorld

TEXTS = [
    "plain\nlines\n",
    "é日本語\r\n🙂 and \r\n",
    "👩‍👩‍👧 family é\r\n" * 20,
]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("text", TEXTS)
def test_offsets_between_characters_are_exact(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    mark = len("".encode(encoding))
    wanted, at = {mark: 0}, mark
    for position, character in enumerate(text, 1):
        at += len(character.encode(encoding)) - mark
        wanted[at] = position
    found = character_offsets(data, wanted)
    assert {offset: (bounds.start, bounds.end) for offset, bounds in found.items()} == {
        offset: (position, position) for offset, position in wanted.items()
    }


@pytest.mark.parametrize(
    ("data", "offset", "start", "end"),
    [
        ("aé".encode(), 2, 1, 2),
        ("a🙂b".encode(), 1, 1, 1),
        ("a🙂b".encode(), 2, 1, 2),
        ("a🙂b".encode(), 4, 1, 2),
        ("a🙂b".encode(), 5, 2, 2),
        ("é".encode(), 1, 0, 1),
        ("é".encode("utf-8-sig"), 0, 0, 0),
        ("é".encode("utf-8-sig"), 2, 0, 0),
        ("é".encode("utf-8-sig"), 4, 0, 1),
        ("é".encode("utf-8-sig"), 5, 1, 1),
        ("🙂".encode("utf-16"), 4, 0, 1),
        (b"a\xe2b", 2, 1, 2),
        (b"a\xffb", 2, 2, 2),
        (b"a\0b", 2, 0, 0),
        (b"ab", 9, 2, 2),
    ],
)
def test_an_offset_inside_a_character_has_the_character_around_it(
    data: bytes, offset: int, start: int, end: int
) -> None:
    assert character_offsets(data, [offset])[offset] == (start, end)


def test_offsets_in_damaged_text_are_those_of_the_decoded_text() -> None:
    chance = random.Random(7)
    for _ in range(200):
        data = bytes(
            chance.choice(b"a\n\r\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\xff") for _ in range(12)
        )
        decoded = decode(data)
        assert decoded is not None
        found = character_offsets(data, range(13))
        assert found[0] == (0, 0)
        assert found[12].end == len(decoded.text)
        starts = [found[offset].start for offset in range(13)]
        assert starts == sorted(starts)


@pytest.fixture
def world(tmp_path: Path) -> FootprintWorld:
    return FootprintWorld(tmp_path)


@pytest.mark.parametrize(
    ("windows", "is_lost"),
    [({}, False), ({"claude-code": 1_000_000}, False), ({"claude-code": 200_000}, True)],
)
def test_a_skill_is_lost_only_in_a_window_that_is_known_to_be_small(
    world: FootprintWorld, windows: Mapping[str, int], is_lost: bool
) -> None:
    description = "word " * 120
    world.write(
        {
            f".claude/skills/s{number}/SKILL.md": f"---\ndescription: {description}\n---\nBody.\n"
            for number in range(5)
        }
    )
    settings = Settings(footprint=FootprintSettings(agents=("claude-code",)))
    found = check_instructions(world.root, settings, SourceFiles(), windows=windows)
    codes = {row.problem.code for rows in found.values() for row in rows}
    assert codes == ({"skill-lost"} if is_lost else set())


def test_a_lost_description_is_underlined(world: FootprintWorld) -> None:
    text = "---\nname: long\ndescription: é" + "x" * 1_024 + "\n---\nBody.\n"
    world.write({".github/skills/long/SKILL.md": text})
    settings = Settings(footprint=FootprintSettings(agents=("copilot-cli",)))
    (rows,) = check_instructions(world.root, settings, SourceFiles()).values()
    (finding,) = locate(rows, text.encode())
    assert finding.code == "skill-lost"
    assert text[finding.start : finding.end] == "é" + "x" * 1_024


def test_severities_of_the_settings_replace_the_defaults(world: FootprintWorld) -> None:
    world.write({"CLAUDE.md": "@docs/a.md,\n", "docs/a.md": "a\n", "AGENTS.md": "Rules.\n"})
    severity: dict[str, InstructionSeverity] = {
        "instructions-hidden": "off",
        "import-skipped": "information",
    }
    settings = Settings(footprint=FootprintSettings(agents=("claude-code",), severity=severity))
    found = check_instructions(world.root, settings, SourceFiles())
    rows = [row for in_file in found.values() for row in in_file]
    assert [(row.problem.code, row.severity) for row in rows] == [("import-skipped", "information")]


def test_the_first_line_of_a_rule_without_a_scope_is_underlined(world: FootprintWorld) -> None:
    text = "---\r\ndescription: Style\r\n---\r\nBe brief.\r\n"
    world.write(
        {
            ".claude/rules/a.md": text,
            ".claude/rules/b.md": "---\npaths: src/**\n---\nBe kind.\n",
        }
    )
    agents = ("claude-code", "copilot-cli")
    settings = Settings(footprint=FootprintSettings(agents=agents))
    (rows,) = check_instructions(world.root, settings, SourceFiles()).values()
    (finding,) = locate(rows, text.encode())
    assert (finding.code, finding.severity) == ("rule-always-loaded", "information")
    assert text[finding.start : finding.end] == "---"
    assert finding.agents == agents
    assert "Add `paths` if" in finding.message
