"""What forked helpers do of a cold `check` is what one process would have done."""

# token-budget: ignore (samples of budgets)

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.cli.checking import helpers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="helpers are forked on Linux only")

CONFIGURATION = """\
[[budget]]
files = "*.md"
max-tokens = 5
sections = { "Part" = 3 }
[[budget]]
files = "*.txt"
max-tokens = 8
sum = true
[[budget]]
files = "*.py"
max-tokens = 4
model = "gpt-4"
"""

CODE = """
import json, os, sys
from sidecar.cli.checking import cache, helpers, reading, verb
from sidecar.cli.checking.formats import as_json
who, answers = sys.argv[1], []
reading._BATCH = 2
if who != "one":
    helpers.HELPER_BYTES, helpers.cores = 1, lambda: 3
if who == "helpers":
    helpers.Helpers.claim = lambda self: None
if who == "dead":
    helpers._help = lambda *_: os._exit(1)
if who in ("one process more", "no process more"):
    forks = [os.fork] if who == "one process more" else []
    def fork():
        if not forks:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return forks.pop()()
    os.fork = fork
if who == "no thread":
    def start(self):
        raise RuntimeError("can't start new thread")
    helpers.threading.Thread.start = start
if who == "one that dies":
    def work(self, targets, told=reading.FileReader._told):
        return os._exit(1) if targets[0].relative.startswith("docs/") else told(self, targets)
    reading.FileReader._told = work
    helpers.Helpers.claim = lambda self: None
heard = reading.FileReader._heard
reading.FileReader._heard = lambda *given: answers.append(1) or heard(*given)
report, problems = verb.run(["."])
assert not problems, problems
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    pass
else:
    raise AssertionError("a child was not waited for")
memory = cache.recall(__import__("pathlib").Path.cwd())
contents = cache.unpacked(memory)
entries = {name: [entry.digest.hex(), entry.tokens, entry.sums, entry.parts, len(entry.found)]
           for name, entry in memory.entries.items()}
print(json.dumps({"answers": len(answers), "report": as_json(report), "entries": entries,
                  "contents": {key.hex(): counts for key, counts in contents.items()}}))
"""


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    write(tree / ".token-sidecar.toml", CONFIGURATION.encode())
    for number in range(6):
        write(tree / f"{number}.md", b"# Part\nmore words than fit " * (number + 1))
        write(tree / f"docs/{number}.txt", b"some words of several files\n" * number)
    write(tree / "a.py", b"print('counted for another model')\n")
    write(tree / "b.bin", b"\0\1")
    write(tree / "utf16.md", "größer als gedacht".encode("utf-16"))
    write(tree / os.fsdecode(b"no\xffutf8.md"), b"a name that cannot be written down\n")
    return tree


def outcome(who: str, tree: Path, state: Path) -> dict[str, Any]:
    environment = {**os.environ, "TOKEN_SIDECAR_STATE": str(state / who.replace(" ", "-"))}
    command = [sys.executable, "-P", "-W", "error", "-c", CODE, who]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize(
    ("who", "by_helpers"),
    [
        ("helpers", range(9, 10)),
        ("both", range(10)),
        ("dead", range(1)),
        ("one that dies", range(9)),
        ("one process more", range(10)),
        ("no process more", range(1)),
        ("no thread", range(1)),
    ],
)
def test_it_is_what_one_process_finds(
    who: str, by_helpers: range, tree: Path, tmp_path: Path
) -> None:
    one, shared = outcome("one", tree, tmp_path), outcome(who, tree, tmp_path)
    assert one.pop("answers") == 0
    assert shared.pop("answers") in by_helpers
    assert shared == one


def test_each_batch_is_answered_for_once() -> None:
    numbers = subprocess.run([sys.executable, "-P", "-c", ALL], capture_output=True, check=True)
    assert sorted(json.loads(numbers.stdout)) == list(range(1_000))


ALL = """
import os
from sidecar.cli.checking.helpers import Helpers
mine = []
made = Helpers(1_000, lambda number: b"x" * number * 100, 3)
while (number := made.claim()) is not None:
    mine.append(number)
for number, data in made.answered(wait=True):
    assert len(data) == number * 100
    mine.append(number)
made.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(mine)
"""


def test_the_numbers_of_all_batches_fit_into_the_smallest_pipe() -> None:
    small = (
        "import fcntl, os, sys; pipe = os.pipe\n"
        "def smallest():\n"
        "    ends = pipe()\n"
        "    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4_096)\n"
        "    os.set_blocking(ends[1], False)\n"  # what does not fit is lost, not waited for
        "    return ends\n"
        "from sidecar.cli.checking.helpers import MOST_BATCHES, Helpers\n"
        "os.pipe = smallest; made = Helpers(MOST_BATCHES, None, 0)\n"
        "print(len(list(iter(made.claim, None))) == MOST_BATCHES)"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", small], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_threads_are_seen() -> None:
    code = (
        "import threading; from sidecar.cli.checking.forking import may_fork; print(may_fork()); "
        "end = threading.Event(); one = threading.Thread(target=end.wait); one.start(); "
        "print(may_fork()); end.set(); one.join()"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "False"]


def test_none_where_they_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "cores", lambda: 4)
    monkeypatch.setattr(helpers, "may_fork", lambda: True)
    assert helpers.wanted(helpers.HELPER_BYTES - 1) == 0
    assert helpers.wanted(helpers.HELPER_BYTES) == 1
    assert helpers.wanted(100 * helpers.HELPER_BYTES) == 3
    monkeypatch.setattr(helpers, "may_fork", lambda: False)
    assert helpers.wanted(100 * helpers.HELPER_BYTES) == 0
    monkeypatch.setattr(helpers, "may_fork", lambda: True)
    monkeypatch.setattr(helpers, "cores", lambda: 1)
    assert helpers.wanted(100 * helpers.HELPER_BYTES) == 0
