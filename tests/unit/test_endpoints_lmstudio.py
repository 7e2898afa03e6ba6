"""Tests counting with LM Studio's SDK: only loaded models are used, and failures are handled.

LM Studio is not available here, so a module with the same interface replaces the SDK.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from sidecar.endpoints import endpoints as endpoints_module
from sidecar.endpoints import local_servers
from tests.unit.endpoints_fake_server import Canned, FakeServer, expect_count, expect_miss, words
from tests.unit.endpoints_server_forms import SERVERS

HELLO = "hello world, how many tokens are you?"


@dataclass
class FakeSdk:
    """Records calls to the SDK. A test can make it fail or hang."""

    loaded: list[str] = field(default_factory=lambda: ["tiny"])
    failure: Exception | None = None
    hangs: bool = False
    counted: list[str] = field(default_factory=list)
    entered: list[asyncio.Task[Any] | None] = field(default_factory=list)
    left: list[asyncio.Task[Any] | None] = field(default_factory=list)

    async def count(self, text: str) -> int:
        self.counted.append(text)
        if self.hangs:
            await asyncio.sleep(60)
        if self.failure:
            raise self.failure
        return words(text)


class Handle:
    def __init__(self, sdk: FakeSdk, identifier: str) -> None:
        self.sdk, self.identifier = sdk, identifier

    async def count_tokens(self, text: str) -> int:
        return await self.sdk.count(text)


class Llm:
    def __init__(self, sdk: FakeSdk) -> None:
        self.sdk = sdk

    async def list_loaded(self) -> list[Handle]:
        return [Handle(self.sdk, name) for name in self.sdk.loaded]


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> FakeSdk:
    fake = FakeSdk()

    class AsyncClient:
        def __init__(self, host: str) -> None:
            assert host.startswith("127.0.0.1:")
            self.llm = Llm(fake)

        async def __aenter__(self) -> AsyncClient:
            fake.entered.append(asyncio.current_task())
            return self

        async def __aexit__(self, *_: object) -> None:
            fake.left.append(asyncio.current_task())

    module = ModuleType("lmstudio")
    module.__spec__ = ModuleSpec("lmstudio", None)
    module.AsyncClient = AsyncClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lmstudio", module)
    return fake


def lm_studio() -> FakeServer:
    server = SERVERS["lm studio without its SDK"].start()
    server.otherwise = Canned(body={"error": "Unexpected endpoint or method."})
    return server


async def test_sdk_counts_a_loaded_model_without_post_requests(sdk: FakeSdk) -> None:
    async with lm_studio() as server:
        endpoints = server.endpoints()
        count = expect_count(await endpoints.count_text("tiny", HELLO))
        assert (count.tokens, count.server) == (words(HELLO), "lmstudio")
        assert sdk.counted[-1] == HELLO
        assert server.posts() == []
        assert len(sdk.entered) == 1, "one WebSocket for the session"
        assert await endpoints.limit("tiny") == 6000
    assert sdk.left == sdk.entered, "left by the task that entered it"


async def test_unloaded_model_is_not_loaded_by_a_count(sdk: FakeSdk) -> None:
    sdk.loaded = ["other"]
    async with lm_studio() as server:
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", HELLO), "unknown")
        assert sdk.counted == []


async def test_a_failing_sdk_is_a_miss_and_backs_off(sdk: FakeSdk) -> None:
    async with lm_studio() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", HELLO))
        sdk.failure = RuntimeError("websocket closed")
        for _ in range(2):
            expect_miss(await endpoints.count_text("tiny", HELLO), "unreachable")
        assert len(sdk.counted) == 2 + 1 + 1, "two in the probe, one good, one bad"


async def test_a_hanging_sdk_is_a_miss(sdk: FakeSdk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_servers.SDK_SECONDS == 2.0
    monkeypatch.setattr(local_servers, "SDK_SECONDS", 0.2)
    sdk.hangs = True
    async with lm_studio() as server:
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", HELLO, 10), "unreachable")


async def test_without_the_sdk_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints_module, "sdk_is_installed", lambda: False)
    async with lm_studio() as server:
        endpoints = server.endpoints()
        miss = expect_miss(await endpoints.count_text("tiny", HELLO), "unsupported")
        assert "'.[lmstudio]'" in miss.reason
