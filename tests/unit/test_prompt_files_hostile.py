"""Tests that no file outside a hostile repository is read, and only a limited number inside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.agents.folders import Places
from sidecar.project import prompt_files as module
from sidecar.project.prompt_files import OUTSIDE, PromptFile, find_imports, prompt_files

PLANTED = "planted words\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (tmp_path / "secret.md").write_text(PLANTED)
    return made


def found(root: Path) -> dict[str, PromptFile]:
    places = Places(root.parent / "home", {})
    return {os.path.relpath(file.path, root): file for file in prompt_files(root, places)}


@pytest.mark.parametrize(
    "name",
    [
        "../secret.md",
        "./../secret.md",
        "a/../../secret.md",
        "link.md",
        "linked/secret.md",
        "~/../x",
    ],
)
def test_no_import_leads_out_of_the_root(root: Path, name: str) -> None:
    (root / "a").mkdir()
    (root / "link.md").symlink_to("../secret.md")
    (root / "linked").symlink_to("..")
    (root / "CLAUDE.md").write_text(f"see @{name} and @{root.parent}/secret.md\n")
    read = found(root)
    assert read["CLAUDE.md"].text is not None
    others = [one for path, one in read.items() if path != "CLAUDE.md"]
    assert others
    assert all((other.text, other.note) == (None, OUTSIDE) for other in others)


@pytest.mark.parametrize(
    "name", ["CLAUDE.md", "AGENTS.md", ".cursor/rules/x.mdc", ".clinerules", ".cursor/rules"]
)
def test_prompt_files_that_link_out_of_the_root_are_not_read(root: Path, name: str) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "x.mdc").write_text(PLANTED)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(outside if name == ".cursor/rules" else outside / "x.mdc")
    assert [(one.text, one.note) for one in found(root).values()] == [(None, OUTSIDE)]


@pytest.mark.parametrize("name", ["CLAUDE.md", "note.md", ".cursor/rules/x.mdc"])
def test_a_fifo_does_not_block_the_search(root: Path, name: str) -> None:
    (root / "CLAUDE.md").write_text("@note.md\n")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).unlink(missing_ok=True)
    os.mkfifo(root / name)
    assert all(one.text != "" for one in found(root).values())


def test_imports_in_a_circle_are_read_once(root: Path) -> None:
    (root / "CLAUDE.md").write_text("@a.md @CLAUDE.md\n")
    (root / "a.md").write_text("@b.md @a.md\n")
    (root / "b.md").write_text("@a.md @CLAUDE.md\n")
    assert sorted(found(root)) == ["CLAUDE.md", "a.md", "b.md"]


def test_a_repository_with_too_many_files_is_read_in_part(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_FILES", 50)
    rules = root / ".cursor" / "rules"
    rules.mkdir(parents=True)
    for number in range(40):
        (rules / f"{number}.mdc").write_text("x")
        (root / f"{number}.md").write_text("x")
    (root / "CLAUDE.md").write_text("".join(f"@{number}.md\n" for number in range(40)))
    assert len(found(root)) == 50


def test_a_repository_with_too_much_text_is_read_in_part(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_TEXT", 5_000)
    for number in range(20):
        (root / f"{number}.md").write_text("x" * 1_000)
    (root / "CLAUDE.md").write_text("".join(f"@{number}.md\n" for number in range(20)))
    assert sum(len(one.text or "") for one in found(root).values()) < 6_100


def test_a_limited_number_of_mentions_in_a_file_is_looked_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    real = os.path.realpath

    def noting(path: str) -> str:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", noting)
    (root / "CLAUDE.md").write_text("".join(f"@name{number}\n" for number in range(50_000)))
    assert list(found(root)) == ["CLAUDE.md"]
    assert len(looked) < 5_000


@pytest.mark.parametrize(
    "line",
    [
        "`" * 500_000 + "a" * 400_000,
        " ".join("`" * length for length in range(1, 1_300)),
        "` `` " * 150_000,
        "@" + "." * 900_000,
        "@a" * 450_000,
        "@" + "a/" * 450_000,
        "~" * 900_000,
    ],
    ids=["ticks", "runs", "pairs", "dots", "ats", "path", "tildes"],
)
def test_every_line_is_parsed_in_linear_time(line: str) -> None:
    """The lines are so long that a parser with quadratic run time would never finish."""
    assert len(list(find_imports(f"{line}\n{line} @b.md\n"))) <= 4


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("`@a` @b `@c`", ["b"]),
        ("``@a ` @b`` @c", ["c"]),
        ("` @a", ["a"]),
        ("x ``` @a `` @b", ["a", "b"]),
        ("`` ` @a `` @b `", ["b"]),
        ("`x``@a` @b", ["b"]),
        ("x ```@a``` ``@b`` @c", ["c"]),
    ],
)
def test_code_spans_end_as_in_commonmark(line: str, named: list[str]) -> None:
    """A code span ends at the next run of backticks of the same length."""
    assert list(find_imports(line)) == named
