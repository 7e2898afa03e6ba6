"""Tests `token-sidecar count`: numbers, text and JSON output, exit codes, and imports."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import output
from sidecar.cli.count import count
from sidecar.config.settings import Settings
from sidecar.counting import exact_engines
from sidecar.counting.exact_engines import Bundled, FastEngine, Reference, engine
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_choice import Tokenizers, local_counters
from tests.fuzz import edits


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(count, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a working directory with two text files, a binary file and an ignored file."""
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "a.md").write_text("hello world")
    (root / "sub" / "code.py").write_text(edits.CODE, newline="")
    (root / "picture.png").write_bytes(b"\x89PNG\0\0\0")
    (root / "ignored.txt").write_text("never counted")
    (root / ".gitignore").write_text("ignored.txt\n.gitignore\n")
    monkeypatch.chdir(root)
    return root


def test_a_file(folder: Path) -> None:
    result = run("a.md")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "2 a.md\n", "")


def test_a_folder_with_a_total(folder: Path) -> None:
    result = run(".")
    tokens = Reference("o200k_base").count(edits.CODE)
    width = len(str(tokens + 2))
    assert result.stdout.splitlines() == [
        f"{2:>{width}} a.md",
        f"{tokens:>{width}} sub/code.py",
        f"{tokens + 2:>{width}} total",
    ]
    assert result.stderr == "token-sidecar: picture.png: binary file, skipped\n"
    assert result.exit_code == 0


def test_file_named_twice_is_counted_once(folder: Path) -> None:
    result = run("a.md", "a.md", "./a.md", folder / "a.md")
    assert (result.stdout, result.stderr) == ("2 a.md\n", "")
    assert run("sub", "a.md", ".").stdout.count("a.md") == 1
    assert run("nope", "./nope").stderr.count("nope") == 1
    assert run("-", "-", stdin="hello world").stdout == "2 -\n"


@pytest.mark.parametrize("link", ["link.md", "to/a.md", "chain.md"])
def test_file_named_through_a_link_is_counted_once(folder: Path, link: str) -> None:
    (folder / "link.md").symlink_to("a.md")
    (folder / "chain.md").symlink_to("link.md")
    (folder / "to").symlink_to(".")
    assert run("a.md", link).stdout == "2 a.md\n"
    assert run(link, "a.md").stdout == f"2 {link}\n"
    assert (
        json.loads(run(link, ".", "--json").stdout)["total"]
        == json.loads(run(".", "--json").stdout)["total"]
    )


@pytest.mark.parametrize(
    "model",
    [
        *("gpt-5o-mimi", "cluade-sonnet-4-5", "openai/gtp-5-mini", "gpt-55", "claude-sonet-4-5"),
        *("phi-35", "qwen-25-coder", "llama33", "claude-foo", "claude-turbo"),
        *("gpt-5-trubo", "gemini-3.5-flsh", "grok4", "claude-opis-4-7", "gpt-4oo"),
    ],
)
def test_a_misspelled_model_is_reported_and_counted_as_unknown(model: str, folder: Path) -> None:
    result = run("a.md", "--model", model)
    (told,) = result.stderr.splitlines()
    assert told.startswith(f"token-sidecar: {model} is not a known model; did you mean ")
    assert result.exit_code == 0
    assert result.stdout.startswith("~")
    as_json = run("a.md", "--model", model, "--json")
    (file,) = json.loads(as_json.stdout)["files"]
    assert as_json.stderr == result.stderr
    assert file["similarModels"][0] in told
    assert (file["method"], file["tokenizer"]) == ("estimate", "unknown~o200k_base")
    assert (file["limitSource"], file["inputCostUsd"]) == ("default", None)
    (folder / ".token-sidecar.toml").write_text(f'model = "{model}"\n')
    assert run("a.md").stderr == result.stderr


@pytest.mark.parametrize(
    "model",
    ["gpt-9-mini", "gpt-5.7", "claude-nova-6", "grok-7", "ollama/gtp-5-mini", "Kimi-K9"],
)
def test_a_new_member_of_a_known_family_is_not_reported(model: str, folder: Path) -> None:
    assert run("a.md", "--model", model).stderr == ""
    (file,) = json.loads(run("a.md", "--model", model, "--json").stdout)["files"]
    assert file["similarModels"] is None


def test_a_name_like_no_known_model_is_reported_as_unknown(folder: Path) -> None:
    result = run("a.md", "--model", "zzyzx", "--json")
    told = "token-sidecar: zzyzx is not a known model; the count is a rough estimate\n"
    assert result.stderr == told
    assert json.loads(result.stdout)["files"][0]["similarModels"] == []


def test_model_in_the_configuration_is_not_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = folder.parent / "user.toml"
    user.write_text('[[price]]\nmodels = ["gtp-5-*"]\ninput = 1\noutput = 2\n')
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(user))
    assert run("a.md", "--model", "gtp-5-mini").stderr == ""


def test_models_and_estimates(folder: Path) -> None:
    assert run("a.md", "--model", "gpt-4").stdout == "2 a.md\n"
    lines = run("a.md", "sub", "--model", "claude-opus-4-5").stdout.splitlines()
    assert all(line.lstrip().startswith("~") for line in lines)
    (folder / "empty").write_text("")
    assert run("empty", "--model", "claude-opus-4-5").stdout == "0 empty\n"


def test_the_model_of_the_settings(folder: Path) -> None:
    (folder / ".token-sidecar.toml").write_text('model = "gpt-4"\n')
    data = json.loads(run("a.md", "--json").stdout)
    assert (data["files"][0]["model"], data["files"][0]["tokenizer"]) == ("gpt-4", "cl100k_base")


def test_json(folder: Path) -> None:
    data: dict[str, Any] = json.loads(run(".", "--json", "--model", "gpt-4o").stdout)
    assert list(data) == ["files", "total", "skipped"]
    expected = {
        "path": "a.md",
        "tokens": 2,
        "method": "exact",
        "tokenizer": "o200k_base",
        "model": "gpt-4o",
        "errorPercent": 0.0,
        "characters": 11,
        "limit": 128_000,
        "percent": 0,
        "inputCostUsd": pytest.approx(2 * 2.5 / 1e6),
    }
    assert {key: data["files"][0][key] for key in expected} == expected
    tokens = sum(file["tokens"] for file in data["files"])
    assert data["total"] == {"tokens": tokens, "files": 2, "method": "exact"}
    assert data["skipped"] == [{"path": "picture.png", "reason": "binary file"}]


def test_json_of_nothing(folder: Path) -> None:
    data = json.loads(run("picture.png", "--json").stdout)
    assert data["files"] == []
    assert data["total"] == {"tokens": 0, "files": 0, "method": "exact"}


def test_unreadable_file_is_an_error_and_the_rest_is_counted(folder: Path) -> None:
    result = run("nope", "a.md")
    assert result.exit_code == 2
    assert result.stdout == "2 a.md\n"
    assert result.stderr == "token-sidecar: nope: no such file or directory, skipped\n"


def test_bytes_that_are_not_utf8(folder: Path) -> None:
    (folder / "latin1.txt").write_bytes("größe".encode("latin-1"))
    result = run("latin1.txt")
    assert result.stdout == f"{engine('o200k_base').count('gr��e')} latin1.txt\n"
    assert "latin1.txt: some bytes are not UTF-8" in result.stderr
    assert result.exit_code == 0


def test_names_that_are_not_utf8(folder: Path) -> None:
    import os

    with open(os.fsencode(folder) + b"/\xff.txt", "wb") as file:
        file.write(b"hello world")
    assert r"2 \udcff.txt" in run(".").stdout
    assert json.loads(run(".", "--json").stdout)["files"][-1]["path"] == "\ufffd.txt"


def test_no_progress_without_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_BYTES", 0)
    assert run("a.md").stderr == ""


def test_progress_on_a_terminal(folder: Path) -> None:
    import os
    import pty

    (folder / "long.txt").write_text("word " * 2_000_000)
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "sidecar", "count", "long.txt"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        drawn = b""
        while chunk := _read(controller):
            drawn += chunk
        assert process.stdout is not None
        assert process.stdout.read() == b"2000001 long.txt\n"
    os.close(controller)
    assert b"Counting" in drawn


def _read(terminal: int) -> bytes:
    import os

    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux raises this error when the other side has been closed
        return b""


def test_a_small_file_loads_little(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN_SIDECAR_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))
    code = """
import sys
sys.argv = ["token-sidecar", "count", "a.md"]
from sidecar.__main__ import start
try: start()
except SystemExit as end: assert end.code == 0, end.code
heavy = ("rich", "tiktoken", "httpx", "genai_prices", "pygls", "lsprotocol",
         "asyncio", "sqlite3", "tokenizers", "pydantic", "watchdog", "hashlib",
         "difflib", "subprocess", "tomllib")
if sys.platform == "linux":
    heavy += ("platformdirs", "tempfile", "shutil")
print([name for name in heavy if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "2 a.md\n[]\n"


def test_threads_load_a_vocabulary_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading takes half a second. Other threads that need the vocabulary wait for it."""
    loads: list[str] = []
    load = exact_engines.splintr_tokenizer

    def load_slowly(name: str) -> Any:
        loads.append(name)
        time.sleep(0.05)  # other threads start counting in the meantime
        return load(name)

    monkeypatch.setattr(exact_engines, "splintr_tokenizer", load_slowly)
    vocabulary = FastEngine("o200k_base", Bundled("o200k_base"))
    monkeypatch.setattr(Tokenizers, "_engine", lambda *_: vocabulary)
    _, choose_counter = local_counters(Settings())
    assert not loads, "a count from the cache needs no vocabulary"
    together = threading.Barrier(8)

    def one(_: int) -> int:
        together.wait(60)
        return choose_counter(Snapshot(text="some words"), "gpt-5").measure("some words").tokens

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == [2] * 8
    assert loads == ["o200k_base"]
