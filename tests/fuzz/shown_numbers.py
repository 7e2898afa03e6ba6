"""Checks displayed numbers under stress: `python -m tests.fuzz.shown_numbers --operations 100000`.

A real server runs in this process, with threads that switch every microsecond. A client sends
random edits, messages, requests, calls and settings changes. No request may fail. At the end,
all displayed numbers must equal newly computed ones: document statuses, the conversation, its
sections, and findings. The exit code is 1 if a number differs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from sidecar.conversations.conversation import Conversation
from sidecar.counting.open_documents import FollowedText, Snapshot
from sidecar.server.features.status_updates import StatusUpdates
from sidecar.server.server import create_server
from sidecar.workspace.workspace import Workspace
from tests.protocol.client import Client

URIS = [f"file:///ws/doc{number}.md" for number in range(3)]
WORDS = (
    "budget ",
    "token ",
    "日本語 ",
    "def f(x): return x\n",
    "# Heading\n",
    "\n",
    "🙂",
    "- item\n",
)
MODELS = ("gpt-5", "gpt-4", "claude-sonnet-4-5", "unheard-of")
ESTIMATORS = ("heuristic", "chars4", "whitespace")
SESSIONS = ("a", "b", "c")
AT_ONCE = 16
INTERVAL_SECONDS = 1e-6


class Stress:
    """A client, and the text of each document that it has changed."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client, self.rng = client, random.Random(seed)
        self.texts = dict.fromkeys(URIS, "")
        self.doing: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (40, self.edit),
            (12, self.append),
            (10, self.usage),
            (10, self.count),
            (4, self.follow),
            (4, self.response),
            (3, self.preflight),
            (3, self.fit),
            (3, self.assemble),
            (3, self.record),
            (1, self.reset),
            (1, self.settings),
            (2, self.select),
        ]

    async def run(self, operations: int) -> None:
        """Run operations, many of them concurrently, followed by the checks."""
        for uri in URIS:
            self.client.open("", uri)
        weights = [weight for weight, _ in self.doing]
        pending: set[asyncio.Future[None]] = set()
        for number in range(1, operations + 1):
            (_, work) = self.rng.choices(self.doing, weights)[0]
            pending.add(asyncio.ensure_future(work()))
            if len(pending) >= AT_ONCE:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            self.client.unread.clear()
            if number % 10_000 == 0:
                print(f"{number} operations", flush=True)
        await asyncio.gather(*pending)
        for session in SESSIONS:
            await self.client.request("context/set", {"session": session, "model": "unheard-of"})
        for estimator in ESTIMATORS:
            await self.settle()
            await self.check()
            self.set("unheard-of", estimator)
            await self.client.count(URIS[0])
        await self.settle()
        await self.check()

    async def settle(self) -> None:
        scheduler = self.client.server.scheduler
        kinds = ("status", "diagnostics", "context", "settings")
        while any(key[0] in kinds for key in scheduler._jobs):
            await asyncio.sleep(0.005)

    async def check(self) -> None:
        """Compare all displayed numbers with newly computed ones."""
        server = self.client.server
        services = server.services
        for uri, text in self.texts.items():
            assert services.documents[uri].text == text
            workspace = services.roots.of_document(uri)
            fresh = await services.counts.count(Snapshot(text=text), None, workspace)
            sent = self.client.feature(StatusUpdates)._sent[uri]
            assert sent is not None
            assert sent.document is not None
            assert sent.document.tokens == fresh.tokens, (uri, sent.document.tokens, fresh.tokens)
            sessions = services.conversations(workspace).sessions
            session = sessions.find(None)
            assert isinstance(session, Conversation)
            derived = sessions.usage(session)
            assert sessions.context.usage == derived
            assert sent.context is None or sent.context.tokens == derived.tokens
            await self.check_session(session, workspace)
        today = await self.client.request("cost/detail", {"period": "day"})
        assert sent is not None
        assert sent.cost is not None
        costs = sent.cost.cost_usd or 0, today["totals"]["costUsd"]
        assert abs(costs[0] - costs[1]) < 1e-9, costs

    async def check_session(self, session: Conversation, workspace: Workspace) -> None:
        """Compare the cached counts of a conversation with new counts for the current settings."""
        services = self.client.server.services
        counter = services.conversations(workspace).counter(session.model)
        kept = [measure.tokens for measure in session.model_counts().turns.measures]
        assert kept == [counter.message(turn).tokens for turn in session.turns]
        for section in session.sections:
            assert isinstance(section.source, FollowedText)
            text = Snapshot(text=self.texts[section.source.place.uri])
            fresh = await services.counts.count(text, session.model, workspace)
            known = section.document_count_for(session.model)
            assert known is not None
            assert known.tokens == fresh.tokens, (session.model, known, fresh)

    def text(self) -> str:
        return "".join(self.rng.choices(WORDS, k=self.rng.choice((1, 3, 8, 60))))

    def session(self) -> str:
        return self.rng.choice(SESSIONS)

    async def edit(self) -> None:
        uri = self.rng.choice(URIS)
        text = self.text() if self.rng.random() < 0.05 else self.texts[uri] + self.text()
        if len(text) > 20_000:
            text = text[-2_000:]
        self.texts[uri] = text
        self.client.change({"text": text}, uri=uri)

    async def append(self) -> None:
        turn = {"role": self.rng.choice(("user", "assistant")), "content": self.text()}
        params: dict[str, Any] = {"session": self.session(), "turns": [turn]}
        if self.rng.random() < 0.3:
            usage = {"prompt_tokens": self.rng.randrange(10, 5_000), "completion_tokens": 9}
            params["usage"] = usage
        await self.client.request("context/append", params)

    async def usage(self) -> None:
        usage = await self.client.request("context/usage", {"session": self.session()})
        if usage["tokens"] is not None:
            assert sum(usage["breakdown"].values()) == usage["tokens"]

    async def count(self) -> None:
        answer = await self.client.count(self.rng.choice(URIS), models=["gpt-4", "gpt-5"])
        same = {model["tokens"] for model in answer["models"] if model["model"] == answer["model"]}
        assert same <= {answer["tokens"]}

    async def follow(self) -> None:
        section = {"name": "doc", "textDocument": {"uri": self.rng.choice(URIS)}}
        params = {"session": self.session(), "sections": [section], "persist": True}
        await self.client.request("context/set", params)

    async def response(self) -> None:
        usage = {"prompt_tokens": self.rng.randrange(10, 9_000), "completion_tokens": 20}
        choice = {"message": {"role": "assistant", "content": self.text()}, "finish_reason": "stop"}
        reply: dict[str, Any] = {
            "id": str(self.rng.random()),
            "model": self.rng.choice(MODELS),
            "choices": [choice],
        }
        reply |= {"object": "chat.completion", "usage": usage}
        await self.client.request(
            "context/response", {"session": self.session(), "response": reply}
        )

    async def preflight(self) -> None:
        await self.client.request(
            "context/preflight", {"session": self.session(), "text": self.text()}
        )

    async def fit(self) -> None:
        await self.client.request("context/append", {"session": "c", "turns": []})
        params = {"session": "c", "maxTokens": self.rng.randrange(50, 900), "apply": True}
        plan = await self.client.request("context/fit", params)
        assert plan["tokensAfter"] <= plan["tokensBefore"]

    async def assemble(self) -> None:
        await self.client.request(
            "context/assemble", {"session": self.session(), "user": self.text()}
        )

    async def record(self) -> None:
        usage = {"prompt_tokens": 100, "completion_tokens": 5}
        await self.client.request("cost/record", {"model": "gpt-5", "usage": usage})

    async def reset(self) -> None:
        await self.client.request("context/reset", {"session": "b"})

    async def settings(self) -> None:
        limit = self.rng.choice((None, 4_000, 100_000))
        section: dict[str, Any] = {"context": {"limit": limit}} if limit else {}
        self.set(self.rng.choice(MODELS), self.rng.choice(ESTIMATORS), **section)

    def set(self, model: str, estimator: str, **more: Any) -> None:
        section = {"model": model, "tokenize": {"estimator": estimator}, **more}
        changed = {"settings": {"tokenSidecar": section}}
        self.client.notify("workspace/didChangeConfiguration", changed)

    async def select(self) -> None:
        await self.client.request("context/append", {"session": "a", "turns": []})
        chosen = self.rng.choice((None, "a"))
        await self.client.request("context/select", {"session": chosen})


async def stress(operations: int, seed: int) -> None:
    """Run the operations and checks on a new server."""
    client = Client(create_server())
    client.patience_seconds = None
    client.ignore("status/update", "context/warning", "textDocument/publishDiagnostics")
    await client.initialize()
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL_SECONDS)
    try:
        await Stress(client, seed).run(operations)
    finally:
        sys.setswitchinterval(before)
        await client.aclose()


def main() -> int:
    """Run the test and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        os.environ["TOKEN_SIDECAR_STATE"] = state
        asyncio.run(stress(arguments.operations, arguments.seed))
    print(f"{arguments.operations} operations, seed {arguments.seed}: all numbers are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
