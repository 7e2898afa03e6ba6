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
from sidecar.models.families import UNKNOWN, generation_of, is_misspelled
from sidecar.models.names import facts, known_providers, matches, parse, same_model, short_name
from sidecar.text.globs import MAX_LENGTH

CASES = [
    # (name, provider, name without provider, generation)
    ("gpt-5", "openai", "gpt-5", "o200k_base"),
    ("gpt-4o-2024-08-06", "openai", "gpt-4o-2024-08-06", "o200k_base"),
    ("chatgpt-4o-latest", "openai", "chatgpt-4o-latest", "o200k_base"),
    ("gpt-4.1-mini", "openai", "gpt-4.1-mini", "o200k_base"),
    ("o3", "openai", "o3", "o200k_base"),
    ("o4-mini", "openai", "o4-mini", "o200k_base"),
    ("gpt-4", "openai", "gpt-4", "cl100k_base"),
    ("gpt-4-turbo-2024-04-09", "openai", "gpt-4-turbo-2024-04-09", "cl100k_base"),
    ("gpt-3.5-turbo-0125", "openai", "gpt-3.5-turbo-0125", "cl100k_base"),
    ("gpt-35-turbo", "openai", "gpt-35-turbo", "cl100k_base"),
    ("text-embedding-3-small", "openai", "text-embedding-3-small", "cl100k_base"),
    ("text-davinci-003", "openai", "text-davinci-003", "p50k_base"),
    ("davinci", "openai", "davinci", "r50k_base"),
    ("gpt-6-astra", "openai", "gpt-6-astra", "openai-newer"),
    ("ft:gpt-4o-2024-08-06:acme::id", "openai", "gpt-4o-2024-08-06", "o200k_base"),
    ("azure/gpt-4o", "azure", "gpt-4o", "o200k_base"),
    ("openai/gpt-5.2", "openrouter", "gpt-5.2", "o200k_base"),
    ("openai/gpt-oss-20b:free", "openrouter", "gpt-oss-20b", "o200k_harmony"),
    ("gpt-oss:20b", "ollama", "gpt-oss-20b", "o200k_harmony"),
    ("claude-sonnet-4-5-20250929", "anthropic", "claude-sonnet-4-5-20250929", "claude"),
    ("claude-sonnet-4-5@20250929", "google", "claude-sonnet-4-5", "claude"),
    ("claude-opus-4-20250514", "anthropic", "claude-opus-4-20250514", "claude"),
    ("claude-3-5-sonnet-latest", "anthropic", "claude-3-5-sonnet-latest", "claude"),
    ("claude-2.1", "anthropic", "claude-2.1", "claude"),
    ("claude-opus-4-7", "anthropic", "claude-opus-4-7", "claude-4.7"),
    ("claude-opus-4.8-fast", "anthropic", "claude-opus-4.8-fast", "claude-4.7"),
    ("claude-fable-5-1", "anthropic", "claude-fable-5-1", "claude-4.7"),
    ("sonnet", "anthropic", "sonnet", "claude-4.7"),
    ("anthropic/claude-haiku-4.5", "openrouter", "claude-haiku-4.5", "claude"),
    ("openrouter/anthropic/claude-sonnet-4.5", "openrouter", "claude-sonnet-4.5", "claude"),
    ("us.anthropic.claude-opus-4-7-v1:0", "aws", "claude-opus-4-7", "claude-4.7"),
    ("anthropic.claude-3-haiku-20240307-v1:0", "aws", "claude-3-haiku-20240307", "claude"),
    (
        "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-4-5-v1:0",
        *("aws", "claude-sonnet-4-5", "claude"),
    ),
    ("Qwen2.5-7B-Instruct-Q4_K_M.gguf", "llamacpp", "qwen2.5-7b-instruct", "qwen2"),
    ("/models/Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "llamacpp", "qwen3-30b-a3b", "qwen3"),
    ("C:\\m\\Meta-Llama-3.1-8B.f16.gguf", "llamacpp", "meta-llama-3.1-8b", "llama3"),
    ("Qwen3.5-27B-Q8_0-00001-of-00002.gguf", "llamacpp", "qwen3.5-27b", "qwen3.5"),
    ("ollama/qwen3:8b", "ollama", "qwen3-8b", "qwen3"),
    ("llama3.1:8b", "ollama", "llama3.1-8b", "llama3"),
    ("llama3.1:8b-instruct-q4_K_M", "ollama", "llama3.1-8b-instruct-q4_k_m", "llama3"),
    ("mistral:latest", "ollama", "mistral", "tekken"),
    ("deepseek-r1:14b", "ollama", "deepseek-r1-14b", "qwen3"),
    ("deepseek-chat", "deepseek", "deepseek-chat", "deepseek"),
    ("deepseek-r1-distill-llama-70b", None, "deepseek-r1-distill-llama-70b", "llama3"),
    ("meta-llama/Llama-3.3-70B-Instruct", "openrouter", "llama-3.3-70b-instruct", "llama3"),
    ("@cf/meta/llama-3-8b", "cloudflare", "llama-3-8b", "llama3"),
    (
        "accounts/fireworks/models/llama-v3p1-70b-instruct",
        *("fireworks", "llama-v3.1-70b-instruct", "llama3"),
    ),
    ("hermes-3-llama-3.1-8b", None, "hermes-3-llama-3.1-8b", "llama3"),
    ("models/gemini-1.5-pro", "google", "gemini-1.5-pro", "gemma"),
    ("gemini-2.5-pro", "google", "gemini-2.5-pro", "gemma"),
    ("mistral-large-2411", "mistral", "mistral-large-2411", "mistral-v3"),
    ("mistral-small-latest", "mistral", "mistral-small-latest", "tekken"),
    ("mixtral-8x7b", "mistral", "mixtral-8x7b", "mistral-v3"),
    ("grok-4", "x-ai", "grok-4", "grok"),
    ("GLM-4.7", "zhipuai", "glm-4.7", "glm"),
    ("phi-4", None, "phi-4", "cl100k_base"),
    ("phi-4-mini-instruct", None, "phi-4-mini-instruct", "o200k_base"),
    ("gpt-5.7", "openai", "gpt-5.7", "o200k_base"),
    ("gpt-7-mini", "openai", "gpt-7-mini", "openai-newer"),
    ("claude-nova-6", "anthropic", "claude-nova-6", "claude-4.7"),
    ("gpt-55", None, "gpt-55", UNKNOWN),
    ("gpt-4oo", None, "gpt-4oo", UNKNOWN),
    ("claude-sonet-4-5", None, "claude-sonet-4-5", UNKNOWN),
    ("claude-sonnet-45", None, "claude-sonnet-45", UNKNOWN),
    ("gemini-25-pro", None, "gemini-25-pro", UNKNOWN),
    ("phi-35", None, "phi-35", UNKNOWN),
    ("phi-35-mini-instruct", None, "phi-35-mini-instruct", UNKNOWN),
    ("qwen-25-coder", None, "qwen-25-coder", UNKNOWN),
    ("qwen35", None, "qwen35", UNKNOWN),
    ("llama33", None, "llama33", UNKNOWN),
    ("meta-llama-31-8b-instruct", None, "meta-llama-31-8b-instruct", UNKNOWN),
    ("minimax-m25", None, "minimax-m25", UNKNOWN),
    ("mistral-small-31-24b", None, "mistral-small-31-24b", UNKNOWN),
    ("llama-65b", None, "llama-65b", "llama2"),
    ("llama-68m", None, "llama-68m", "llama3"),
    ("qwen-72b-chat", None, "qwen-72b-chat", "qwen2"),
    ("claude-foo", None, "claude-foo", UNKNOWN),
    ("claude-foo-20251001", None, "claude-foo-20251001", UNKNOWN),
    ("claude-turbo-latest", None, "claude-turbo-latest", UNKNOWN),
    ("claude-mythos", "anthropic", "claude-mythos", "claude-4.7"),
    ("claude-haiku-latest", "anthropic", "claude-haiku-latest", "claude-4.7"),
    ("claude-instant-1.2", "anthropic", "claude-instant-1.2", "claude"),
    ("claude-v1", "anthropic", "claude-v1", "claude"),
    ("claude", "anthropic", "claude", "claude-4.7"),
    ("llamaa-3.3-70b", None, "llamaa-3.3-70b", UNKNOWN),
    ("some-model-of-mine", None, "some-model-of-mine", UNKNOWN),
    ("", None, "", UNKNOWN),
]


@pytest.mark.parametrize(
    ("model", "provider", "bare", "generation"), CASES, ids=[case[0] for case in CASES]
)
def test_model_names_are_parsed(
    model: str, provider: str | None, bare: str, generation: str
) -> None:
    assert parse(model).bare == bare
    assert provider_of(model) == (provider or "")
    assert generation_of(model) == generation


@pytest.mark.parametrize("mark", ["[1m]", "[1M]"])
@pytest.mark.parametrize("model", [case[0] for case in CASES if case[0]])
def test_window_mark_is_not_part_of_a_name(model: str, mark: str) -> None:
    plain, marked = parse(model), parse(model + mark)
    assert marked == msgspec.structs.replace(plain, window=1_000_000)
    assert short_name(model + mark) == short_name(model)
    assert same_model(model + mark, model)
    assert matches(model + mark, [plain.bare])


@pytest.mark.parametrize(
    ("model", "bare", "window"),
    [
        ("claude-sonnet-4-5[1m]-20250929", "claude-sonnet-4-5-20250929", 1_000_000),
        ("us.anthropic.claude-opus-4-8[1m]-v1:0", "claude-opus-4-8", 1_000_000),
        ("claude-opus-4-8[2m]@default", "claude-opus-4-8", 2_000_000),
        ("claude-opus-4-8 [1m]", "claude-opus-4-8", 1_000_000),
        ("claude-opus-4-8[0m]", "claude-opus-4-8", None),
        ("claude-opus-4-8[1mb]", "claude-opus-4-8[1mb]", None),
        ("claude-opus-4-8[m]", "claude-opus-4-8[m]", None),
    ],
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


@pytest.mark.parametrize(
    ("asked", "loaded", "same"),
    [
        ("qwen3-4b", "Qwen3-4B-Q4_K_M.gguf", True),
        ("qwen3-4b", "/models/qwen/Qwen3-4B-UD-Q8_0-00001-of-00002.gguf", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b-instruct", True),
        ("llama3.2", "llama3.2:latest", True),
        ("llama3.2:1b", "llama3.2:3b", False),
        ("tiny", "koboldcpp/tiny", True),
        ("qwen3-4b", "qwen3-8b", False),
        ("qwen3", "qwen3-4b", False),
        ("gpt-oss-20b", "gpt-oss-20b-mxfp4.gguf", True),
        ("", "", False),
    ],
)
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


@pytest.mark.parametrize("name", ["qwen-invented-9", "qwen-nova", "qwenish", "qwen9.1-pro"])
def test_invented_name_has_no_known_family(name: str) -> None:
    assert generation_of(name) == "qwen-newer"


@pytest.mark.parametrize("name", ["qwen2.5-coder-7b", "qwen:7b", "qwen-vl-chat", "qwen3b"])
def test_names_of_qwen_up_to_2_5_keep_their_generation(name: str) -> None:
    assert generation_of(name) == "qwen2"


@pytest.mark.parametrize("name", ["qwen3-8b", "qwq-32b", "my-qwen3-tune", "qwen3", "qwen3-coder"])
def test_names_of_qwen_3_keep_their_generation(name: str) -> None:
    assert generation_of(name) == "qwen3"


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
    unpublished = {"openai-newer", "qwen-newer", "llama4", "grok", "kimi", "glm", "minimax"}
    assert known - documented == unpublished | {"deepseek-v2", "p50k_base"}
