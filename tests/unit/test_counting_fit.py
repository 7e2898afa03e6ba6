"""Tests that shortened text is within the limit, and that characters and lines are not split."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.config.settings import Truncation
from sidecar.counting.count_result import Method
from sidecar.counting.fitting import allowance, fit
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.counting.tokenizer_interface import Tokenizer

TOKENIZERS = Tokenizers()
MODES: list[Truncation] = ["start", "middle", "end"]
LINES = "".join(f"line {number} of the text\n" for number in range(200))

AWKWARD = st.sampled_from(
    [
        *("the ", "def f(x):\n", "\n", "\r\n", "\r", "\t", "  ", "日本語", "한국어", "é"),
        *("e\u0301", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪🇫🇷", "\ud83d", "\ude00", "{'a': 1}"),
        *("12345", "/", "\x00", "internationalization", "aGVsbG8gd29ybGQ=", " ", "\u200d"),
        "<|endoftext|>",
    ]
)
TEXTS = st.one_of(st.text(max_size=200), st.lists(AWKWARD, max_size=120).map("".join))


@pytest.mark.parametrize("model", ["gpt-5", "gpt-4", "claude-opus-4-7", "no-such-model"])
@settings(max_examples=120, deadline=None)
@given(text=TEXTS, tokens=st.integers(0, 150), mode=st.sampled_from(MODES))
def test_fit_never_exceeds_the_limit_and_is_idempotent(
    model: str, text: str, tokens: int, mode: Truncation
) -> None:
    tokenizer = TOKENIZERS.for_model(model)

    fitted = fit(text, tokens, mode, tokenizer)

    assert tokenizer.count(fitted.text) == fitted.tokens <= tokens
    assert fitted.changed == (fitted.text != text)
    assert not fit(fitted.text, tokens, mode, tokenizer).changed


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, tokens=st.integers(0, 60), mode=st.sampled_from(MODES))
def test_kept_text_is_part_of_the_original(text: str, tokens: int, mode: Truncation) -> None:
    kept = fit(text, tokens, mode, TOKENIZERS.for_model("gpt-5"), "\n[…]\n").text
    parts = re.split(r"(\r\n|\r|\n)\[…\]\1", kept)  # the marker has the line ends of the text

    if len(parts) > 1 and "[…]" not in text:
        assert mode == "middle"
        head, _, tail = parts
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) <= len(text)
    elif mode == "end":
        assert text.endswith(kept)
    else:
        assert text.startswith(kept)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tokens", [150, 400, 1000, 1399])
def test_short_lines_are_kept_whole_and_fill_the_allowance(mode: Truncation, tokens: int) -> None:
    fitted = fit(LINES, tokens, mode, TOKENIZERS.for_model("gpt-5"))

    kept = [line for line in fitted.text.split("\n") if line not in ("", "...")]
    assert set(kept) <= set(LINES.split("\n"))
    assert fitted.tokens >= 0.95 * tokens
    assert fitted.removed_lines == 200 - len(kept)
    assert fitted.removed_tokens == TOKENIZERS.for_model("gpt-5").count(LINES) - fitted.tokens


def test_the_middle_keeps_both_ends_around_the_marker() -> None:
    fitted = fit(LINES, 100, "middle", TOKENIZERS.for_model("gpt-5"))

    assert fitted.text.startswith("line 0 of the text\nline 1 of the text\n")
    assert "of the text\n...\nline 19" in fitted.text
    assert fitted.text.endswith("line 199 of the text\n")


@pytest.mark.parametrize("mode", MODES)
def test_one_long_line_is_cut_between_two_tokens(mode: Truncation) -> None:
    tokenizer = TOKENIZERS.for_model("gpt-5")
    line = "internationalization of tokenizers " * 300
    fitted = fit(line, 97, mode, tokenizer)

    assert 0.95 * 97 <= fitted.tokens <= 97
    for part in fitted.text.split("\n...\n"):
        cut = len(part) if line.startswith(part) else len(line) - len(part)
        apart = tokenizer.count(line[:cut]) + tokenizer.count(line[cut:])
        assert apart == tokenizer.count(line)


def test_marker_is_omitted_if_it_does_not_fit() -> None:
    tokenizer = TOKENIZERS.for_model("gpt-5")
    fitted = fit("one two three four five six seven", 3, "middle", tokenizer, "[… left out …]")

    assert fitted.text == "one two three"


@pytest.mark.parametrize("mode", MODES)
def test_limit_of_zero_yields_an_empty_text(mode: Truncation) -> None:
    fitted = fit("a\nb\n", 0, mode, TOKENIZERS.for_model("gpt-5"))

    assert (fitted.text, fitted.tokens, fitted.removed_lines) == (
        "",
        0,
        2,
    )
    assert fitted.changed
    assert not fit("", 0, mode, TOKENIZERS.for_model("gpt-5")).changed


@pytest.mark.parametrize(
    "character", ["👩\u200d👩\u200d👧", "e\u0301\u0323", "👍🏽", "🇩🇪", "\ud83d\ude00"]
)
@pytest.mark.parametrize("mode", MODES)
def test_no_character_is_split(character: str, mode: Truncation) -> None:
    text = character * 40
    for tokens in range(1, 60):
        kept = fit(text, tokens, mode, TOKENIZERS.for_model("gpt-5"), "|").text
        assert kept.replace("|", "").replace(character, "") == ""


class GuessTokenizer(Tokenizer):
    """Estimates one token per four characters, with a configurable error band."""

    name = "guess"
    method: Method = "estimate"

    def __init__(self, error_percent: float | None) -> None:
        self.error_percent = error_percent

    def count(self, text: str) -> int:
        return -(-len(text) // 4)


@pytest.mark.parametrize(("error", "aim"), [(None, 800), (25.0, 800), (100.0, 500), (0.0, 1000)])
def test_fit_reserves_the_error_band_of_estimates(error: float | None, aim: int) -> None:
    tokenizer = GuessTokenizer(error)

    assert allowance(1000, tokenizer) == aim
    fitted = fit("a few words in a line\n" * 1000, 1000, "start", tokenizer)
    assert 0.95 * aim <= fitted.tokens <= aim


class IrregularTokenizer(Tokenizer):
    """A tokenizer whose counts are neither monotonic nor additive. Plug-ins may count like this."""

    name = "odd"

    def count(self, text: str) -> int:
        return len(text) + 7 * (len(text) % 3) if text else 0


@given(text=st.text(max_size=80), tokens=st.integers(0, 90), mode=st.sampled_from(MODES))
def test_fit_with_an_irregular_tokenizer_stays_within_the_limit(
    text: str, tokens: int, mode: Truncation
) -> None:
    tokenizer = IrregularTokenizer()

    assert tokenizer.count(fit(text, tokens, mode, tokenizer).text) <= tokens


def test_fitting_a_large_text_counts_it_about_twice() -> None:
    inner = TOKENIZERS.for_model("gpt-5")
    counted = 0

    class WatchedTokenizer(Tokenizer):
        name, method, error_percent = inner.name, inner.method, inner.error_percent

        def count(self, text: str) -> int:
            nonlocal counted
            counted += len(text)
            return inner.count(text)

    text = LINES * 50
    fit(text, 40_000, "middle", WatchedTokenizer())

    assert counted < 3 * len(text)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unit", ["a", " ", "\n"])
def test_text_without_split_points_is_counted_a_few_times(
    unit: str, mode: Truncation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search does not count the whole text at each step."""
    tokenizer, text = TOKENIZERS.for_model("gpt-5"), unit * 250_000
    count, counted = tokenizer.count, 0
    half = count(text) // 2

    def counting(part: str) -> int:
        nonlocal counted
        counted += len(part)
        return count(part)

    monkeypatch.setattr(tokenizer, "count", counting)
    fitted = fit(text, half, mode, tokenizer)
    assert 0.9 * half <= fitted.tokens <= half
    assert counted < 5 * len(text)
