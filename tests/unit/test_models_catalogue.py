"""Tests that the catalogue knows the windows in the offline price list, and never blocks or
raises.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from functools import partial

import pytest

from sidecar.config.paths import STORED_LIST, state_dir
from sidecar.counting.model_list import search
from sidecar.models import catalogue
from sidecar.models.catalogue import (
    billing_provider,
    current,
    similar_if_known,
    similar_models,
)
from sidecar.models.names import is_misspelled, parse
from tests.cases import read_rows
from tests.unit.cost_calls import store_price_list


def test_the_price_list_is_not_loaded_for_a_tokenizer() -> None:
    code = (
        "import sys\n"
        "from sidecar.counting.model_list import known_window, model_info\n"
        "from sidecar.counting.tokenizer_choice import Tokenizers\n"
        "assert Tokenizers().for_model('gpt-5').count('hello world') == 2\n"
        "assert model_info('gpt-5').tokenizer == 'o200k_base'\n"
        "assert known_window('gpt-5') is None\n"
        "heavy = {'genai_prices', 'httpx', 'tokenizers', 'tiktoken', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_search_finds_by_every_word_of_provider_and_name() -> None:
    found = search("anthropic SONNET 4-5")

    assert (found[0].provider, found[0].id) == ("anthropic", "claude-sonnet-4-5")
    assert all("sonnet" in info.id for info in found)
    assert found[0].tokenizer == "claude~o200k_base"
    assert found[0].method == "calibrated"


def test_search_lists_everything_without_a_query() -> None:
    everything = search()

    assert len(everything) > 2000
    assert len({(info.provider, info.id) for info in everything}) == len(everything)
    assert search("no such model anywhere") == []


def test_no_listed_model_is_taken_for_a_misspelling() -> None:
    listed = {model.id for provider in current().providers for model in provider.models}

    assert len(listed) > 1000
    assert [name for name in listed if is_misspelled(parse(name).bare)] == []
    assert [name for name in listed if similar_models(name) is not None] == []


def test_misspelled_form_is_reported_before_the_list_is_loaded() -> None:
    assert similar_if_known("claude-sonet-7-1") == ()
    assert similar_if_known("gpt-5.71") is None
    assert similar_if_known("ollama/claude-sonet-7-1") is None


@pytest.mark.parametrize(("named", "model", "provider"), read_rows("models", "billed_vendors"))
def test_unlisted_provider_is_billed_as_the_models_vendor(
    named: str, model: str, provider: str
) -> None:
    assert billing_provider(named, model) == provider


def test_only_the_newest_downloaded_list_is_kept(request: pytest.FixtureRequest) -> None:
    stored = state_dir() / STORED_LIST
    request.addfinalizer(catalogue.refresh)  # the list is shared by all tests in this process
    request.addfinalizer(partial(stored.unlink, missing_ok=True))
    lists = []
    for window in (54_321, 65_432):
        store_price_list(stored, "gpt-9", window, 7)
        assert catalogue.refresh()
        assert [one.context_window for one in search("gpt-9")] == [window]
        assert catalogue.window_of("gpt-9") == window
        assert similar_models("gpt-8") is None
        lists.append(weakref.ref(catalogue.current().prices))
    gc.collect()
    assert [one() is not None for one in lists] == [False, True]
