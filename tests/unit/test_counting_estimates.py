"""The fitted estimates, judged by documents that they were not fitted to.

`tests.unit.held_out` has some of those that `python -m benchmarks fit-estimates` keeps apart.
"""

from __future__ import annotations

from statistics import mean, median

import pytest

from sidecar.counting import estimates, vocabularies
from sidecar.counting.features import NAMES, features
from sidecar.counting.kinds import kind_of
from sidecar.counting.tokenizers import Tokenizers
from sidecar.models import families
from sidecar.text.pieces import split
from tests.unit.held_out import DOCUMENTS

MODELS = {
    # model: (its generation, mean error in percent that is let through over these short texts)
    "claude-sonnet-4-5": ("claude", 8),
    "claude-opus-4-7": ("claude-4.7", 9),
    "gemini-3-pro": ("gemma", 7),
    "llama-3.3-70b": ("llama3", 7),
    "llama-2-7b": ("llama2", 8),
    "mistral-7b": ("mistral-v3", 8),
    "command-r-plus": ("command", 9),
    "gpt2": ("r50k_base", 9),
}


@pytest.mark.parametrize("model", MODELS)
def test_the_band_holds_where_nothing_was_fitted(model: str) -> None:
    generation, most = MODELS[model]
    tokenizer = Tokenizers().for_model(model)
    off, widths, within = [], [], 0
    for document in DOCUMENTS:
        text, real = document["text"], document["tokens"][generation]
        measure = tokenizer.measure(tokenizer.count(text), text)
        assert measure.error_percent is not None
        within += abs(real - measure.tokens) <= measure.tokens * measure.error_percent / 100 + 0.5
        off.append(100 * abs(real - measure.tokens) / real)
        widths.append(measure.error_percent)

    assert within >= 0.93 * len(DOCUMENTS)
    assert median(widths) <= 20
    assert mean(off) <= most


@pytest.mark.parametrize("model", ["my-own-model", "grok-5", "kimi-k2", "glm-5", "minimax-m3"])
def test_a_model_without_a_vocabulary_has_a_band_that_covers_any(model: str) -> None:
    tokenizer = Tokenizers().for_model(model)
    within, widths = [], []
    for document in DOCUMENTS:
        measure = tokenizer.measure(tokenizer.count(document["text"]), document["text"])
        assert measure.error_percent is not None
        widths.append(measure.error_percent)
        within += [
            abs(document["tokens"][one] - measure.tokens) <= measure.tokens * widths[-1] / 100 + 0.5
            for one in ("llama3", "qwen3.5", "deepseek", "tekken", "gemma", "command")
        ]

    assert mean(within) >= 0.92
    assert median(widths) <= 40


def test_every_generation_that_a_name_can_have_is_counted_or_approximated() -> None:
    rows = {generation for _, generation, _ in families._ROWS}
    inside = {generation for _, generation in families._INSIDE}

    for generation in rows | inside | {"claude", "claude-4.7", families.UNKNOWN}:
        assert generation in vocabularies.ENGINES or estimates.fitted(generation), generation


def test_every_generation_has_a_band_for_every_kind() -> None:
    for generation in estimates.generations():
        row = estimates.fitted(generation)
        assert row is not None
        assert len(row.weights) == 1 + len(NAMES)
        for document in DOCUMENTS:
            assert 0 < row.bands.percent(500, document["text"]) < 400
        assert row.bands.percent(2) > row.bands.percent(2_000)


def test_features_add_up_over_pieces() -> None:
    for document in DOCUMENTS:
        text = document["text"]
        parts = [features(part) for part in split(text, 64)]
        assert [sum(column) for column in zip(*parts, strict=True)] == list(features(text))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "prose"),
        ("This is what people write to each other, and nothing else.", "prose"),
        ("Elle a été très étonnée de découvrir où l'été s'était caché.", "latin"),
        ("def f(x):\n    return [g(y) for y in x if y._z]\n" * 9, "code"),
        ('{"id": 1, "name": "a", "tags": ["x", "y"], "at": "2026-01-02T03:04:05"}\n' * 9, "json"),
        ("12.5 33.81 -4.07 99.2\n" * 40, "numbers"),
        ("2026-01-02 03:04:05.678 INFO worker 17: job 48213 finished in 12 ms\n" * 9, "log"),
        ("q83vEjRWeJq83vEjRWeJq0NDRERFRkZHR0hISQ" * 20, "base64"),
        ("d41d8cd98f00b204e9800998ecf8427e\n" * 20, "base64"),
        ("function(a,b){return a[b]||(a[b]={})};var c=d(e,f);" * 40, "minified"),
        ("      \t\t        \n" * 30, "white"),
        ("上下文窗口里装着整段对话，所以每一次请求都会变长。", "cjk"),
        ("토큰의 수는 글자의 수와 같지 않습니다.", "cjk"),
        ("Все люди рождаются свободными и равными", "cyrillic"),
        ("يولد جميع الناس أحرارا متساوين", "arabic"),
        ("सभी मनुष्यों को गौरव और अधिकारों", "indic"),
        ("มนุษย์ทั้งหลายเกิดมามีอิสระ", "thai"),
        ("ყველა ადამიანი იბადება თავისუფალი", "script"),
    ],
)
def test_a_text_is_known_by_its_beginning(text: str, kind: str) -> None:
    assert kind_of(text) == kind
