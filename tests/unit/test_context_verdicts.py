"""Tests threshold warnings, the verdicts of `context/preflight`, and the choice of the current
session.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.conversations.changes import (
    AlternativeModels,
    models_that_fit,
    preflight,
    with_cost,
)
from sidecar.conversations.context_protocol import (
    Alternative,
    ContextUsage,
    PreflightParams,
    PreflightResult,
)
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import budget_message, context_usage, crossed, occupancy
from sidecar.conversations.sections import largest_tools
from sidecar.cost.context_costs import CapReason, CostVerdict
from sidecar.counting.model_list import search
from sidecar.endpoints.outcome import Capability
from sidecar.models import catalogue
from sidecar.models.window import level, severity
from sidecar.workspace.services import Services
from sidecar.workspace.sessions import SESSIONS_KEPT, SessionRegistry
from sidecar.workspace.state_folder import State
from tests.unit.context_fakes import (
    ENVELOPE,
    PRIMING,
    Clock,
    FakeCounter,
    calls,
    output,
    reply,
    session,
    user,
    window,
)

WARN_AT = (0.8, 0.95)
MODELS = [
    Alternative(model="small", context_window=800),
    Alternative(model="huge", context_window=1_000_000),
    Alternative(model="large", context_window=200_000),
    Alternative(model="large", context_window=200_000),
    Alternative(model="fake-1", context_window=300_000),
]


class TestThresholds:
    """Tests thresholds at 80 and 95 % of the usable window."""

    @pytest.mark.parametrize(
        ("tokens", "reached", "shown"),
        [(799, 0, "ok"), (800, 1, "warning"), (949, 1, "warning"), (950, 2, "error")],
    )
    def test_levels(self, tokens: int, reached: int, shown: str) -> None:
        assert level(tokens, 1_000, WARN_AT) == reached
        assert severity(tokens, 1_000, WARN_AT) == shown

    def test_severity_without_numbers_or_thresholds_is_ok(self) -> None:
        assert severity(None, 1_000, WARN_AT) == "ok"
        assert severity(10**6, 1_000, ()) == "ok"

    def test_warning_is_sent_again_after_a_reset_or_in_a_larger_window(self) -> None:
        made = session(turns=[user("x" * 999)])
        usage = context_usage(made, window(1_200, 200))
        assert crossed(0, usage, WARN_AT) == (2, True)
        assert crossed(2, usage, WARN_AT) == (2, False)
        assert crossed(2, context_usage(made, window(2_000, 200)), WARN_AT) == (0, False)
        made.reset()
        assert crossed(2, context_usage(made, window(1_200, 200)), WARN_AT) == (0, False)

    def test_message_suggests_remedies_only_over_the_window(self) -> None:
        conversation = session(FakeCounter(method="estimate"), [user("x" * 1_000)])
        offers = {"alternatives": MODELS[2:3], "heaviest": [("search", 900)]}
        near = budget_message(context_usage(conversation, window(1_300, 0)), **offers)  # type: ignore[arg-type]
        assert near == "Context ~77 % full: ~1,007 of 1,300 tokens, fake-1."
        over = budget_message(context_usage(conversation, window(1_000, 0)), **offers)  # type: ignore[arg-type]
        assert "Models with enough room: large (200,000)." in over
        assert "Largest tool schemas: search (900)." in over


def ask(made: Conversation, limit: int = 1_000, **params: Any) -> PreflightResult:
    asked = msgspec.convert(params, PreflightParams)
    return preflight(made, window(limit, 100), asked, models=MODELS, warn_at=WARN_AT)


class TestPreflight:
    """Tests the verdict on a request before it is sent."""

    def test_preflight_adds_the_request_to_the_occupancy(self) -> None:
        conversation = session(turns=[user("x" * 100)])
        answer = ask(conversation, text="y" * 50, turns=[{"role": "user", "content": "z" * 10}])
        assert answer.prompt_tokens == 160 + 3 * ENVELOPE + PRIMING
        assert answer.available == 900 - answer.prompt_tokens
        assert (answer.verdict, answer.fits, answer.reasons, answer.alternatives) == (
            "ok",
            True,
            [],
            [],
        )
        assert occupancy(conversation).tokens == 107

    def test_preflight_of_an_empty_session(self) -> None:
        assert ask(session()).prompt_tokens == 0
        assert ask(session(), text="x").prompt_tokens == 1 + ENVELOPE + PRIMING

    @pytest.mark.parametrize(
        ("size", "verdict", "fits", "kinds"),
        [
            (848, "ok", True, []),
            (849, "warn", True, ["budget"]),
            (893, "warn", True, ["budget"]),
            (894, "warn", False, ["window", "fallback"]),
            (993, "warn", False, ["window", "fallback"]),
            (994, "refuse", False, ["window", "fallback"]),
        ],
    )
    def test_verdicts(self, size: int, verdict: str, fits: bool, kinds: list[str]) -> None:
        answer = ask(session(), text="x" * size)
        assert (answer.verdict, answer.fits) == (verdict, fits)
        assert [reason.kind for reason in answer.reasons] == kinds

    def test_an_output_that_has_no_room_does_not_fit(self) -> None:
        answer = ask(session(), text="x" * 493, maxOutputTokens=500)
        assert (answer.fits, answer.verdict) == (True, "ok")
        answer = ask(session(), text="x" * 494, maxOutputTokens=500)
        assert (answer.fits, answer.verdict, answer.reasons[0].kind) == (False, "warn", "output")

    def test_preflight_suggests_larger_models_and_names_large_tools(self) -> None:
        conversation = session()
        conversation.set_tools(
            [
                {"name": "light"},
                {"type": "function", "function": {"name": "heavy", "description": "d" * 900}},
            ]
        )
        answer = ask(conversation)
        assert [alternative.model for alternative in answer.alternatives] == ["large", "huge"]
        assert largest_tools(conversation.tools, conversation.counter)[0][0] == "heavy"
        assert "heavy" in answer.reasons[-1].message

    def test_tool_without_tokens_of_its_own_is_not_listed(self) -> None:
        conversation = session()
        conversation.set_tools([{"name": "t"}, {"name": "heavy", "description": "d" * 900}])
        assert [name for name, _ in largest_tools(conversation.tools, conversation.counter)] == [
            "heavy"
        ]

    def test_suggested_window_includes_the_reserve(self) -> None:
        found = models_that_fit(MODELS, 701, "other", 100)
        assert [one.model for one in found] == ["large", "fake-1", "huge"]
        assert models_that_fit(MODELS, 700, "other", 100)[0].model == "small"

    def test_a_tool_whose_result_would_not_fit_is_deferred(self) -> None:
        conversation = session(turns=[user("x" * 300)])
        call = {"name": "read", "expectedTokens": 593}
        assert not ask(conversation, pendingToolCall=call).defer_tool
        answer = ask(conversation, pendingToolCall={**call, "expectedTokens": 594})
        assert (answer.defer_tool, answer.verdict, answer.fits) == (True, "warn", True)
        assert answer.reasons[0].kind == "tool"

    def test_expected_result_is_the_largest_earlier_result(self) -> None:
        conversation = session(turns=[calls("c1"), output("c1", "r" * 400), user("again")])
        assert ask(conversation, pendingToolCall={"name": "read"}).defer_tool
        assert not ask(conversation, pendingToolCall={"name": "write"}).defer_tool

    def test_the_more_severe_verdict_counts(self) -> None:
        answer = ask(session(), text="x" * 849)
        cap = CapReason(kind="hardCap", message="over the hard cap")
        both = with_cost(answer, CostVerdict("refuse", None, (cap,)))
        assert both.verdict == "refuse"
        assert [reason.kind for reason in both.reasons] == ["budget", "hardCap"]
        assert with_cost(answer, CostVerdict("ok", None)).verdict == "warn"


class TestWhichSession:
    """Tests that the current session is the most recently updated one."""

    def test_the_most_recently_updated(self, sessions: SessionRegistry) -> None:
        clock = Clock()
        first, second = (Conversation(name, FakeCounter(), now=clock) for name in "ab")
        sessions.put(first)
        sessions.put(second)
        assert sessions.newest_conversation() is second
        clock.on(seconds=1)
        first.append([reply("x")])
        assert sessions.newest_conversation() is first
        assert (sessions.find("b"), sessions.find("c")) == (second, None)

    def test_least_recently_used_sessions_are_removed(self, sessions: SessionRegistry) -> None:
        for number in range(SESSIONS_KEPT + 4):
            sessions.put(Conversation(f"s{number}", FakeCounter()))
        sessions.put(Conversation("s4", FakeCounter()))
        sessions.put(Conversation("new", FakeCounter()))
        assert len(sessions.conversations) == SESSIONS_KEPT
        assert sessions.find("s5") is None
        assert sessions.find("s4") is not None

    def test_restored_session_is_removed_before_a_used_one(self, sessions: SessionRegistry) -> None:
        sessions.put(Conversation("newer", FakeCounter()), is_restored=True)
        sessions.put(Conversation("older", FakeCounter()), is_restored=True)
        for number in range(SESSIONS_KEPT - 1):
            sessions.put(Conversation(f"s{number}", FakeCounter()))
        assert sessions.find("older") is None
        assert sessions.find("newer") is not None


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[SessionRegistry]:
    services = Services(state=State(tmp_path))
    yield services.sessions(services.roots.default)
    services.workers.close()


class TestAlternatives:
    """Tests which models are suggested when the context is full."""

    def of(self, model: str, limit: int, rows: tuple[Capability, ...] = ()) -> list[str]:
        usage = ContextUsage(tokens=limit, limit=limit, reserve=0)
        offers = AlternativeModels(model, FakeCounter(model), None, rows).fitting(usage)
        assert all(offer.context_window > limit for offer in offers)
        return [offer.model for offer in offers]

    def test_models_of_the_same_maker_with_a_larger_window(self) -> None:
        catalogue.refresh()
        found = self.of("gpt-4o", 128_000)
        assert found
        openai = {info.id for info in search() if info.provider == "openai"}
        assert openai.issuperset(found)
        assert self.of("no-such-model", 4_096) == []

    @pytest.mark.parametrize(
        "model",
        [
            "gpt-3.5-turbo",
            "gpt-4o",
            "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            "global.amazon.nova-2-lite-v1:0",
            "gemini-1.0-pro-vision-001",
            "mistral-7b",
            "claude-v1",
        ],
    )
    def test_only_usable_models_are_suggested(self, model: str) -> None:
        """The price list also contains models that few users have: fine-tuned and regional ones."""
        catalogue.refresh()
        known = AlternativeModels(model, FakeCounter(model), None, ()).all()
        names = [one.model for one in known]
        assert names
        assert not [name for name in names if name.startswith(("ft:", "regional.", "eu."))]
        assert not [name for name in names if name.endswith(("-", ".ft-", ":free", ":extended"))]
        regions = {name.split(".")[0] for name in names if name.startswith(("us.", "global."))}
        assert regions <= {model.split(".")[0]}

    @pytest.mark.parametrize("model", ["claude-sonnet-4-5", "gpt-4o", "gemini-2.5-flash", "gpt-4"])
    def test_retired_models_are_not_suggested(self, model: str) -> None:
        """The price list also contains models that are no longer available."""
        catalogue.refresh()
        names = {one.model for one in AlternativeModels(model, FakeCounter(model), None, ()).all()}
        retired = {"claude-2", "claude-3-5-sonnet", "gpt-4-32k", "o1-preview", "gemini-1.5-pro"}
        retired |= {"claude-opus-4", "claude-sonnet-4-0", "gpt-3.5-turbo", "gemini-2.0-flash"}
        assert names
        assert not names & {*retired, "ada", "claude-v1", "gpt-4.5-preview", "gemini-pro"}
        assert names & {"claude-sonnet-4-5", "gpt-4.1", "gemini-2.5-pro"}

    def test_models_of_other_makers_are_not_suggested(self) -> None:
        """Google also offers Claude, for example, but not through the Gemini API."""
        catalogue.refresh()
        for model, guest in (("gemini-pro", "claude"), ("mistral-7b", "glm")):
            known = AlternativeModels(model, FakeCounter(model), None, ()).all()
            assert known
            assert not [one.model for one in known if guest in one.model]

    def test_models_of_the_same_endpoint_are_suggested(self) -> None:
        def row(endpoint: str, model: str, limit: int) -> Capability:
            return Capability(
                endpoint=endpoint,
                model=model,
                server="llamacpp",
                text="supported",
                chat="supported",
                limit=limit,
                checked_at=None,
            )

        rows = (row("a", "tiny", 4_096), row("a", "big", 8_192), row("b", "other", 9_999))
        assert self.of("tiny", 4_096, rows) == ["big"]
        assert self.of("no-such-model", 4_096, rows) == []
