"""A plain `check` prints again what it printed, and never what would not be printed again."""

# token-budget: ignore (samples of budgets)

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sidecar.cli.checking import stamps, verb
from sidecar.cli.checking.again import SHARED, again
from sidecar.cli.plain import run_plain
from sidecar.config.paths import STATE_VARIABLE, cache_dir, config_file, state_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no run is plain there")

CONFIGURATION = """\
[[budget]]
files = "*.md"
max-tokens = 5
[[budget]]
files = "*.txt"
max-tokens = 8
sum = true
"""


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git work tree that is the working directory; no file counts as just written."""
    monkeypatch.setattr(stamps, "RACY_NS", -(10**18))
    for name in [name for name in os.environ if name.startswith(("TOKEN_SIDECAR_", "GIT_"))]:
        if name != STATE_VARIABLE:
            monkeypatch.delenv(name)
    folder = tmp_path / "above" / "root"
    write(folder / ".token-sidecar.toml", CONFIGURATION)
    write(folder / "AGENTS.md", "far more than these five tokens are\n")
    write(folder / "docs" / "a.md", "short\n")
    write(folder / "docs" / "b.txt", "one of two that are summed up\n")
    write(folder / "docs" / "c.txt", "and the other one\n")
    write(folder / "a.bin", b"\0\1")
    write(folder / "secret" / "notes.md", "left out, though it is far too long\n")
    write(folder / ".gitignore", "secret/\n*.log\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    monkeypatch.chdir(folder)
    return folder


Outcome = tuple[int, str, str]


@pytest.fixture
def outcome(capfd: pytest.CaptureFixture[str]) -> Callable[[], Outcome]:
    def run() -> Outcome:
        code = run_plain("check", ".")
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def whole(capfd: pytest.CaptureFixture[str]) -> Callable[[], Outcome]:
    """The outcome of a run that remembers nothing."""

    def run() -> Outcome:
        code = verb.checked(["."], remembering=False)
        return code, *capfd.readouterr()

    return run


def test_nothing_has_changed(
    root: Path,
    outcome: Callable[[], Outcome],
    whole: Callable[[], Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert again(["."]) is None
    first = outcome()
    assert first[0] == 1
    assert "AGENTS.md:1:" in first[1]
    assert "a.bin: binary file, skipped" in first[2]
    assert first == whole()
    monkeypatch.setattr(verb, "checked", None)  # it is not asked
    assert outcome() == first
    assert outcome() == first
    held = b"".join(path.read_bytes() for path in (cache_dir() / "check").glob("*.again"))
    assert b"AGENTS.md" in held
    assert b"summed" not in held


def add_a_log(root: Path) -> None:
    write(root / "x.log", "no file of these budgets\n")
    git(root, "add", "-f", "x.log")


def folder_becomes_file(root: Path) -> None:
    (root / "docs").rename(root.parent / "docs")
    write(root / "docs", "a file now\n")


def folder_becomes_link(root: Path) -> None:
    (root / "docs").rename(root.parent / "docs")
    (root / "docs").symlink_to(root.parent / "docs")


def link_to_the_moved(root: Path) -> None:
    (root / "AGENTS.md").rename(root.parent / "AGENTS.md")
    (root / "AGENTS.md").symlink_to(root.parent / "AGENTS.md")


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer": lambda root: write(root / "docs/a.md", "no longer as short as it was\n"),
    "same size": lambda root: write(root / "docs/a.md", "a b c\n"),
    "new": lambda root: write(root / "docs/new.md", "a new one, which is too long\n"),
    "new folder": lambda root: write(root / "more/new.md", "a new one, which is too long\n"),
    "gone": lambda root: (root / "AGENTS.md").unlink(),
    "renamed": lambda root: (root / "AGENTS.md").rename(root / "OTHER.md"),
    "moved": lambda root: (root / "AGENTS.md").rename(root / "docs/AGENTS.md"),
    "a text now": lambda root: write(root / "a.bin", "12"),
    "ignored": lambda root: write(root / ".gitignore", "secret/\nAGENTS.md\n"),
    "not ignored": lambda root: (root / ".gitignore").unlink(),
    "ignored below": lambda root: write(root / "docs/.gitignore", "b.txt\n"),
    "ignored above": lambda root: write(root.parent / ".gitignore", "AGENTS.md\n"),
    "another work tree": lambda root: git(root.parent, "init", "-q"),
    "added": add_a_log,
    "untracked": lambda root: git(root, "rm", "-q", "--cached", "AGENTS.md"),
    "project": lambda root: write(root / ".token-sidecar.toml", CONFIGURATION.replace("8", "80")),
    "no project": lambda root: (root / ".token-sidecar.toml").unlink(),
    "pyproject": lambda root: write(root / "docs/pyproject.toml", "[tool.token-sidecar]\n"),
    "mistaken": lambda root: write(root / ".token-sidecar.toml", "wrong = 1\n"),
    "user": lambda _: write(config_file(), 'model = "claude-sonnet-4-5"\n'),
    "learned": lambda _: write(state_dir() / "calibration.json", "{}"),
    "a link": lambda root: (root / "docs/l.md").symlink_to(root / "AGENTS.md"),
    "a file is a link": link_to_the_moved,
    "a folder is a link": folder_becomes_link,
    "a folder is a file": folder_becomes_file,
    "closed": lambda root: (root / "docs/a.md").chmod(0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_something_has_changed(
    change: Callable[[Path], object],
    root: Path,
    outcome: Callable[[], Outcome],
    whole: Callable[[], Outcome],
) -> None:
    outcome()
    assert again(["."]) is not None
    change(root)
    assert again(["."]) is None
    assert outcome() == whole()
    assert outcome() == whole()


ELSEWHERE = """
import os
from sidecar.cli.checking import again
forks, fork, again.cores = [], os.fork, lambda: 2
os.fork = lambda: forks.append(0) or fork()
print(again.again(["."]) is not None, len(forks))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked elsewhere")
def test_of_many_files_another_core_looks_at_some(
    root: Path, outcome: Callable[[], Outcome]
) -> None:
    names = [write(root / "many" / f"{number:04}.txt", "a\n") for number in range(SHARED)]

    def looked() -> str:
        command = [sys.executable, "-P", "-c", ELSEWHERE]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    outcome()
    assert looked() == "True 1\n"
    for changed in (names[0], names[-1]):
        write(changed, "b\n")
        assert looked() == "False 1\n", changed.name
        outcome()
        assert looked() == "True 1\n"
    names[-1].chmod(0)
    assert looked() == "False 1\n"
    names[-1].unlink()
    assert looked() == "False 1\n"


@pytest.mark.parametrize("name", ["TOKEN_SIDECAR_X", "GIT_DIR", "CONTEXT_MAX_TOKENS", "PATH"])
def test_the_environment_has_changed(
    name: str, root: Path, outcome: Callable[[], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome()
    assert again(["."]) is not None
    assert again(["docs"]) is None
    monkeypatch.setenv(name, "1")
    assert again(["."]) is None
    monkeypatch.undo()
    monkeypatch.chdir(root / "docs")
    assert again(["."]) is None


@pytest.mark.parametrize("name", ["GIT_INDEX_FILE", "GIT_CONFIG_VALUE_0", "TOKEN_SIDECAR_API_KEY"])
def test_nothing_is_kept_where_the_environment_may_hold_a_key_or_another_index(
    name: str, root: Path, outcome: Callable[[], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, str(root / "no-secret-of-ours"))
    outcome()
    assert again(["."]) is None
    assert not list((cache_dir() / "check").glob("*.again"))


def test_a_tracked_file_that_is_not_there_may_come_back_unseen(
    root: Path, outcome: Callable[[], Outcome], whole: Callable[[], Outcome]
) -> None:
    git(root, "add", "-f", "secret/notes.md")
    (root / "secret/notes.md").unlink()
    outcome()
    write(root / "secret/notes.md", "left out, though it is far too long\n")
    found = outcome()
    assert found == whole()
    assert "secret/notes.md:1:" in found[1]


def test_what_was_written_just_now_is_not_trusted(
    root: Path, outcome: Callable[[], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "RACY_NS", 10**18)
    outcome()
    assert again(["."]) is None


REMOVED = {
    "configuration": ("sidecar.config.load.load", ".token-sidecar.toml"),
    "git's index": ("sidecar.workspace.targets.tracked_files", ".git/index"),
}


@pytest.mark.parametrize(("reads", "name"), REMOVED.values(), ids=REMOVED)
def test_what_is_removed_once_it_was_read_is_not_known_as_absent(
    reads: str,
    name: str,
    root: Path,
    outcome: Callable[[], Outcome],
    whole: Callable[[], Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, _, function = reads.rpartition(".")
    read = getattr(sys.modules[module], function)

    def reading(*given: object, **named: object) -> object:
        found = read(*given, **named)
        (root / name).unlink()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(reads, reading)
        outcome()
    assert again(["."]) is None
    assert outcome() == whole()


def test_a_budget_that_is_for_no_file_is_told_again_until_there_is_one(
    root: Path, outcome: Callable[[], Outcome], whole: Callable[[], Outcome]
) -> None:
    more = '[[budget]]\nfiles = "/rules/*"\nmax-tokens = 1\n'
    write(root / ".token-sidecar.toml", CONFIGURATION + more)
    first = outcome()
    assert "budget[2]: no file matches its files" in first[2]
    assert again(["."]) is not None
    assert outcome() == first == whole()
    write(root / "rules" / "a.txt", "far too long\n")
    found = outcome()
    assert found == whole()
    assert "no file" not in found[2]


def test_only_the_last_runs_are_kept(
    root: Path, outcome: Callable[[], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache_dir() / "check"
    folder.mkdir(parents=True)
    for number in range(6):
        os.utime(write(folder / f"{number}.again", ""), (number, number))
    write(folder / "another.msgpack", "")
    monkeypatch.setattr("sidecar.cli.checking.again.KEPT", 3)
    outcome()
    assert again(["."]) is not None
    old = {path.name for path in folder.iterdir() if path.stem.isdigit() and len(path.stem) == 1}
    assert old == {"4.again", "5.again"}
    assert (folder / "another.msgpack").exists()
    monkeypatch.setenv("PATH", os.environ["PATH"] + os.pathsep)
    outcome()
    assert len(list(folder.glob("*.again"))) == 3


def test_words_of_a_file_are_not_kept(root: Path, outcome: Callable[[], Outcome]) -> None:
    write(
        root / ".token-sidecar.toml",
        '[[budget]]\nfiles = "*.md"\nsections = { "Long part" = 3 }\n',
    )
    write(root / "AGENTS.md", "# Long part\nwords that are over the budget\n")
    assert "Long part" in outcome()[1]
    assert again(["."]) is None
    assert not list((cache_dir() / "check").glob("*.again"))


def test_a_damaged_file_is_as_none(root: Path, outcome: Callable[[], Outcome]) -> None:
    first = outcome()
    (kept,) = (cache_dir() / "check").glob("*.again")
    data = kept.read_bytes()
    damaged = [b"", b"\n", b"{}\n", b"[]\n1", b"null\n", data[:-1], data[:200], data + b"\0\0x"]
    damaged += [data.replace(b'"near"', b'"fear"'), data.replace(b'"files": 7', b'"files": -1')]
    for one in damaged:
        kept.write_bytes(one)
        assert again(["."]) is None
        assert outcome() == first
    assert os.stat(kept).st_mode & 0o777 == 0o600
