"""Tests that the examples in docs/reference/context.md and cost.md have the documented results."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.conversations import context_protocol as wire
from sidecar.conversations.changes import apply_reply
from sidecar.conversations.conversation import Conversation, apply_set
from sidecar.conversations.occupancy import context_usage
from sidecar.conversations.pruning import fit
from sidecar.conversations.turn_counts import Counter
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostRecordParams
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.replies import read_reply
from sidecar.models.window import Window, resolve_limit
from sidecar.workspace.sessions import DEFAULT_ID

PAGES = Path(__file__).parents[2] / "docs" / "reference"
BLOCK = re.compile(
    r"^<!-- (request (?P<method>\S+)|result) -->\n```json\n(?P<body>.*?)^```", re.M | re.S
)


def compare(page: str, ask: Callable[[str, Any], Any]) -> int:
    """Send the requests of a page, and compare the results. Return how many were compared."""
    answer, compared = None, 0
    for block in BLOCK.finditer((PAGES / page).read_text(encoding="utf-8")):
        body = json.loads(block["body"])
        if block["method"]:
            answer = msgspec.to_builtins(ask(block["method"], body))
            continue
        assert isinstance(answer, dict)
        assert {key: answer[key] for key in body} == body
        compared += 1
    return compared


class ExampleServer:
    """Answers the requests in the docs with the same functions as the server."""

    def __init__(self) -> None:
        self._known: dict[str, Conversation] = {}

    def ask(self, method: str, body: Any) -> Any:
        verb = method.removeprefix("context/")
        kind: Any = getattr(wire, f"{verb.capitalize()}Params")
        params = msgspec.convert(body, kind, strict=True)
        counter = Counter("gpt-5", Tokenizers().for_model("gpt-5"))
        name = params.session or DEFAULT_ID
        session = self._known.setdefault(name, Conversation(name, counter))
        window = Window(resolve_limit(request=session.limit))
        match verb:
            case "set":
                apply_set(session, params, self._no_document)
            case "append":
                session.append(params.turns)
            case "fit":
                return fit(session, params, window)
            case "assemble":
                return session.assembler.assemble(params, counter, session.sections, window.usable)
            case "response":
                reply = read_reply(params.response)
                return apply_reply(session, reply, window, tools=params.tools).result
        return context_usage(session, window)

    @staticmethod
    def _no_document(spec: object) -> Any:
        raise AssertionError(spec)


def test_examples_of_contexts_give_the_documented_results() -> None:
    assert compare("context.md", ExampleServer().ask) == 4


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set this process's time zone to UTC, which the examples use."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_utc")
def test_examples_of_costs_give_the_documented_results(tmp_path: Path) -> None:
    book = CostBook(tmp_path / "state")

    def ask(method: str, body: Any) -> Any:
        if method == "cost/record":
            return book.record(msgspec.convert(body, CostRecordParams))
        assert method == "cost/detail"
        return book.detail(msgspec.convert(body, CostDetailParams))

    assert compare("cost.md", ask) == 3
    book.close()
