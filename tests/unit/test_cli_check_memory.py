"""Tests the cache of `check`: unchanged files are not read, and all changes are noticed."""

# token-budget: ignore (the budgets below are samples)

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from threading import get_ident

import pytest

from sidecar.budgets import check_cache, check_run
from sidecar.budgets.check_report import FileReport
from sidecar.config.paths import cache_dir
from sidecar.config.safe_files import FileStamp
from sidecar.config.settings import Settings
from sidecar.counting import tokenizer_choice
from sidecar.counting.calibration import Calibrations, document_key, save_calibrations
from sidecar.counting.exact_engines import FastEngine
from sidecar.counting.tokenizer_choice import ChooseCounter, CounterChooser, Tokenizers
from sidecar.project.files import File, SkippedPath, Target, Text, read
from sidecar.workspace.check_paths import check_paths as run

CONFIGURATION = """\
[[budget]]
files = "*.md"
max-tokens = 5
[[budget]]
files = "*.txt"
max-tokens = 8
sum = true
"""
LONG_AGO = time.time() - 3600


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the path of each file that is read."""
    seen: list[str] = []
    original = check_run.Checker._check_new

    def check_new(self: check_run.Checker, stamps: Mapping[Target, FileStamp], at: int) -> object:
        seen.extend(target.relative for target in stamps)
        return original(self, stamps, at)

    monkeypatch.setattr(check_run.Checker, "_check_new", check_new)
    return seen


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that records the length of each text that is tokenized.

    The one-letter text that loads a vocabulary is left out.
    """
    seen: list[int] = []
    original = FastEngine.count_many

    def count_many(self: FastEngine, texts: Sequence[str]) -> list[int]:
        seen.extend(len(text) for text in texts if len(text) > 1)
        return original(self, texts)

    monkeypatch.setattr(FastEngine, "count_many", count_many)
    return seen


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Treat all files as old enough to be cached, except in tests that change this.
    monkeypatch.setattr(check_cache, "RACY_NS", -(10**18))
    folder = tmp_path / "root"
    write(folder / ".token-sidecar.toml", CONFIGURATION)
    write(folder / "a.md", "one two three four five six seven")
    write(folder / "sub" / "b.md", "one two three four five six")
    write(folder / "c.txt", "one two three")
    write(folder / "d.txt", "one two three four")
    write(folder / "e.bin", "\0")
    return folder


def write(path: Path, text: str, at: float = LONG_AGO) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    os.utime(path, (at, at))


def check(root: Path) -> dict[str, FileReport]:
    report, problems = run([str(root)])
    assert problems == []
    assert [skipped.reason for skipped in report.skipped] == ["binary file"]
    return {os.path.relpath(file.path, root): file for file in report.files}


def test_second_run_reads_no_file_and_reports_the_same(root: Path, reads: list[str]) -> None:
    first = check(root)
    assert len(reads) == 6
    reads.clear()
    assert check(root) == first
    assert reads == []
    assert {path: len(file.findings) for path, file in first.items()} == {
        ".token-sidecar.toml": 0,
        "a.md": 1,
        "sub/b.md": 1,
        "c.txt": 0,
        "d.txt": 0,
    }


def test_unchanged_cache_is_not_written(root: Path) -> None:
    check(root)
    (file,) = (cache_dir() / "check").iterdir()
    before = file.stat().st_mtime_ns, file.stat().st_ino
    check(root)
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


@pytest.mark.parametrize(
    ("text", "tokens"),
    # The second text has the same size and modification time. Only the change time (ctime) differs.
    [("one", 1), ("one two three four five six s e v", 9)],
)
def test_changed_files_are_read_again(root: Path, reads: list[str], text: str, tokens: int) -> None:
    check(root)
    reads.clear()
    write(root / "a.md", text)
    assert check(root)["a.md"].tokens == tokens
    assert reads == ["a.md"]


def test_a_file_read_just_after_it_was_written_is_read_again(
    root: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_cache, "RACY_NS", 2_000_000_000)
    check(root)
    reads.clear()
    check(root)
    assert "a.md" in reads


def test_touched_or_moved_files_are_not_counted_again(
    root: Path, reads: list[str], counts: list[int]
) -> None:
    # Within the budget, so that no text is tokenized to find where it is exceeded.
    write(root / ".token-sidecar.toml", CONFIGURATION.replace("5", "50"))
    first = check(root)
    counts.clear()
    os.utime(root / "a.md")
    (root / "sub" / "b.md").rename(root / "moved.md")
    second = check(root)
    assert second["a.md"] == first["a.md"]
    assert second["moved.md"].tokens == first["sub/b.md"].tokens
    assert counts == []


def test_other_rules_and_other_models(root: Path, counts: list[int]) -> None:
    first = check(root)
    counts.clear()
    write(root / ".token-sidecar.toml", CONFIGURATION.replace("5", "50"))
    assert all(not file.findings for file in check(root).values())
    assert counts == [len(CONFIGURATION) + 1]
    write(root / ".token-sidecar.toml", CONFIGURATION)
    assert check(root)["a.md"] == first["a.md"]
    report, _ = run([str(root / "a.md")], "claude-sonnet-4-5")
    assert report.files[0].method != "exact"
    assert check(root)["a.md"] == first["a.md"]


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x80", b"garbage"])
def test_damaged_cache_is_ignored(root: Path, damage: bytes) -> None:
    first = check(root)
    (file,) = (cache_dir() / "check").iterdir()
    file.write_bytes(damage)
    assert check(root) == first


def test_unwritable_cache_is_ignored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "taken"))
    assert check(root) == check(root)


def test_cache_contains_no_text(root: Path) -> None:
    text = "# planted-heading\n<!-- token-budget: 1 -->\nplanted-text\n"
    write(root / "a.md", text)
    write(
        root / ".token-sidecar.toml",
        '[[budget]]\nfiles = "*.md"\nmax-tokens = 1\nsections = { "planted-heading" = 1 }\n'.replace(
            "planted", "rule"
        ),
    )
    assert check(root)["a.md"].findings
    kept = b"".join(path.read_bytes() for path in (cache_dir() / "check").iterdir())
    assert b"a.md" in kept
    assert b"planted" not in kept


def test_findings_with_headings_are_computed_again(root: Path, reads: list[str]) -> None:
    write(root / "a.md", "# Words\n<!-- token-budget: 1 -->\n")
    first = check(root)
    assert [finding.section for finding in first["a.md"].findings] == [None, "lines 2 to 3"]
    reads.clear()
    assert check(root) == first
    assert reads == ["a.md"]


def test_two_runs_at_once_leave_a_valid_cache(root: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: check(root), range(8)))
    assert all(report == reports[0] for report in reports)
    assert [path.suffix for path in (cache_dir() / "check").iterdir()] == [".msgpack"]


def test_run_for_another_model_replaces_all_cached_counts(root: Path) -> None:
    first = check(root)
    of_one, _ = run([str(root / "a.md")], "gpt-4")
    both, _ = run([str(root)], "gpt-4")
    assert {file.method for file in both.files} == {"exact"}
    assert [file for file in both.files if file.path.endswith("a.md")] == list(of_one.files)
    alone, _ = run([str(root)], "gpt-4", use_cache=False)
    assert alone == both
    assert check(root) == first


def test_changed_calibration_invalidates_estimates(root: Path, tmp_path: Path) -> None:
    model = "unheard-of"
    before, _ = run([str(root)], model)
    learned = Calibrations()
    for kind in ("prose", "code", "data"):
        key = document_key(model, Tokenizers().for_model(model).name, kind)
        learned.update(key, 1_000, 2_000, 1.0)
    save_calibrations(tmp_path / "state", learned)
    after, _ = run([str(root)], model)
    assert [file.method for file in after.files] == ["calibrated"] * len(before.files)
    assert all(a.tokens > b.tokens for a, b in zip(after.files, before.files, strict=True))
    assert run([str(root)], model)[0] == after


def test_files_on_several_threads_are_reported_as_on_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        write(root / f"{number}.md", "# Part\nmore words than fit " * (number + 1))
        write(root / f"docs/{number}.txt", "some words of several files\n" * number)
    write(root / "utf16.md", "größer als gedacht\n")
    write(root / os.fsdecode(b"no\xffutf8.md"), "a name that cannot be written down\n")
    monkeypatch.setattr(tokenizer_choice, "count_cores", lambda: 1)
    one, _ = run([str(root)], use_cache=False)
    monkeypatch.setattr(tokenizer_choice, "count_cores", lambda: 5)
    several, _ = run([str(root)], use_cache=False)
    assert several == one
    assert run([str(root)])[0] == run([str(root)])[0] == one


def test_threads_take_turns_reading_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        write(root / f"{number}.md", f"file {number}")
    threads: list[int] = []

    def read_slowly(file: File) -> Text | SkippedPath:
        threads.append(get_ident())
        time.sleep(0.001)  # lets other threads run
        return read(file)

    monkeypatch.setattr(check_run, "read", read_slowly)
    monkeypatch.setattr(tokenizer_choice, "count_cores", lambda: 4)
    run([str(root)], use_cache=False)
    batches = [list(batch) for _, batch in groupby(threads)]
    assert len(threads) == 46
    assert min(map(len, batches)) > 1
    assert len(set(threads)) > 1


def test_threads_share_one_counter(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        write(root / f"{number}.md", f"file {number}")
    created: list[Settings] = []
    original = tokenizer_choice.local_counters

    def create_slowly(settings: Settings) -> tuple[CounterChooser, ChooseCounter]:
        created.append(settings)
        time.sleep(0.05)  # lets other threads run
        return original(settings)

    monkeypatch.setattr("sidecar.budgets.check_run.local_counters", create_slowly)
    monkeypatch.setattr(tokenizer_choice, "count_cores", lambda: 4)
    run([str(root)])
    assert len(created) == 1
