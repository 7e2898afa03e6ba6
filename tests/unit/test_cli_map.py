"""Tests a folder's tokens by subfolder and file, and `token-sidecar map`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from sidecar.cli.count import count
from sidecar.cli.footprint import footprint
from sidecar.cli.map import map as map_command
from sidecar.project.token_map import MapEntry, build_token_map, flatten

HOSTILE = '<img src=x onerror="alert(1)">.md'


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(map_command, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with text files in subfolders, an ignored file, a binary file and a prompt file."""
    root = tmp_path / "project"
    for name, words in (
        ("AGENTS.md", 40),
        ("docs/deep/long.md", 900),
        ("docs/short.md", 90),
        ("src/main.py", 300),
        ("ignored.md", 5_000),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("word " * words)
    (root / HOSTILE).write_text("word " * 10)
    (root / "binary.bin").write_bytes(b"\0" * 100)
    (root / ".gitignore").write_text("ignored.md\n")
    (root / ".token-sidecar.toml").write_text("")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.chdir(root)
    return root


def test_a_linked_file_is_counted_once(folder: Path) -> None:
    (folder / ".token-sidecar.toml").write_text('[[budget]]\nfiles = "l/*"\nmax-tokens = 1\n')
    (folder / "l").mkdir()
    (folder / "l/link.md").symlink_to("../docs/short.md")
    (folder / "l/other.md").symlink_to("../docs/short.md")
    files = json.loads(CliRunner().invoke(count, ["--json", "."]).stdout)["files"]
    found = json.loads(run("--json").stdout)
    assert found["tokens"] == sum(file["tokens"] for file in files)
    assert found["files"] == len(files)
    within = json.loads(run("--json", "l").stdout)
    assert [entry["path"] for entry in within["entries"]] == ["link.md"]


def mapped(*arguments: str | Path) -> Any:
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_tokens_are_those_of_count(folder: Path) -> None:
    result = CliRunner().invoke(count, [".", "--json"])
    total = json.loads(result.stdout)["total"]
    found = mapped()
    assert (found["tokens"], found["files"]) == (total["tokens"], total["files"])
    assert found["estimated"] is False
    assert sum(entry["tokens"] for entry in found["entries"]) == found["tokens"]


def test_the_largest_entries_are_a_tree(folder: Path) -> None:
    (docs, source, *_) = mapped("--depth", "3")["entries"]
    assert (docs["path"], docs["files"]) == ("docs/", 2)
    assert [child["path"] for child in docs["children"]] == ["docs/deep/", "docs/short.md"]
    assert docs["children"][0]["children"][0]["path"] == "docs/deep/long.md"
    assert source["path"] == "src/"
    flat = mapped("--depth", "1")["entries"]
    assert all(entry["children"] == [] for entry in flat)
    lines = run("--depth", "2").stdout.splitlines()
    assert lines[1].split()[-1] == "docs/"
    assert lines[2].endswith("  deep/")


def test_prompt_files_are_listed_with_their_agents(folder: Path) -> None:
    ((file),) = mapped()["promptFiles"]
    assert file["path"] == "AGENTS.md"
    assert "codex" in file["agents"]
    assert "Sent with every agent request:" in run().stdout


def test_a_subfolder_is_mapped_by_itself(folder: Path) -> None:
    found = mapped("docs")
    assert {entry["path"] for entry in found["entries"]} == {"deep/", "short.md"}


def test_many_entries_are_left_out_of_the_text(folder: Path) -> None:
    for number in range(100):
        (folder / f"{number}.md").write_text("word " * (number + 1))
    lines = run("--depth", "1").stdout.splitlines()
    assert len(lines) < 60
    assert any(
        line.endswith("smaller entries are left out; `--json` lists them.") for line in lines
    )


class Page(HTMLParser):
    """Collects the elements that a page displays."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.titles += [value for name, value in attrs if name == "title"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_each_file_and_escapes_names(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "map.html"
    result = run("--html", file)
    assert result.exit_code == 0, result.output
    page = Page(file.read_text())
    assert page.titles == list(titles(mapped("--depth", "9")["entries"]))
    assert HOSTILE in page.text
    assert not {"img", "script"} & set(page.tags)


def test_the_page_shows_what_each_agent_sends_and_what_is_hidden(folder: Path) -> None:
    (folder / "CLAUDE.md").write_text("Be brief.")
    page = Page(run("--html", "-").stdout)
    assert "hidden by CLAUDE.md" in page.text
    sent = json.loads(CliRunner().invoke(footprint, [str(folder), "--json"]).stdout)
    for agent in sent["agents"]:
        assert f"{agent['title']} {agent['version']}".rstrip() in page.text
        for part in agent["parts"]:
            assert part["label"] in page.text


def test_the_page_has_no_footprint_if_agents_are_disabled(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[agents]\nenabled = false\n")
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "config.toml"))
    result = run("--html", "-")
    assert "before the first word" not in result.stdout
    assert "The largest" in result.stdout


def titles(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if entry["tokens"]:
            yield f"{entry['path']}: {entry['tokens']:,} tokens"
        yield from titles(entry["children"])


def test_the_page_contains_files_at_any_depth(folder: Path) -> None:
    path = folder.joinpath(*("abcdefghijklmnopqrst"), "deep.md")
    path.parent.mkdir(parents=True)
    path.write_text("word " * 50)
    assert ">a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/deep.md<" in run("--html", "-").stdout


@pytest.mark.parametrize("form", [(), ("--html", "-")])
def test_model_and_estimate_are_shown(folder: Path, form: tuple[str, ...]) -> None:
    model = "claude-sonnet-4-5"
    shown = run("--model", model, *form).stdout
    found = mapped("--model", model)
    assert found["model"] == model
    assert f"~{found['tokens']:,} tokens in {found['files']} files for {model}" in shown


def test_an_empty_folder_has_no_tokens(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(empty).stdout == "0 tokens in 0 files for gpt-5\n"
    page = run(empty, "--html", "-").stdout
    assert "0 tokens in 0 files for gpt-5." in page
    assert "<div" not in page, "there is nothing to draw"


def test_a_page_that_cannot_be_written_is_an_error(folder: Path, tmp_path: Path) -> None:
    result = run("--html", tmp_path / "missing" / "map.html")
    assert result.exit_code == 2
    assert "cannot write" in result.output


def test_without_the_extra_it_says_what_to_install(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "squarify.py").write_text("raise ModuleNotFoundError(name='squarify')\n")
    command = [sys.executable, "-m", "sidecar", "map", "--html", str(tmp_path / "map.html")]
    result = subprocess.run(
        command, cwd=tmp_path / "project", env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "pipx inject --force token-sidecar '.[treemap]'" in result.stderr


_names = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(
    lambda parts: "/".join([*(f"d{part}" for part in parts[:-1]), f"f{parts[-1]}"])
)


@given(st.dictionaries(_names, st.integers(0, 1000)), st.integers(0, 5))
def test_each_folder_has_the_sum_of_its_files(counts: dict[str, int], depth: int) -> None:
    top = build_token_map([(*one, "exact") for one in counts.items()], depth)
    assert (top.tokens, top.files) == (sum(counts.values()), len(counts))
    for level, entry in flatten(top):
        assert level < depth
        inside = {
            path: tokens
            for path, tokens in counts.items()
            if path == entry.path or (entry.path.endswith("/") and path.startswith(entry.path))
        }
        assert (entry.tokens, entry.files) == (sum(inside.values()), len(inside))
        assert [child.tokens for child in entry.children] == sorted(
            (child.tokens for child in entry.children), reverse=True
        )


def test_the_depth_limits_the_listing() -> None:
    top: MapEntry = build_token_map(
        [("a/b/c.py", 3, "exact"), ("a/d.py", 4, "estimate"), ("e.py", 1, "exact")], 2
    )
    listed = [(level, entry.path, entry.tokens) for level, entry in flatten(top)]
    assert listed == [(0, "a/", 7), (1, "a/d.py", 4), (1, "a/b/", 3), (0, "e.py", 1)]


def test_folders_may_be_nested_deeper_than_python_calls() -> None:
    depth = sys.getrecursionlimit()
    top = build_token_map([("d/" * depth + "f.py", 3, "exact")], sys.maxsize)
    assert [level for level, _ in flatten(top)] == list(range(depth + 1))


def test_only_estimated_entries_have_a_sign() -> None:
    counts = [("a/b.py", 3_000, "estimate"), ("a/c.py", 2, "exact"), ("d/e.py", 7, "endpoint")]
    top = build_token_map([*counts, ("f.py", 5, "calibrated")], 2)  # type: ignore[list-item]
    assert {entry.path: entry.number for _, entry in flatten(top)} == {
        "a/": "~3,002",
        "a/b.py": "~3,000",
        "a/c.py": "2",
        "d/": "7",
        "d/e.py": "7",
        "f.py": "~5",
    }
