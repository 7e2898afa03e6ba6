"""Tests that model names are parsed in all common spellings."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.counting.model_list import model_info
from sidecar.models.catalogue import provider_of
from sidecar.models.names import (
    UNKNOWN,
    facts,
    generation_of,
    is_misspelled,
    known_providers,
    matches,
    parse,
    same_model,
    short_name,
)
from sidecar.text.globs import MAX_LENGTH
from tests.cases import read_rows, read_table

NAMES = read_table("model_names")


@pytest.mark.parametrize("model", NAMES)
def test_model_names_are_parsed(model: str) -> None:
    assert parse(model).bare == NAMES[model].get("bare", model)
    assert provider_of(model) == NAMES[model].get("provider", "")
    assert generation_of(model) == NAMES[model].get("generation", UNKNOWN)


@pytest.mark.parametrize("mark", ["[1m]", "[1M]"])
@pytest.mark.parametrize("model", [name for name in NAMES if name])
def test_window_mark_is_not_part_of_a_name(model: str, mark: str) -> None:
    plain, marked = parse(model), parse(model + mark)
    assert marked == msgspec.structs.replace(plain, window=1_000_000)
    assert short_name(model + mark) == short_name(model)
    assert same_model(model + mark, model)
    assert matches(model + mark, [plain.bare])


@pytest.mark.parametrize(
    ("model", "bare", "window"), read_rows("models", "window_marks", "model", "bare", "window")
)
def test_window_mark_anywhere_in_a_name(model: str, bare: str, window: int | None) -> None:
    assert (parse(model).bare, parse(model).window) == (bare, window)


@given(st.text(max_size=60) | st.from_regex(r"[a-z0-9:/@.\-_]{0,40}", fullmatch=True))
def test_parse_accepts_any_name(model: str) -> None:
    info = model_info(model)

    assert info.id == model
    assert info.tokenizer
    assert info.method in ("exact", "calibrated", "estimate")


def test_unknown_model_is_reported_as_an_estimate() -> None:
    info = model_info("some-model-of-mine")

    assert (info.tokenizer, info.method) == ("unknown~o200k_base", "estimate")
    assert (info.provider, info.context_window, info.max_output) == (None, None, None)


@pytest.mark.parametrize(("asked", "loaded", "same"), read_rows("models", "same_models"))
def test_names_of_the_same_model(asked: str, loaded: str, same: bool) -> None:
    assert same_model(asked, loaded) is same
    assert same_model(loaded, asked) is same


@pytest.mark.parametrize(
    "model",
    ["Qwen-7B", "ollama/qwen-7b", "/models/Qwen-7B-Instruct-Q4_K_M.gguf", "qwen/qwen-7b:free"],
)
def test_glob_matches_every_spelling_of_a_model(model: str) -> None:
    assert matches(model, ("qwen-*",))
    assert not matches(model, ("llama-*", "qwen", "*-7"))


def test_a_glob_may_name_the_provider_or_the_file() -> None:
    assert matches("ollama/qwen-7b", ("ollama/*",))
    assert matches("Qwen-7B-Q4_K_M.gguf", ("*.gguf",))
    assert not matches("qwen-7b", ("ollama/*",))


HOSTILE = (
    "m:" + "-q1" * 330_000 + "\nx",
    "-q1" * 330_000 + ".gguf",
    "m" + "_q1" * 330_000 + "!.gguf",
)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_only_the_beginning_of_a_long_name_is_read(name: str) -> None:
    """Some patterns take quadratic time, so a regression would make this test run for hours."""
    assert generation_of(name) == UNKNOWN
    assert len(parse(name).bare) <= MAX_LENGTH
    assert same_model(name, name)


@pytest.mark.parametrize(
    "name",
    [
        *("gpt-5.7", "gpt-6-mini", "gpt-6-orion", "gpt-4o-mini", "gpt4o", "claude-opus-5-2"),
        *("claude-opal-6-1", "gemini-4-ultra", "gemini-4-micro", "grok-5-fast", "gpt-oss-20b"),
    ],
)
def test_a_future_member_of_a_family_is_not_taken_for_a_misspelling(name: str) -> None:
    assert not is_misspelled(name)


def test_file_of_names_is_consistent() -> None:
    """A pattern of `names.json` is lower case, and a vendor's family names a known provider."""
    bases = [pattern for pattern, _ in facts().bases]
    for pattern in (*(one.pattern for one in facts().families), *bases, *facts().retired):
        plain = re.sub(r"\\.", "", pattern)
        assert plain == plain.lower()
        re.compile(pattern)
    assert {one.provider for one in facts().families} - {None} <= known_providers().keys()
    assert all(word.isalpha() for word in facts().words | facts().closed_words)


def test_documented_generations_are_known() -> None:
    text = Path(__file__).parents[2].joinpath("docs/reference/models.md").read_text("utf-8")
    table = text.partition("| models | generation |")[2].partition("\n\n")[0]
    documented = {
        name for row in table.splitlines()[2:] for name in re.findall("`(.+?)`", row.split("|")[2])
    }
    known = {one.generation for one in facts().families}
    assert documented <= known | {"claude", "claude-4.7", UNKNOWN}
    unpublished = {name for name, other in facts().approximated_as.items() if other == "modern"}
    newer = {"openai-newer", "qwen-newer", "deepseek-v2", "p50k_base"}
    assert known - documented == unpublished | newer
