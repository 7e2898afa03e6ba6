"""Tests that commands in a repository with hostile names print no control characters."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.config.paths import config_file, state_dir
from sidecar.conversations.conversation import Conversation, save
from sidecar.conversations.turn_counts import Counter
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.messages import Turn
from sidecar.workspace.state_folder import State
from tests.unit.test_text_printable import forged, is_plain

FILES = [
    "::error::a.md",
    "b\n::add-mask::b.md",
    "##[add-mask]c.md",
    "\x1b[2J\x1b]0;d\x07.md",
    "\x9b31me\u202e\u2028.md",
    "f%0A::error::f.md",
    "g\r::stop-commands::g.md",
    "h,line=1::h.md",
    "https:x.md",
    "d e#?.md",
]
NAME = "\x1b[2J\u202e\n::error::m\r##[add-mask]\u2028x"
VERBS: dict[str, tuple[str, ...]] = {
    "count": ("count", "."),
    "count a model": ("count", ".", "--model", NAME),
    "count nothing": ("count", NAME),
    "check": ("check", "."),
    "check github": ("check", ".", "--format", "github"),
    "check nothing": ("check", NAME),
    "check no revision": ("check", ".", "--diff", NAME),
    "check a model": ("check", ".", "--model", NAME),
    "fit": ("fit", FILES[3], "--max-tokens", "1", "--json"),
    "fit nothing": ("fit", NAME, "--max-tokens", "1"),
    "cost": ("cost", "--by", "model,category,session,workspace,agent"),
    "cost since": ("cost", "--since", NAME),
    "cost json": ("cost", "--by", "model,category,session", "--json"),
    "export csv": ("cost", "export", "--format", "csv"),
    "export jsonl": ("cost", "export", "--format", "jsonl"),
    "update-prices": ("cost", "update-prices", "--url", f"http://127.0.0.1:9/{NAME}"),
    "usage": ("usage",),
    "config show": ("config", "show"),
    "config check": ("config", "check"),
    "config init": ("config", "init", "--user"),
    "usage all": ("usage", "--all"),
    "statusline": ("statusline",),
    "statusline chained": ("statusline", "--chain", "cat *.md"),
    "cost files": ("cost", "files"),
    "doctor": ("doctor",),
    "no verb": (NAME,),
    "no option": ("count", f"--{NAME}"),
}
ANNOTATION = re.compile(
    r"::(error|warning|notice) file=[^:,]*(,line=\d+)?"
    r",title=Token budget( configuration)?::[^\n]*"
)


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create files, settings, a ledger and a saved session, all with hostile names."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(f"# Plan {NAME}\n\nWhat to do, at length.\n", "utf-8")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.md")).write_text("not UTF-8 by name")
    (folder / "binary\x1b[2J.md").write_bytes(b"\0\x1b")
    key, model = json.dumps(NAME), json.dumps(f"model {NAME}")
    (folder / ".token-sidecar.toml").write_text(
        f'model = {model}\n{key} = 1\n[[budget]]\nfiles = "*.md"\nmax-tokens = 1\n'
        f"sections = {{ {key} = 1, \"Plan\" = 1 }}\n[[budget]]\nfiles = [{key}, '*.md']\n"
        f"max-tokens = 2\nmodel = {model}\n[context]\n{key} = 3\nlimit = {key}\n",
        "utf-8",
    )
    config_file().write_text(
        f"[[tokenizer]]\nmodels = [{key}]\nfile = {key}\n"
        f'[[endpoint]]\nurl = "http://127.0.0.1:9/\\u001b[2J"\nmodels = [{key}]\n',
        "utf-8",
    )
    _spend(folder)
    state = State()
    session = Conversation(NAME, Counter(NAME, Tokenizers().for_model(NAME)))
    session.append([Turn(role="user", content="hi")])
    state.save_sessions(folder.resolve().as_uri(), [save(session)], {NAME})
    monkeypatch.chdir(folder)
    return folder


def _spend(folder: Path) -> None:
    book = CostBook(state_dir())
    for number, name in enumerate([NAME, "\t=cmd|' /C calc'!A0", " \r\n+1", "＝1", "a,b\n-c"]):
        book.record(
            CostRecordParams(
                model=name,
                category=name,
                session=name,
                request_id=f"{number}{name}",
                usage={"prompt_tokens": 179, "completion_tokens": 8},
                workspace=(folder / str(number)).as_uri(),
            )
        )
    book.close()


def run(*arguments: str, charset: str = "utf-8") -> Result:
    return CliRunner(charset=charset).invoke(main, arguments)


def ended_well(result: Result) -> bool:
    return result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("verb", "charset"),
    [*((verb, "utf-8") for verb in VERBS), ("check github", "cp1252"), ("usage all", "ascii")],
)
def test_no_command_prints_control_characters(verb: str, charset: str) -> None:
    result = run(*VERBS[verb], charset=charset)
    assert ended_well(result), result.exception
    assert result.exit_code in (0, 1, 2)
    assert result.output
    assert is_plain(result.output, "\n"), repr(result.output)
    for line in result.output.split("\n"):
        if not forged(line):
            continue
        assert verb == "check github", line
        assert ANNOTATION.fullmatch(line), line
        assert "##[" not in line


def test_json_keeps_every_character_of_a_name() -> None:
    for arguments in (("count", ".", "--json"), ("check", ".", "--json")):
        data = json.loads(run(*arguments).stdout)
        assert set(FILES) <= {file["path"] for file in data["files"]}
    rows = json.loads(run("cost", "--json").stdout)["rows"]
    assert NAME in {row["model"] for row in rows}
    lines = run("cost", "export", "--format", "jsonl").stdout.splitlines()
    assert NAME in {json.loads(line)["category"] for line in lines}


def test_a_fitted_text_keeps_its_characters() -> None:
    Path("plain.txt").write_text(NAME, "utf-8", newline="")
    assert run("fit", "plain.txt", "--max-tokens", "900").stdout_bytes == NAME.encode()


def test_sarif_is_valid_whatever_the_names() -> None:
    schema = Path(__file__).parents[1] / "fixtures" / "sarif-2.1.0.json"
    log = json.loads(run("check", ".", "--format", "sarif").stdout)
    jsonschema.validate(log, json.loads(schema.read_text("utf-8")))
    results: list[dict[str, Any]] = log["runs"][0]["results"]
    assert results
    assert all(is_plain(result["message"]["text"]) for result in results)


def test_no_cell_is_a_formula() -> None:
    rows = list(csv.reader(io.StringIO(run("cost", "export").stdout)))
    assert len(rows) == 6
    cells = [cell for row in rows[1:] for cell in row]
    assert not [cell for cell in cells if re.match(r"[\s\ufeff]*[=+\-@＝＋－＠]", cell)]
    assert sum(cell.startswith("'") for cell in cells) >= 9


def test_the_page_is_text(repository: Path) -> None:
    assert run("cost", "--html", "page.html").exit_code == 0
    page = (repository / "page.html").read_text("utf-8")
    assert is_plain(page, "\n")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252:strict"])
@pytest.mark.parametrize("verb", ["count", "check", "cost", "doctor", "count nothing"])
def test_limited_console_encoding_does_not_end_a_command(verb: str, encoding: str) -> None:
    Path("文書 🙂.md").write_text("ünïcode 文書")
    code = "from sidecar.__main__ import start; start()"
    result = subprocess.run(
        [sys.executable, "-c", code, *VERBS[verb]],
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in result.stderr
    assert result.returncode in (0, 1, 2)
    assert result.stdout or verb == "count nothing"
