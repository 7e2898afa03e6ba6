"""Tests estimators and plug-ins. Safe splits must not change the total of heuristic units."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.settings import Truncation
from sidecar.counting import estimators
from sidecar.counting.estimators import (
    Estimator,
    EstimatorTokenizer,
    find_estimator,
    heuristic_units,
)
from sidecar.counting.fitting import allowance, fit
from sidecar.counting.tokenizer_choice import CalibratedTokenizer, Tokenizers
from sidecar.text.document import split
from tests.cases import read_rows
from tests.unit.held_out import DOCUMENTS

BUILT_IN = ["default", "heuristic", "whitespace", "chars4"]
TEXTS = st.one_of(
    st.text(max_size=80),
    st.lists(
        st.sampled_from(
            ["hello ", "World", "\n", "  ", "{}", "12345", "日本語", "한국", "привет ", "\ud800"]
        )
    ).map("".join),
)


def named(name: str) -> Estimator:
    found = find_estimator(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", BUILT_IN)
def test_empty_text_has_no_tokens(name: str) -> None:
    assert named(name).estimate("") == 0


@pytest.mark.parametrize(("text", "tokens"), read_rows("counting", "whitespace_estimates"))
def test_whitespace_estimator_adds_up_words_and_marks(text: str, tokens: int) -> None:
    assert named("whitespace").estimate(text) == tokens


@given(TEXTS)
def test_chars4_is_a_quarter_rounded_down(text: str) -> None:
    assert named("chars4").estimate(text) == len(text) // 4


@given(TEXTS)
def test_heuristic_units_add_up_at_safe_split_points(text: str) -> None:
    assert sum(map(heuristic_units, split(text, 1))) == heuristic_units(text)


@given(st.text(min_size=1, max_size=60))
def test_any_text_is_at_least_one_token(text: str) -> None:
    assert named("default").estimate(text) >= 1


# Held-out text of each kind, which was not used for fitting the heuristic. Estimates may be too
# high, but not too low. `python -m benchmarks estimates` prints the errors for real files.
KINDS = {
    "code": "def percent(tokens: int, limit: int) -> int:\n    return min(100, 100 * tokens // limit)\n",
    "prose": "The last request's whole prompt, plus that reply's output, plus what came since.\n",
    "json": '{"id": 17, "name": "item-17", "tags": ["a", "b"], "price": 21.25},\n',
    "log": "2026-11-21T22:31:07.123Z INFO [worker-3] GET /api/v1/users/4711 status=200 took=3.2ms\n",
    "chinese": "上下文窗口里装着整段对话，所以每一次请求都会变长。\n",
    "japanese": "トークン数は文字数と同じではありません。モデルごとに違います。\n",
    "korean": "모델마다 토큰을 나누는 방법이 다릅니다. 그래서 추정이 어렵습니다.\n",
    "russian": "Каждый запрос снова несёт с собой весь разговор целиком.\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_is_near_the_real_count(kind: str) -> None:
    text = KINDS[kind] * 20
    real = Tokenizers().for_model("gpt-5").count(text)

    assert 0.8 < named("default").estimate(text) / real < 1.35


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimators, "_registry", dict(estimators._registry))
    monkeypatch.setattr(estimators, "_plugins_read", False)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0, 3.0])
def test_band_of_a_plugin_contains_the_heuristics_band(share: float) -> None:

    class Shares(estimators.Heuristic):
        name = "shares"

        def estimate(self, text: str) -> int:
            return round(share * super().estimate(text))

    for document in DOCUMENTS:
        text = document["text"]
        plain, plug_in = (
            Tokenizers(estimator="heuristic").for_model("x"),
            EstimatorTokenizer(Shares()),
        )
        known, shown = (one.measure(one.count(text), text[:4096]) for one in (plain, plug_in))
        assert known.error_percent is not None
        assert shown.error_percent is not None
        low, high = (known.tokens * (1 + sign * known.error_percent / 100) for sign in (-1, 1))
        half = shown.tokens * shown.error_percent / 100
        assert shown.tokens - half <= low + 2
        assert shown.tokens + half >= high - 2


def test_every_count_of_a_plugin_has_a_band() -> None:
    for plug_in in (EstimatorTokenizer(_Constant()), EstimatorTokenizer(_Broken())):
        assert plug_in.error_percent is not None
        for text in ("a", "word " * 2000, "上下文" * 50, "\ud800"):
            for sample in (text[:4096], ""):
                shown = plug_in.measure(plug_in.count(text), sample)
                assert shown.error_percent is not None
                assert shown.error_percent > 0


@pytest.mark.usefixtures("registry")
def test_registered_estimator_may_fail() -> None:
    estimators.register(_Broken())

    assert Tokenizers(estimator="broken").for_model("some-model").count("hello world") == 2
    assert EstimatorTokenizer(_Broken()).count("") == 0


class _Broken(estimators.Chars4):
    name = "broken"

    def estimate(self, text: str) -> int:
        raise RuntimeError(f"SECRET {text}")


class _Constant(estimators.Chars4):
    name = "constant"

    def estimate(self, text: str) -> int:
        return 7 if text else 0


class _Halves(estimators.Chars4):
    name = "halves"

    def estimate(self, text: str) -> int:
        return len(text) // 2


def test_installed_plugins_are_values_of_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plug-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[token_sidecar.estimators]\n"
        "halves = tests.unit.test_counting_estimators:_Halves\n"
        "broken = tests.unit.test_counting_estimators:_Broken\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(estimators, "_plugins_read", False)
    monkeypatch.setattr(estimators, "_registry", dict(estimators._registry))
    monkeypatch.setattr(estimators, "_unusable", {})
    halves = Tokenizers(estimator="halves")
    assert halves.for_model("no-such-model").count("x" * 40) == 20
    assert halves.problems == []
    for name in ("broken", "absent"):
        other = Tokenizers(estimator=name)
        assert other.for_model("no-such-model").count("hello world") == 2
        [problem] = other.problems
        assert name in problem
        assert "SECRET" not in problem
    assert {"halves", "default"} <= set(estimators.names())
    assert set(estimators.unusable_plugins()) == {"broken"}


class _NoName:
    def estimate(self, text: str) -> int:
        return len(text)


class _NotEmpty(estimators.Chars4):
    def estimate(self, text: str) -> int:
        return len(text) + 1


def _make() -> Estimator:
    return _Halves()


_ready = _Halves()


@pytest.mark.parametrize(
    ("written", "problem"), read_rows("counting", "plugins", "written", "problem")
)
@pytest.mark.usefixtures("registry")
def test_valid_and_invalid_plugins(
    written: str,
    problem: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A plug-in may be a class, a factory function or an estimator. If it is invalid, this is
    reported and the default estimator is used.
    """
    point = EntryPoint("mine", f"{__name__}:{written}", estimators.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([point]))
    monkeypatch.setattr(estimators, "_unusable", {})
    tokenizers = Tokenizers(estimator="mine")
    tokenizer = tokenizers.for_model("no-such-model")
    if problem is None:
        assert (tokenizer.name, tokenizer.count("x" * 40)) == ("halves", 20)
        assert (tokenizers.problems, caplog.messages) == ([], [])
    else:
        default = Tokenizers().for_model("no-such-model")
        assert (tokenizer.name, tokenizer.count("x" * 40)) == (
            default.name,
            default.count("x" * 40),
        )
        assert [one.startswith(problem) for one in tokenizers.problems] == [True]
        assert caplog.messages == tokenizers.problems


@pytest.mark.usefixtures("registry")
def test_plugin_cannot_replace_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint(name, f"{__name__}:_Halves", estimators.ENTRY_POINTS)
        for name in ("heuristic", "default")
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints(points))
    monkeypatch.setattr(estimators, "_unusable", {})
    assert set(estimators.unusable_plugins()) == {"heuristic (plug-in)", "default (plug-in)"}
    assert type(named("heuristic")) is type(named("default")) is estimators.Heuristic
    assert Tokenizers(estimator="heuristic").problems == []


class _Words(estimators.Chars4):
    """Counts words, and splits text between words."""

    name = "words"
    modes: ClassVar[list[str]] = []

    def estimate(self, text: str) -> int:
        return len(text.split())

    def truncate(self, text: str, max_tokens: int, mode: str) -> str:
        self.modes.append(mode)
        words = text.split()
        return " ".join(words[-max_tokens:] if mode == "end" else words[:max_tokens])


class _Greedy(_Words):
    """Returns the whole text instead of shortening it."""

    name = "greedy"

    def truncate(self, text: str, max_tokens: int, mode: str) -> str:
        return f"{text} {max_tokens} {mode}"


class _Raising(_Words):
    name = "raising"

    def truncate(self, text: str, max_tokens: int, mode: str) -> str:
        raise RuntimeError(f"SECRET {text} {max_tokens} {mode}")


WORDS = "one two three four five six seven eight"


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("mode", "kept"), [("start", "one two"), ("end", "seven eight")])
def test_plugin_shortens_texts_itself(mode: Truncation, kept: str) -> None:
    estimators.register(_Words())
    tokenizer = Tokenizers(estimator="words").for_model("some-model")
    # Reported usage has shown that there are two tokens per word.
    learned = CalibratedTokenizer(tokenizer, 2.0, 0.0)

    assert allowance(5, tokenizer, WORDS) == 2  # the heuristic's error band applies
    assert fit(WORDS, 5, mode, tokenizer).text == kept
    fitted = fit(WORDS, 5, mode, learned)
    assert (fitted.text, fitted.tokens, fitted.removed_tokens) == (
        kept,
        4,
        12,
    )
    assert _Words.modes[-1] == mode


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("made", [_Greedy(), _Raising()])
def test_invalid_result_of_a_plugin_is_replaced_by_the_built_in_shortening(
    made: _Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimators, "_unusable", {})
    estimators.register(made)
    fitted = fit(WORDS, 5, "start", Tokenizers(estimator=made.name).for_model("some-model"))

    assert fitted.text.split() == ["one", "two"]
    assert "SECRET" not in str(estimators.unusable_plugins())
