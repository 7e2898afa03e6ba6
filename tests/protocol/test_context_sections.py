"""Tests sections of a conversation, and requests that are assembled from sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.counting.calibration import Calibrations, document_key, save_calibrations
from sidecar.counting.estimators import kind_of
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.workspace.views import NO_CONTEXT
from tests.protocol.client import URI, USER, Client, RpcError, edit
from tests.truth import truth


async def test_a_section_follows_an_open_document(talker: Client) -> None:
    talker.open("one two three\n")
    section = {"name": "notes", "textDocument": {"uri": URI}}
    usage = await talker.request("context/set", {"sections": [section], "model": "gpt-4o"})
    assert usage["breakdown"]["sections"] == truth("one two three\n")
    talker.change(edit((0, 0), (0, 0), "zero "))
    usage = await talker.request("context/usage", {})
    assert usage["breakdown"]["sections"] == truth("zero one two three\n")
    section["textDocument"] = {"uri": "file:///none"}
    with pytest.raises(RpcError) as caught:
        await talker.request("context/set", {"sections": [section]})
    assert caught.value.data == {"kind": "unknownDocument", "retryable": False}


async def test_assembling_is_cached_and_cleared(talker: Client) -> None:
    params = {"identity": "You are a test.", "logs": "a\nb", "user": "hello", "context": "x\ny"}
    first = await talker.request("context/assemble", params)
    again = await talker.request("context/assemble", params)
    assert (first["prefixCached"], again["prefixCached"]) == (False, True)
    assert (first["prefixHash"], again["contextCached"]) == (again["prefixHash"], True)
    await talker.request("context/reset", {})
    assert (await talker.request("context/assemble", params))["prefixCached"] is False


async def test_a_range_moves_with_its_text(talker: Client) -> None:
    talker.open("first line\nthe section\nlast line\n")
    span = edit((1, 0), (2, 0), "")["range"]
    section = {"name": "part", "textDocument": {"uri": URI}, "range": span}
    usage = await talker.request("context/set", {"sections": [section], "model": "gpt-4o"})
    assert usage["breakdown"]["sections"] == truth("the section\n")
    talker.change(edit((0, 0), (0, 0), "zero\nand more 🙂\n"))
    usage = await talker.request("context/usage")
    assert usage["breakdown"]["sections"] == truth("the section\n")
    talker.change(edit((3, 3), (3, 3), " longer"))
    usage = await talker.request("context/usage")
    assert usage["breakdown"]["sections"] == truth("the longer section\n")


async def test_usage_text_has_a_line_for_each_part(talker: Client) -> None:
    """Each part of the context has one line, even if its label contains a line break."""
    section = {"name": "two\nlines", "text": "some words of a section"}
    begun = {"session": "s", "systemPrompt": "Be brief.", "sections": [section]}
    await talker.request("context/set", begun)
    await talker.request("context/append", {"session": "s", "turns": [USER]})
    assert (await talker.request("context/usage", {"session": "nobody"}))["text"] == NO_CONTEXT
    usage = await talker.request("context/usage", {"session": "s"})
    lines = usage["text"].splitlines()
    summary, breakdown, largest = "\n".join(lines).split("\n\n")
    assert summary.startswith(f"Context     ~{usage['tokens']:,} tokens (")
    assert f"% of {usage['usable']:,} usable" in summary
    assert "Session     1 turn\n" in summary
    groups = {row["label"]: row["children"] for row in usage["rows"] if row["children"]}
    tokens = [part["tokens"] for part in usage["largest"]]
    assert [row["value"] for row in groups["Largest"]] == [f"~{token:,}" for token in tokens]
    filled = [f"~{each:,}" for each in usage["breakdown"].values() if each]
    assert [row["value"] for row in groups["Breakdown"]] == filled
    assert sum(row["share"] for row in groups["Breakdown"]) == pytest.approx(1)
    for text, rows in ((breakdown, groups["Breakdown"]), (largest, groups["Largest"])):
        shown = zip(text.splitlines()[1:], rows, strict=True)
        assert all(row["label"] in line and row["value"] in line for line, row in shown)
    assert any("two lines" in row["label"] for row in groups["Largest"])


async def test_usage_includes_the_last_assembled_request(talker: Client) -> None:
    parts = {"assistant": "Be brief.", "context": "one two three", "logs": "a\nb", "user": "Go."}
    made = await talker.request("context/assemble", {**parts, "focus": "tests"})
    assert (made["schemaVersion"], made["intent"], made["pack"]) == (1, "tests", [])
    usage = await talker.request("context/usage", {})
    assert usage["tokens"] == made["tokens"] > 0
    assert usage["breakdown"]["logs"] == made["sections"][3]["tokens"] > 0
    parts = usage["breakdown"]
    assert sum(parts.values()) == usage["tokens"]


async def test_section_over_its_cap_is_trimmed(
    talker: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    sections = [
        {"name": "plan", "text": "word " * 200, "cap": 20},
        {"name": "logs", "text": "one line"},
    ]
    usage = await talker.request("context/set", {"session": "s", "sections": sections})
    assert usage["breakdown"]["logs"] > 0
    assert usage["breakdown"]["sections"] == 20
    params = {"session": "s", "logs": "x\n" * 90, "maxTokens": 60}
    made = await talker.request("context/assemble", params)
    context = next(section for section in made["sections"] if section["name"] == "context")
    assert (context["trimmed"], made["budgetApplied"]) == (True, 60)
    assert [(one["name"], one["trimmed"]) for one in made["pack"]] == [
        ("plan", True),
        ("logs", False),
    ]
    assert made["pack"][0]["tokens"] <= 20
    assert sum("trim level" in line for line in caplog.messages) == made["trimLevel"] > 0


async def test_preflight_for_another_model_counts_a_section_like_its_document(
    bare: Client, tmp_path: Path
) -> None:
    """The section's estimate is calibrated for the document's kind of text."""
    model, text = "unheard-of", "The quick brown fox jumps over the lazy dog. " * 40
    learned = Calibrations()
    estimator = Tokenizers().for_model(model).name
    learned.update(document_key(model, estimator, kind_of(text)), 1_000, 1_300, 1.0)
    save_calibrations(tmp_path / "state", learned)
    await bare.initialize()
    bare.ignore("status/update")
    bare.open(text)
    section = {"name": "notes", "textDocument": {"uri": URI}}
    await bare.request("context/set", {"sections": [section], "model": "gpt-4o"})
    verdict = await bare.request("context/preflight", {"model": model})
    usage = await bare.request("context/set", {"model": model})
    count = await bare.count()
    assert (count["model"], count["method"]) == (model, "calibrated")
    assert usage["breakdown"]["sections"] == count["tokens"]
    assert verdict["promptTokens"] == usage["tokens"]
