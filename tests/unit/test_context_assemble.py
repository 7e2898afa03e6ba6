"""Tests `context/assemble`: reused counts, trimming in steps, and presets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.conversations.context_protocol import AssembleParams, AssembleResult
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.sections import (
    PRESETS,
    Assembler,
    Section,
    TextSource,
    last_lines,
    render,
)
from tests.cases import read_rows
from tests.unit.context_fakes import FakeCounter

ORDER = ["prefix", "mandates", "context", "logs", "user"]
LOGS = "".join(f"line {number}\n" for number in range(50))
FULL: dict[str, Any] = {
    "assistant": "You help.",
    "identity": "I am I.",
    "feedback": "Be short.",
    "tools": ["read(path)", {"name": "write", "parameters": {"b": 1, "a": 2}}],
    "mandates": ["never lie", "never delete"],
    "context": "one\n\ntwo\nthree\n",
    "logs": LOGS,
    "user": "What now?",
}


class Bench:
    """An assembler with a fake counter."""

    def __init__(self, *sections: Section) -> None:
        self.counter = FakeCounter()
        self.assembler = Assembler()
        self.sections = list(sections)

    def __call__(self, **params: Any) -> AssembleResult:
        asked = msgspec.convert(params, AssembleParams)
        return self.assembler.assemble(asked, self.counter, self.sections, 100_000)


def texts(made: AssembleResult) -> dict[str, str]:
    return {section.name: section.text for section in made.sections}


def trimmed(made: AssembleResult) -> list[str]:
    return [section.name for section in made.sections if section.trimmed]


def section(name: str, text: str, **fields: Any) -> Section:
    return Section(name=name, source=TextSource(text), **fields)


def test_request_below_the_limit_is_not_trimmed() -> None:
    result = Bench()(**FULL)
    assert [one.name for one in result.sections] == ORDER
    assert texts(result) == {
        "prefix": "You help.\n\nI am I.\n\nBe short.\n\n"
        'read(path)\n{"name": "write", "parameters": {"a": 2, "b": 1}}',
        "mandates": "never lie\nnever delete",
        "context": FULL["context"],
        "logs": LOGS,
        "user": "What now?",
    }
    assert result.tokens == sum(len(text) for text in texts(result).values())
    assert (result.trim_level, result.fits, result.skipped, trimmed(result)) == (
        0,
        True,
        False,
        [],
    )
    assert len(result.prefix_hash) == 64


def test_trimming_stops_at_the_first_sufficient_step() -> None:
    bench = Bench()
    whole = bench(**FULL).tokens
    five = "".join(f"line {number}\n" for number in range(45, 50))
    after_logs = whole - len(LOGS) + len(five)
    after_mandates = after_logs - len("never lie\nnever delete")
    line = "[Context trimmed: 3 items]"
    after_context = after_mandates - len(FULL["context"]) + len(line)

    result = bench(**FULL, maxTokens=whole - 1)
    assert (result.trim_level, result.tokens, trimmed(result)) == (1, after_logs, ["logs"])
    assert texts(result)["logs"] == five

    result = bench(**FULL, maxTokens=after_logs - 1)
    assert (result.trim_level, result.tokens) == (2, after_mandates)
    assert trimmed(result) == ["mandates", "logs"]
    assert texts(result)["mandates"] == ""

    result = bench(**FULL, maxTokens=after_mandates - 1)
    assert (result.trim_level, result.tokens) == (3, after_context)
    assert texts(result)["context"] == line
    assert result.fits == (after_context <= after_mandates - 1)
    assert texts(result)["prefix"] == texts(bench(**FULL))["prefix"]


def test_a_prefix_alone_over_its_budget() -> None:
    result = Bench()(assistant="You are a helpful assistant.", maxTokens=10)
    assert (result.trim_level, result.fits) == (3, False)
    assert texts(result) == {
        **dict.fromkeys(ORDER, ""),
        "prefix": "You are a helpful assistant.",
    }
    assert trimmed(result) == []


@pytest.mark.parametrize("sensor", ["heartbeat", "delegation"])
def test_some_sensors_get_no_context(sensor: str) -> None:
    bench = Bench(section("plan", "text"))
    result = bench(sensor=sensor, user="tick", focus="f")
    assert (result.skipped, result.context_cached, texts(result)["context"]) == (
        True,
        False,
        "",
    )
    assert texts(bench(sensor=sensor, context="given"))["context"] == ""
    result = bench(sensor="chat", user="tick", focus="f")
    assert (result.skipped, texts(result)["context"]) == (False, "## plan\n\ntext")


def test_prefix_cache_hit_miss_and_reset() -> None:
    conversation = Conversation("s", FakeCounter())

    def ask(**params: Any) -> AssembleResult:
        asked = msgspec.convert(params, AssembleParams)
        return conversation.assembler.assemble(asked, conversation.counter, [], 1_000)

    first = ask(assistant="a", tools=[{"name": "t", "x": 1}])
    assert not first.prefix_cached
    again = ask(assistant="a", tools=[{"x": 1, "name": "t"}], user="another question")
    assert again.prefix_cached
    assert (again.prefix_hash, again.sections[0]) == (first.prefix_hash, first.sections[0])
    other = ask(assistant="b")
    assert not other.prefix_cached
    assert other.prefix_hash != first.prefix_hash
    assert ask(assistant="a", tools=[{"name": "t", "x": 1}], mandates="new").prefix_cached
    conversation.reset()
    assert not ask(assistant="a", tools=[{"name": "t", "x": 1}]).prefix_cached


def test_similar_inputs_have_different_prefixes() -> None:
    bench = Bench()
    bench(assistant="a\n\nb")
    assert not bench(assistant="a", identity="b").prefix_cached


def test_context_is_rebuilt_only_when_its_keys_change() -> None:
    bench = Bench(section("plan", "first"))
    keys = {"focus": "f", "scope": "s", "memoryVersion": 1}
    assert not bench(**keys).context_cached
    bench.sections = [section("plan", "second")]
    result = bench(**keys)
    assert (result.context_cached, texts(result)["context"]) == (True, "## plan\n\nfirst")
    for change in ({"focus": "g"}, {"scope": "t"}, {"memoryVersion": 2}, {"memoryVersion": "2"}):
        keys |= change
        assert not bench(**keys).context_cached
        assert bench(**keys).context_cached
    assert texts(bench(**keys))["context"] == "## plan\n\nsecond"


def test_given_context_is_used_and_cached() -> None:
    bench = Bench(section("plan", "rendered"))
    assert not bench(focus="f").context_cached
    result = bench(focus="f", context="given")
    assert (result.context_cached, texts(result)["context"]) == (False, "given")
    assert bench(focus="f", context="given").context_cached
    assert texts(bench(focus="f"))["context"] == "given"
    assert not bench(focus="g", context="given").context_cached


def test_skipped_request_keeps_the_cached_context() -> None:
    bench = Bench(section("plan", "text"))
    bench(focus="f")
    bench(focus="other", sensor="heartbeat")
    assert bench(focus="f").context_cached


def test_items_are_sections_or_given_lines() -> None:
    bench = Bench(section("a", "x" * 99), section("b", "y\n" * 99))
    assert texts(bench(maxTokens=1))["context"] == "[Context trimmed: 2 items]"
    result = bench(maxTokens=1, context="one\n \n\ntwo")
    assert texts(result)["context"] == "[Context trimmed: 2 items]"


@pytest.mark.parametrize(("logs", "kept"), read_rows("context", "the_last_five_lines"))
def test_the_last_five_lines(logs: str, kept: str) -> None:
    assert last_lines(logs) == kept


def test_sections_are_cut_to_their_caps_first() -> None:
    bench = Bench(
        section("start", "abcdefgh", cap=4, truncation="start"),
        section("middle", "abcdefgh", cap=4),
        section("end", "abcdefgh", cap=4, truncation="end"),
        section("none", "abcdefgh", cap=0),
        section("free", "abcdefgh"),
    )
    assert texts(bench())["context"] == (
        "## start\n\nabcd\n\n## middle\n\nabgh\n\n## end\n\nefgh\n\n## free\n\nabcdefgh"
    )


def test_the_preset_mind() -> None:
    caps = PRESETS["mind"].caps
    assert (sum(caps.values()), PRESETS["mind"].total) == (8_000, 8_000)
    bench = Bench(*(section(name, name[0] * 5_000) for name in caps))
    result = bench(preset="mind")
    context = texts(result)["context"]
    assert len(context) <= 8_000
    shown = dict(one.split("\n\n") for one in context.removeprefix("## ").split("\n\n## "))
    assert list(shown) == list(caps)
    sizes = {name: len(text) for name, text in shown.items()}
    last = "configs_profiles"  # leaves room for the headings
    assert sizes == {**caps, last: sizes[last]}
    assert caps[last] - 150 < sizes[last] < caps[last]
    own = render([section("intent_summary", "x" * 900, cap=500)], FakeCounter(), "mind").text
    assert own.count("x") == 500


def test_sections_over_the_preset_are_shortened_by_priority() -> None:
    sections = [
        section("api_signatures", "a" * 2_200, priority=1),
        section("extra", "e" * 3_000),
        section("impl_snippets", "i" * 3_000, priority=2),
        section("also", "o" * 2_000),
    ]
    made = render(sections, FakeCounter(), "mind").text
    assert len(made) == 8_000
    assert [made.count(one) for one in ("a" * 2_200, "i" * 3_000, "o" * 2_000)] == [1, 1, 0]
    assert made.count("e" * 2_000) == 1


parts = st.text(alphabet="ab\n ", max_size=40)


@given(parts, parts, parts, parts, parts, st.integers(0, 150))
def test_any_request(
    assistant: str, mandates: str, context: str, logs: str, said: str, limit: int
) -> None:
    bench = Bench()
    params = {
        "assistant": assistant,
        "mandates": mandates,
        "context": context,
        "logs": logs,
        "user": said,
    }
    result = bench(**params, maxTokens=limit)
    assert result.tokens == sum(len(one.text) for one in result.sections)
    assert result.fits == (result.tokens <= limit)
    shown = texts(result)
    assert (shown["prefix"], shown["user"]) == (assistant, said)
    assert logs.endswith(shown["logs"])
    assert shown["mandates"] == ("" if result.trim_level >= 2 else mandates)
    if result.trim_level < 3:
        assert result.fits
        assert shown["context"] == context
    assert bench(**params, maxTokens=limit).sections == result.sections
