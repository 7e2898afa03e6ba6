"""Tests that no file outside a hostile repository is read, and only a limited number inside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.project import footprint as footprints
from sidecar.project import source_files
from sidecar.project.footprint import (
    agents_with_files,
    find_all_footprints,
    find_footprint,
    sent_files,
)
from sidecar.project.loading_rules import loading_rules
from sidecar.project.source_files import OUTSIDE, SourceFiles
from sidecar.text.prompt_markdown import Mention, find_mentions
from tests.cases import read_rows
from tests.file_opens import recorded_opens
from tests.unit.footprint_world import FootprintWorld

PLANTED = "planted words\n"


@pytest.fixture
def world(tmp_path: Path) -> FootprintWorld:
    made = FootprintWorld(tmp_path)
    (tmp_path / "secret.md").write_text(PLANTED)
    return made


def texts(world: FootprintWorld) -> str:
    """Return all that any agent is said to send, after checking that nothing outside was opened."""
    outside = world.home.parent / "secret.md"
    with recorded_opens(outside) as opened:
        found = [world.footprint(agent) for agent in loading_rules()]
        assert agents_with_files(world.root, world.places)
        files = sent_files(find_all_footprints(world.root, world.places))
    assert opened == []
    sent = [text for file in files for text in file.texts.values()]
    return "".join([*sent, *(part.text for one in found for part in one.parts)])


@pytest.mark.parametrize("name", read_rows("footprint", "imports_out_of_the_root"))
def test_no_import_leads_out_of_the_root(world: FootprintWorld, name: str) -> None:
    (world.root / "a").mkdir()
    (world.root / "link.md").symlink_to("../../../secret.md")
    (world.root / "linked").symlink_to("../../..")
    text = f"see @{name} and @{world.home.parent}/secret.md\n"
    world.write(dict.fromkeys(["CLAUDE.md", "GEMINI.md", "QWEN.md", "AGENTS.md"], text))
    assert PLANTED not in texts(world)
    reported = world.problems("claude-code", "import-skipped")
    assert reported
    assert all("outside the project" in one.message for one in reported)


@pytest.mark.parametrize("name", read_rows("footprint", "links_out_of_the_root"))
def test_files_that_link_out_of_the_root_are_not_read(world: FootprintWorld, name: str) -> None:
    path = world.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(world.home.parent / "secret.md")
    assert PLANTED not in texts(world)
    (file,) = {one.path: one for one in sent_files(find_all_footprints(world.root, None))}.values()
    assert (file.path, file.note) == (str(path), OUTSIDE)


@pytest.mark.parametrize("name", [".claude", ".claude/rules", ".cursor", ".clinerules"])
def test_folders_that_link_out_of_the_root_are_not_listed(world: FootprintWorld, name: str) -> None:
    outside = world.home.parent / "outside"
    for inner in ("rules/x.md", "x.md", "rules/x.mdc"):
        (outside / inner).parent.mkdir(parents=True, exist_ok=True)
        (outside / inner).write_text(PLANTED)
    (world.root / name).parent.mkdir(parents=True, exist_ok=True)
    (world.root / name).symlink_to(outside)
    world.write({"AGENTS.md": "x"})
    with recorded_opens(outside) as opened:
        assert PLANTED not in texts(world)
    assert opened == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("opencode.json", '{"instructions": ["../../../secret.md", "/etc/hosts", "~/../secret.md"]}'),
        (".aider.conf.yml", "read: [../../../secret.md, /etc/hosts, '~/../*.md', '/etc/*.conf']"),
        (".gemini/settings.json", '{"context": {"fileName": ["../../../secret.md", "/etc/hosts"]}}'),
        (".claude/settings.json", '{"claudeMdExcludes": ["**/*{a,b", "' + "*" * 100 + '"]}'),
        ("opencode.json", '{"instructions": {"a": 1}}'),
        ("opencode.json", '{"instructions": ' + "[" * 10_000),
        (".aider.conf.yml", "read: \0"),
    ],
)  # fmt: skip
def test_a_projects_settings_lead_nowhere_else(world: FootprintWorld, name: str, text: str) -> None:
    world.write({name: text, "AGENTS.md": "x"})
    found = texts(world)
    assert PLANTED not in found
    assert "localhost" not in found


def test_settings_that_link_out_of_the_root_are_not_read(world: FootprintWorld) -> None:
    world.write({"CONVENTIONS.md": PLANTED, "AGENTS.md": "x"})
    (world.home.parent / "secret.md").write_text("read: CONVENTIONS.md\n")
    (world.root / ".aider.conf.yml").symlink_to("../../../secret.md")
    assert PLANTED not in texts(world)


def test_your_own_files_may_be_links(world: FootprintWorld) -> None:
    world.write({"~/dotfiles/claude.md": "mine"})
    (world.home / ".claude").mkdir()
    (world.home / ".claude/CLAUDE.md").symlink_to("../dotfiles/claude.md")
    assert world.sent("claude-code") == ["~/.claude/CLAUDE.md"]


@pytest.mark.parametrize("name", ["CLAUDE.md", "note.md", ".claude/rules/x.md", "opencode.json"])
def test_a_fifo_does_not_block_the_search(world: FootprintWorld, name: str) -> None:
    world.write({"CLAUDE.md": "@note.md\n", "AGENTS.md": "x"})
    (world.root / name).parent.mkdir(parents=True, exist_ok=True)
    (world.root / name).unlink(missing_ok=True)
    os.mkfifo(world.root / name)
    assert texts(world)


def test_each_file_is_opened_once(world: FootprintWorld) -> None:
    names = [f"pkg{number}/{name}" for number in range(500) for name in ("CLAUDE.md", "AGENTS.md")]
    names += [f".claude/rules/{number}.md" for number in range(1_000)]
    names += ["CLAUDE.md", "AGENTS.md", "docs/a.md"]
    world.write({name: f"{name} @docs/a.md\n" for name in names})
    files = SourceFiles()
    with recorded_opens(world.root) as opened:
        found = {
            agent: find_footprint(agent, world.root, world.places, files=files)
            for agent in loading_rules()
        }
    read = [path for path in opened if path.endswith(".md")]
    assert len(read) == len(set(read)) <= files.opened
    assert files.opened <= 1_000 + 3 + 500  # hidden files below are read, others not
    listed = [part for part in found["claude-code"].parts if os.path.exists(part.path)]
    assert len(listed) == len(names)


def test_a_folder_with_too_many_rules_is_listed_in_part(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "MAX_ENTRIES", 50)
    monkeypatch.setattr(footprints, "MAX_PARTS", 30)
    world.write({f".claude/rules/{number % 7}/{number}.md": "x" for number in range(200)})
    assert len(world.footprint("claude-code").parts) == 30
    assert world.files.listed <= 50
    assert world.files.opened <= 50


def test_loops_of_links_are_listed_once(world: FootprintWorld) -> None:
    world.write({".claude/rules/a.md": "x"})
    (world.root / ".claude/rules/loop").symlink_to(".")
    (world.root / ".claude/rules/up").symlink_to("../..")
    sent = world.sent("claude-code")
    assert sent.count(".claude/rules/a.md") == 1
    assert world.files.opened == 1


def test_a_large_file_is_not_read(world: FootprintWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MAX_BYTES", 1_000)
    world.write({"AGENTS.md": "x" * 1_001})
    (part,) = world.footprint("codex").parts
    assert (part.state, part.text) == ("sent", "")
    assert part.reason.startswith("not read: it is larger than")


def test_a_repository_with_too_much_text_is_read_in_part(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "MAX_TEXT", 5_000)
    world.write({f"{number}.md": "x" * 1_000 for number in range(20)})
    world.write({"CLAUDE.md": "".join(f"@{number}.md\n" for number in range(20))})
    assert sum(len(part.text) for part in world.footprint("claude-code").parts) < 6_500


def test_a_limited_number_of_mentions_in_a_file_is_looked_up(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    real = SourceFiles.real

    def noting(files: SourceFiles, path: str) -> str:
        looked.append(path)
        return real(files, path)

    monkeypatch.setattr(SourceFiles, "real", noting)
    world.write({"CLAUDE.md": "".join(f"@name{number}\n" for number in range(50_000))})
    assert world.sent("claude-code") == ["CLAUDE.md"]
    assert len(set(looked)) < 1_100


def test_a_file_is_not_encoded_again_for_each_import(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    byte_length = footprints._byte_length

    def noting(text: str) -> int:
        encoded.append(len(text))
        return byte_length(text)

    monkeypatch.setattr(footprints, "_byte_length", noting)
    text = "é" * 1_000 + "@docs/a.md, (@docs/a.md) @missing.md @docs/a.md\n" * 200
    world.write({"CLAUDE.md": text, "GEMINI.md": text, "docs/a.md": "x"})
    for agent in ("claude-code", "gemini-cli", "copilot-cli"):
        encoded.clear()
        problems = world.footprint(agent).problems
        assert len(text) - 20 < sum(encoded) < 2 * len(text)
        data = text.encode()
        named = {data[one.range.start : one.range.end] for one in problems}
        assert b"@missing.md" in named or not problems
        assert all(one.startswith(b"@") for one in named)


@pytest.mark.parametrize("agent", ["gemini-cli", "qwen-code"])
def test_a_large_file_that_is_imported_often_is_sent_in_part(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    searched: list[int] = []

    def noting(text: str, **given: Any) -> Iterator[Mention]:
        searched.append(len(text))
        return find_mentions(text, **given)

    monkeypatch.setattr(footprints, "find_mentions", noting)
    monkeypatch.setattr(footprints, "MAX_IMPORTED", 5_000)
    main = {"gemini-cli": "GEMINI.md", "qwen-code": "QWEN.md"}[agent]
    world.write({main: "@big.md\n" * 100, "big.md": "words @\n" * 100})
    assert sum(len(part.text) for part in world.footprint(agent).parts) == 800 + 6 * 800
    assert sum(searched) == 800 + 6 * 800


def test_a_chain_of_imports_of_many_files_ends(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprints, "MAX_PARTS", 200)
    names = [f"{number}.md" for number in range(20)]
    text = "".join(f"@{name}\n" for name in names)
    world.write(dict.fromkeys([*names, "GEMINI.md", "CLAUDE.md", "QWEN.md"], text))
    for agent in ("gemini-cli", "claude-code", "copilot-cli", "qwen-code"):
        assert len(world.footprint(agent).parts) <= 200
        assert world.files.opened <= 22


@pytest.mark.parametrize("name", ["root", "above/link"])
def test_what_stands_for_files_is_found_through_a_link(world: FootprintWorld, name: str) -> None:
    """Editors open the same folder under several names. The texts have the real paths."""
    (world.home / "above/link").symlink_to("root")
    start = world.root if name == "root" else world.home / name
    names = (".claude/rules/new.md", "sub/CLAUDE.md", ".claude/rules/gone.md", "old/CLAUDE.md")
    world.write(dict.fromkeys(names[2:], "old words"))
    new, gone = dict.fromkeys(names[:2], b"new words"), dict.fromkeys(names[2:])
    texts = {str(world.root / one): text for one, text in {**new, **gone}.items()}
    found = find_footprint("claude-code", start, world.places, files=SourceFiles(texts))
    parts = {Path(one.path).relative_to(start).as_posix(): one.text for one in found.parts}
    assert parts == {".claude/rules/new.md": "new words", "sub/CLAUDE.md": ""}


def test_bytes_that_are_not_utf8_are_replaced(world: FootprintWorld) -> None:
    world.write({"CLAUDE.md": b"a\xff\n<!-- \xfe -->\n@docs/a.md,\n", "docs/a.md": "x"})
    (part, _) = world.footprint("claude-code").parts
    assert part.text == "a\ufffd\n@docs/a.md,"
    (problem,) = world.problems("claude-code", "import-skipped")
    data = (world.root / "CLAUDE.md").read_bytes()
    assert data[problem.range.start : problem.range.end] == b"@docs/a.md,"


@pytest.mark.parametrize("name", [".claude", ".claude/rules", ".claude/rules/linked"])
def test_a_folder_that_links_out_of_the_root_is_shown(world: FootprintWorld, name: str) -> None:
    outside = world.home.parent / "outside"
    (outside / "rules").mkdir(parents=True)
    (outside / "rules/x.md").write_text(PLANTED)
    (world.root / name).parent.mkdir(parents=True, exist_ok=True)
    (world.root / name).symlink_to(outside)
    rules = [part for part in world.footprint("copilot-cli").parts if part.kind == "rule"]
    shown = name if "rules" in name else ".claude/rules"
    assert [(os.path.relpath(part.path, world.root), part.reason) for part in rules] == [
        (shown, OUTSIDE)
    ]
    assert rules[0].is_unread


def test_rules_that_are_not_looked_at_are_counted(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprints, "MAX_PARTS", 30)
    world.write({f".claude/rules/{number}.md": "x" for number in range(30)})
    assert world.footprint("claude-code").limits == ()
    world.write({f".claude/rules/{number}.md": "x" for number in range(200)})
    (limit,) = world.footprint("claude-code").limits
    assert limit.startswith("170 files are not looked at")


def test_a_folder_that_is_listed_in_part_is_said(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "MAX_ENTRIES", 50)
    world.write({f".claude/rules/{number}.md": "x" for number in range(200)})
    (limit,) = world.footprint("claude-code").limits
    assert limit.startswith(".claude/rules: only ")
    assert world.footprint("codex").limits == ()


def test_imports_that_are_not_looked_at_are_counted(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprints, "MAX_IMPORTS", 10)
    world.write({f"{number}.md": f"text {number}" for number in range(25)})
    world.write({"CLAUDE.md": "".join(f"@{number}.md\n" for number in range(25))})
    footprint = world.footprint("claude-code")
    assert len(footprint.parts) == 11
    assert footprint.limits == ("CLAUDE.md: its last 15 `@path` mentions are not looked at.",)


def test_of_a_large_file_the_part_that_is_sent_is_read(
    world: FootprintWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "MAX_BYTES", 40_000)
    world.write({"AGENTS.md": "x" * 50_000})
    (part,) = world.footprint("codex").parts
    assert (part.state, len(part.text), part.is_unread) == ("cut", 32_768, False)
    (problem,) = world.problems("codex", "instructions-cut")
    assert (problem.range.start, problem.range.end) == (32_768, 50_000)
    assert "the last 17,232 of 50,000 bytes" in problem.message
    (unlimited,) = world.footprint("opencode").parts
    assert unlimited.is_unread
