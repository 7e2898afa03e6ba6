"""Tests that hostile configuration files cannot leak other files, block or use much memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.config.load import MAX_PROBLEMS, load
from sidecar.config.safe_files import MAX_BYTES
from sidecar.config.settings import Loaded, Settings
from sidecar.config.toml import MAX_ENTRIES
from sidecar.text.globs import MAX_PATTERNS

PLANTED = "AKIAplantedEXAMPLE\npassword: planted hunter2\nplanted = 'planted\nplanted==\n[planted\n"
FILES = (".token-sidecar.toml", "pyproject.toml")
NO_USER = {"TOKEN_SIDECAR_CONFIG": os.devnull}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def problems(root: Path, env: dict[str, str] = NO_USER) -> Loaded:
    loaded = load(root, None, env)
    assert "planted" not in "".join(map(str, loaded.problems))
    return loaded


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("above", [False, True], ids=["file", "folder"])
def test_link_to_a_file_outside_the_root_is_not_read(root: Path, name: str, above: bool) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / name).write_text('model = "outside"\n[tool.token-sidecar]\nmodel = "outside"\n')
    if above:
        (root / "inside").symlink_to(outside)
        (root / name).symlink_to(root / "inside" / name)
    else:
        (root / name).symlink_to(outside / name)
    loaded = problems(root)
    assert loaded.settings == Settings()
    (problem,) = loaded.problems
    assert problem.message.startswith(
        "cannot be read: is a link to a file outside the project's folder"
    )


@pytest.mark.parametrize("name", FILES)
def test_link_to_a_file_inside_the_root_is_read(root: Path, name: str) -> None:
    (root / "settings").mkdir()
    (root / "settings" / "real").write_text("[tool.token-sidecar]\nmodel = 'inside'\n")
    if name == FILES[0]:
        (root / "settings" / "real").write_text("model = 'inside'\n")
    (root / name).symlink_to("settings/real")
    linked = root.parent / "linked"
    linked.symlink_to(root)
    assert (problems(root).settings.model, problems(linked).settings.model) == ("inside", "inside")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["fifo", "zero", "circle", "folder", "huge", "sparse"])
def test_special_file_is_reported_and_not_opened(root: Path, name: str, kind: str) -> None:
    path = root / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "circle":
        path.symlink_to(name)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"#" * (MAX_BYTES + 1 if kind == "huge" else 1))
        os.truncate(path, MAX_BYTES + 1 if kind == "huge" else 10**12)
    loaded = problems(root)
    assert loaded.settings == Settings()
    assert all("cannot be read: " in problem.message for problem in loaded.problems)
    assert len(loaded.problems) == 1


def test_user_file_may_be_a_link_but_not_a_fifo(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("model = 'mine'\n")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "fifo")
    mine = load(None, None, {"TOKEN_SIDECAR_CONFIG": str(tmp_path / "link")})
    assert mine.settings.model == "mine"
    (problem,) = load(None, None, {"TOKEN_SIDECAR_CONFIG": str(tmp_path / "fifo")}).problems
    assert problem.message == "cannot be read: is not a regular file; this file is ignored"


MISTAKES = (
    PLANTED,
    "planted",
    '"planted words" = 1\n[context]\n"planted more" = 5',
    "planted.'planted planted' = ",
    "[planted]\n[planted]",
    "x = {planted = 1, planted = 2}",
    "model = 'a'\nmodel = 'planted'",
    'model = "\\planted"',
    "[context]\nlimit = 'planted'\nwarn-at = ['planted']",
    "[[budget]]\nfiles = ['planted']\nmax-tokens = 'planted'\nsections = {'a planted' = 'planted'}",
    "[[budget]]\nfiles = '" + "*planted" * 100 + "'\nmax-tokens = 1",
    "[['planted planted']]",
    "planted planted = planted",
    "\\planted",
)


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_problems_quote_only_keys_of_a_file(root: Path, text: str) -> None:
    (root / ".token-sidecar.toml").write_text(text)
    loaded = load(root, None, NO_USER)
    assert loaded.problems
    for problem in loaded.problems:
        assert "planted" not in problem.message
        assert "planted" not in problem.key.replace("planted", "", problem.key == "planted")
        assert problem.line is not None


def test_problems_do_not_quote_numbers(root: Path) -> None:
    (root / ".token-sidecar.toml").write_text("model = 471147\n[context]\nlimit = -471147\n")
    assert "471147" not in "".join(map(str, load(root, None, NO_USER).problems))


WRONG = """\
mistaken.deep = 1
  "modle"  = "x"
model = 1
context = { limit = 5, limt = 3 }
[[budget]]
files = "*.md"
 max-tokens = "many"
[[budget]]
file = "*.md"
[unknown.table]
[status]
[[status.also]]
[ agents ]
sources = ["codex", "claud"]
[cost]
soft-cap-usd = 5
 hard-cap-usd = 3
"""
PLACES = {
    "mistaken": (1, 1),
    "modle": (2, 3),
    "model": (3, 9),
    "context.limt": (4, 24),
    "budget[0].max-tokens": (7, 15),
    "budget[1].file": (9, 1),
    "budget[1]": (8, 1),
    "unknown": (10, 2),
    "status.also": (12, 10),
    "agents.sources": (14, 11),
    "cost.soft-cap-usd": (16, 16),
}


def test_unknown_key_and_wrong_value_have_their_positions(tmp_path: Path) -> None:
    user = tmp_path / "user.toml"
    user.write_text(WRONG)
    problems = load(None, None, {"TOKEN_SIDECAR_CONFIG": str(user)}).problems
    found = {problem.key: (problem.line, problem.column) for problem in problems}
    assert found == PLACES


def test_section_that_is_not_a_table_has_its_position(root: Path) -> None:
    (root / "pyproject.toml").write_text("[tool]\ntoken-sidecar = 1\n")
    (problem,) = load(root, None, NO_USER).problems
    assert (problem.key, problem.line, problem.column) == ("tool.token-sidecar", 2, 17)


def test_problem_has_line_and_column(root: Path) -> None:
    (root / ".token-sidecar.toml").write_text("presets = true\nmodel = 1\n")
    (model,) = load(root, None, NO_USER).problems
    assert (model.key, model.line, model.column) == ("model", 2, 9)
    (root / ".token-sidecar.toml").write_text("presets = true\nmodel = 1\n  code-lens = = 1\n")
    (syntax,) = load(root, None, NO_USER).problems
    assert (syntax.key, syntax.line, syntax.column) == ("code-lens", 3, 15)


BUDGET = '[[budget]]\nfiles = "a"\nmax-tokens = 5\n'
PATTERNS = "[[budget]]\nmax-tokens = 5\nfiles = [{}]\n"
BOMBS = {
    "budgets": BUDGET * 20_000,
    "501 budgets": BUDGET * 501,
    "items": "warn-at = [" + "1," * 499_000 + "]",
    "patterns": PATTERNS.format('"a",' * (MAX_PATTERNS + 1)),
    "patterns together": PATTERNS.format('"a",' * 600) * 2,
    "wildcards": '[[budget]]\nmax-tokens = 5\nfiles = "' + "*a" * 60 + '"\n',
    "headings": BUDGET + "[budget.sections]\n" + "".join(f"h{i} = 1\n" for i in range(300)),
    "a heading": BUDGET + 'sections = {"x' + " " * 60_000 + 'y" = 1}\n',
    "a model": "model = '" + "-q1" * 300_000 + "'\n",
    "unknown": "".join(f"k{i} = 1\n" for i in range(9_000)),
    "more unknown": "".join(f"k{i} = 1\n" for i in range(90_000)),
    "a long unknown key": "k" * 900_000 + " = 1\n",
    "parts": "a." * 20_000 + "a = 1",
    "quoted parts": "'a' . " * 20_000 + "a = 1",
    "parts together": "".join(f"a{i}.{'b.' * 29}c = 1\n" for i in range(9_000)),
    "parts of one table": "".join(f"{'b.' * 30}c{i} = 1\n" for i in range(9_000)),
    "header": "[" + "a." * 20_000 + "a]",
    "lists": "a = " + "[" * 20_000,
    "lists over lines": "a = " + "[\n" * 20_000,
    "closed lists": "a = " + "[" * 20_000 + "]" * 20_000,
    "tables": "a = " + "{a = " * 20_000,
    "number": "model = 0x" + "f" * 900_000,
    "mistakes": 'a = "' + "\\n" * 400_000 + '"\n' + "= 1\n" * 10_000,
    "blank lines": "\n" * 900_000,
    "behind a mistake": "= 1\n" + "a = " + "[" * 20_000,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("file", FILES)
def test_huge_or_deeply_nested_files_are_rejected_briefly(root: Path, name: str, file: str) -> None:
    lead = "" if file == FILES[0] else "[tool.token-sidecar]\n"
    text = BOMBS[name]
    if lead:
        text = text.replace("[[budget]]", "[[tool.token-sidecar.budget]]")
        text = text.replace("[budget.", "[tool.token-sidecar.budget.")
    (root / file).write_text(lead + text)
    loaded = problems(root)
    assert 1 <= len(loaded.problems) <= MAX_PROBLEMS + 25
    assert max(len(str(problem)) for problem in loaded.problems) < 1_000
    assert loaded.settings.budgets in ((), Settings().budgets)


@pytest.mark.parametrize("name", ["parts together", "parts of one table"])
def test_each_part_of_a_dotted_key_counts_towards_the_limit(root: Path, name: str) -> None:
    """The parser looks up a table for each part of a key.

    Parsing 9,000 keys with 31 parts each used to take seconds.
    """
    (root / FILES[0]).write_text(BOMBS[name])
    (problem,) = load(root, None, NO_USER).problems
    assert problem.message.startswith(f"has more than {MAX_ENTRIES:,} entries; ")
    assert problem.line is not None
    assert problem.line < MAX_ENTRIES / 30


def test_huge_settings_from_the_editor_are_limited() -> None:
    budget = {"files": "a", "maxTokens": 5}
    loaded = load(None, {"budget": [budget] * 20_000}, NO_USER)
    assert (loaded.settings.budgets, len(loaded.problems)) == ((), 1)
    loaded = load(None, {f"k{i}": 1 for i in range(200_000)}, NO_USER)
    assert len(loaded.problems) == MAX_PROBLEMS + 1


HOSTILE = ("link", "fifo", "zero", "mistake")


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("verb", ["count", "check", "doctor"])
def test_command_line_still_counts_and_quotes_nothing(root: Path, kind: str, verb: str) -> None:
    """The process is limited to 1 GB of memory, so reading an endless file fails the test."""
    path = root / ".token-sidecar.toml"
    secret = root.parent / "secret"
    secret.write_text(PLANTED)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "mistake":
        path.write_text(PLANTED)
    else:
        path.symlink_to(secret if kind == "link" else "/dev/zero")
    (root / "a.md").write_text("some words to count\n")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9))"
    start = f"{limit}; import sys; from sidecar.cli import main; sys.exit(main())"
    target = ["--workspace", "."] if verb == "doctor" else ["a.md"]
    run = subprocess.run(
        [sys.executable, "-P", "-c", start, verb, *target],
        cwd=root,
        env={**os.environ, **NO_USER, "TOKEN_SIDECAR_STATE": str(root.parent / "state")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "planted" not in (run.stdout + run.stderr).replace(" planted:", "")
    assert ".token-sidecar.toml" in run.stdout + run.stderr
    assert run.returncode == 2
    counted = {"count": "a.md", "check": "1 file checked", "doctor": "engines"}[verb]
    assert counted in run.stdout.lower(), run.stderr
