"""Tests that all counts of a file agree, no matter where they are displayed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.client import SERVER, StdioClient
from sidecar.budgets.quick_fixes import raised_limit
from sidecar.counting.calibration import Calibrations, document_key, key_of, save_calibrations
from sidecar.counting.tokenizer_choice import Tokenizers
from tests.e2e.llama.own import text_tokens

LINE = "The quick brown fox jumps over the lazy dog, and 日本語 too; x = {1: 'Straße'}.\n"
TEXT = "# Everything\n\n" + LINE * 40
BUDGET = 300
LINE_TOKENS_LEAST = 10
SIDECAR = [sys.executable, "-P", "-m", "sidecar"]

METHODS = {
    "exact": "exact",
    "calibrated": "calibrated",
    "endpoint": "endpoint",
    "endpoint down": "calibrated",
}
MODELS = {"exact": "gpt-5", "calibrated": "unheard-of"}
USUAL = [
    pytest.param(case, marks=() if case in ("exact", "endpoint") else pytest.mark.slow)
    for case in METHODS
]
"""`tests/protocol/test_same_count.py` tests the others briefly."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "doc.md").write_text(TEXT)
    rule = f'[[budget]]\nfiles = "doc.md"\nmax-tokens = {BUDGET}\n'
    (folder / ".token-sidecar.toml").write_text(f"inlay-hints = true\n{rule}")
    return folder


def configured(tmp_path: Path, case: str, url: str) -> None:
    """Write the user's configuration, and calibration factors for the tests' models."""
    used = f'[tokenize]\nuse-endpoint = true\n[[endpoint]]\nurl = "{url}"\nmodels = ["tiny"]\n'
    text = f'model = "{MODELS.get(case, "tiny")}"\n' + (used if case.startswith("endpoint") else "")
    (tmp_path / "user-config.toml").write_text(text)
    learned = Calibrations()
    for model in ("unheard-of", "tiny"):
        estimator = Tokenizers().for_model(model).name
        learned.update(document_key(model, estimator, "code"), 1_000, 1_400, 1.0)
        learned.update(document_key(model, estimator, "prose"), 1_000, 1_200, 1.0)
        learned.update(key_of(model, estimator), 1_000, 1_300, 1.0)
    save_calibrations(tmp_path / "state", learned)


def ran(verb: str, *arguments: str, root: Path) -> Any:
    """Return the JSON output of a subcommand."""
    result = subprocess.run(
        [*SIDECAR, verb, *arguments, "--json"], cwd=root, capture_output=True, check=False
    )
    assert result.returncode in (0, 1), result.stderr.decode()
    return json.loads(result.stdout)


class Editor(StdioClient):
    """A client of a server, with one open document."""

    def __init__(self, root: Path) -> None:
        super().__init__(SERVER)
        self.uri = (root / "doc.md").as_uri()
        self.initialize(root)
        self.open(TEXT, self.uri)

    def about(self, method: str, **more: Any) -> Any:
        return self.request(method, {"textDocument": {"uri": self.uri}, **more})

    def shown(self, method: str, wanted: str) -> Any:
        """Return the params of the first notification for `method` that contain `wanted`."""
        while True:
            for message in self.notifications:
                text = json.dumps(message.get("params"), ensure_ascii=False)
                if message.get("method") == method and wanted in text:
                    return message["params"]
            self.notifications.append(self.receive())


def of_editor(editor: Editor, method: str) -> dict[str, tuple[int, str]]:
    """Return the token counts and methods that the editor displays, keyed by where they appear."""
    status = editor.shown("status/update", f'"method": "{method}"')["document"]
    count = editor.about("tokens/count")
    found = editor.shown("textDocument/publishDiagnostics", f", {method}")["diagnostics"]
    span = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    (hint,) = editor.about("textDocument/inlayHint", range=span)
    fitted = editor.about("tokens/fit", maxTokens=9 * count["tokens"])
    shorter = editor.about("tokens/fit", maxTokens=BUDGET)
    return {
        "tokens/count": (count["tokens"], count["method"]),
        "status": (status["tokens"], status["method"]),
        "diagnostic": (number_in(found[0]["message"]), method_in(found[0]["message"])),
        "hint": (number_in(hint["label"]), count["method"]),
        "tokens/fit": (fitted["tokens"], fitted["method"]),
        "removed": (shorter["tokens"] + shorter["removedTokens"], shorter["method"]),
    }


def of_verbs(root: Path, tokens: int) -> dict[str, tuple[int, str]]:
    """Return each subcommand's token count, and how the subcommand says it was made."""
    count = ran("count", "doc.md", root=root)
    checked = ran("check", "doc.md", root=root)["files"][0]
    finding = checked["findings"][0]
    fitted = ran("fit", "doc.md", "--max-tokens", str(9 * tokens), root=root)
    shorter = ran("fit", "doc.md", "--max-tokens", str(BUDGET), root=root)
    return {
        "count": (count["files"][0]["tokens"], count["files"][0]["method"]),
        "total": (count["total"]["tokens"], count["total"]["method"]),
        "check": (checked["tokens"], checked["method"]),
        "finding": (finding["tokens"], finding["method"]),
        "message": (number_in(finding["message"]), method_in(finding["message"])),
        "fit": (fitted["tokens"], fitted["method"]),
        "removed by fit": (shorter["tokens"] + shorter["removedTokens"], shorter["method"]),
    }


def number_in(text: str) -> int:
    """Return the number before the word "tokens"."""
    match = re.search(r"([\d,]+) tokens", text)
    assert match, text
    return int(match[1].replace(",", ""))


def method_in(message: str) -> str:
    """Return the counting method that a finding's message mentions."""
    match = re.search(r"\(\S+, (\w+)", message)
    assert match, message
    return match[1]


@pytest.mark.parametrize("case", METHODS)
def test_a_document_has_one_count_everywhere(
    case: str, root: Path, tmp_path: Path, llama_url: str
) -> None:
    configured(tmp_path, case, "http://127.0.0.1:9" if case == "endpoint down" else llama_url)
    with closing(Editor(root)) as editor:
        table = of_editor(editor, METHODS[case])
        while (count := editor.about("tokens/count"))["limit"] is None:
            pass  # the price list is not loaded yet
        listed = editor.request("models/list", {"query": count["model"]})
    for info in listed:
        if info["id"] == count["model"]:
            known = (info["method"], info["tokenizer"], info["contextWindow"])
            assert known == (count["method"], count["tokenizer"], count["limit"])
    table |= of_verbs(root, count["tokens"])
    assert set(table.values()) == {(table["tokens/count"][0], METHODS[case])}, str(table)
    if case == "endpoint":
        assert count["tokens"] == text_tokens(llama_url, TEXT)
    written = ran("count", "doc.md", root=root)["files"][0]
    about = ("tokenizer", "errorPercent", "limit", "limitSource", "percent")
    assert {key: written.get(key) for key in about} == {key: count.get(key) for key in about}


@pytest.mark.parametrize("case", USUAL)
def test_a_conversation_has_one_count_everywhere(
    case: str, root: Path, tmp_path: Path, llama_url: str
) -> None:
    configured(tmp_path, case, "http://127.0.0.1:9" if case == "endpoint down" else llama_url)
    turns = [{"role": "user", "content": LINE * 9}, {"role": "assistant", "content": LINE}]
    with closing(Editor(root)) as editor:
        # The endpoint's count must arrive first, because it calibrates estimates.
        until(lambda: counted(editor, METHODS[case]) is not None)
        section = {"name": "doc", "textDocument": {"uri": editor.uri}}
        prompt = {"systemPrompt": LINE * 3, "sections": [section]}
        editor.request("context/set", {**prompt, "persist": True})
        editor.request("context/append", {"turns": turns})
        until(lambda: sections_of(editor) == counted(editor, METHODS[case]))
        shown = editor.request("context/usage", {})
        again = editor.about("tokens/count")
        tokens = f'"tokens": {shown["tokens"]}'
        status = editor.shown("status/update", tokens)["context"]
    usage = ran("usage", root=root)
    keys = [
        *("tokens", "method", "errorPercent", "model", "limit", "limitSource", "percent", "turns"),
        *("usable", "available", "breakdown", "largest"),
    ]
    assert {key: usage[key] for key in keys} == {key: shown[key] for key in keys}
    assert (status["tokens"], status["percent"]) == (usage["tokens"], usage["percent"])
    assert usage["breakdown"]["sections"] == again["tokens"], (
        "the document is a section of the conversation"
    )


@pytest.mark.parametrize("case", USUAL)
def test_a_section_has_its_documents_count_after_edits_and_reports(
    case: str, root: Path, tmp_path: Path, llama_url: str
) -> None:
    """Usage reports calibrate counts of the reply's kind of text, but not the document's count."""
    configured(tmp_path, case, "http://127.0.0.1:9" if case == "endpoint down" else llama_url)
    with closing(Editor(root)) as editor:
        section = {"name": "doc", "textDocument": {"uri": editor.uri}}
        editor.request("context/set", {"sections": [section]})
        for size in (1, 2, 3):
            turns = [
                {"role": "user", "content": LINE * size},
                {"role": "assistant", "content": "."},
            ]
            usage = {"prompt_tokens": 1_500 + 90 * size, "completion_tokens": 1}
            editor.request("context/append", {"turns": turns, "usage": usage})
            until(lambda: sections_of(editor) == counted(editor, METHODS[case]))
            before = editor.request("context/usage", {})["tokens"]
            assert before == 1_501 + 90 * size, "calibration does not change a reported number"
            edit(editor, 3 * size, LINE)
            until(lambda: sections_of(editor) == counted(editor, METHODS[case]))
            assert editor.request("context/usage", {})["tokens"] > before + LINE_TOKENS_LEAST
            edit(editor, 3 * size + 1, "", lines=1)
            until(lambda: sections_of(editor) == counted(editor, METHODS[case]))
            again = editor.request("context/usage", {})["tokens"]
            assert again == before, "the reported text has the reported number"
            edit(editor, 3 * size + 2, LINE)


@pytest.mark.parametrize("case", USUAL)
def test_fixes_have_the_documents_count(
    case: str, root: Path, tmp_path: Path, llama_url: str
) -> None:
    """A fix produces the same text and count as `tokens/fit` and `fit`.

    If an endpoint counts the document, the fix keeps less text. Fixes are computed whenever the
    cursor moves, so they do not ask the endpoint. Instead, they leave room for the error of a local
    estimate.
    """
    configured(tmp_path, case, "http://127.0.0.1:9" if case == "endpoint down" else llama_url)
    with closing(Editor(root)) as editor:
        until(lambda: counted(editor, METHODS[case]) is not None)
        found = editor.shown("textDocument/publishDiagnostics", f", {METHODS[case]}")["diagnostics"]
        fixes = fixes_of(editor, found)
        count = editor.about("tokens/count")["tokens"]
        fitted = editor.about("tokens/fit", maxTokens=BUDGET, mode="start")
        left = applied(fixes["Fit to budget: keep the start"], TEXT)
        raised_to = f"Raise the budget to {raised_limit(count):,} in .token-sidecar.toml"
        edit(editor, 3, left, lines=99)
        recounted = editor.about("tokens/count")
    written = ran("fit", "doc.md", "--max-tokens", str(BUDGET), "--mode", "start", root=root)
    assert raised_to in fixes
    assert fitted["text"] == written["text"]
    assert fitted["text"] == left if case != "endpoint" else fitted["text"].startswith(left)
    sizes = {(one["tokens"], one["method"]) for one in (fitted, written)}
    assert sizes == {(fitted["tokens"], METHODS[case])}
    assert BUDGET / 2 < recounted["tokens"] <= fitted["tokens"] <= BUDGET
    assert recounted["method"] == METHODS[case]
    assert case == "endpoint" or recounted["tokens"] == fitted["tokens"]


def fixes_of(editor: Editor, diagnostics: list[Any]) -> dict[str, Any]:
    """Return the document's code actions, keyed by title."""
    span = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    found = editor.about(
        "textDocument/codeAction", range=span, context={"diagnostics": diagnostics}
    )
    return {one["title"]: one for one in found}


def applied(action: Any, text: str) -> str:
    """Return a document's text after applying a code action's single edit."""
    [[replaced]] = action["edit"]["changes"].values()
    lines = text.splitlines(keepends=True)
    start, end = (
        sum(map(len, lines[: at["line"]])) + at["character"]
        for at in (replaced["range"]["start"], replaced["range"]["end"])
    )
    return f"{text[:start]}{replaced['newText']}{text[end:]}"


def counted(editor: Editor, method: str) -> int | None:
    """Return the document's token count, or None if `method` was not used."""
    count = editor.about("tokens/count")
    return int(count["tokens"]) if count["method"] == method else None


def sections_of(editor: Editor) -> int:
    return int(editor.request("context/usage", {})["breakdown"]["sections"])


def edit(editor: Editor, version: int, text: str, lines: int = 0) -> None:
    """Replace a document's first lines."""
    span = {"start": {"line": 0, "character": 0}, "end": {"line": lines, "character": 0}}
    change = {"range": span, "text": text}
    document = {"uri": editor.uri, "version": version}
    editor.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition is true, even on a slow machine."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.05)
