"""Tests that a slow server gets only requests that are still needed, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sidecar.config.settings import Endpoint
from sidecar.endpoints.endpoints import Endpoints
from sidecar.endpoints.outcome import Miss
from tests.unit.endpoints_fake_server import (
    Asked,
    Canned,
    FakeServer,
    expect_count,
    expect_miss,
    llamacpp,
)

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable timeouts, so that the tests pass on slow machines."""
    monkeypatch.setattr("sidecar.endpoints.http.REQUEST_SECONDS", PATIENCE)
    monkeypatch.setattr("sidecar.endpoints.endpoints.PROBE_SECONDS", PATIENCE)


def held(server: FakeServer) -> asyncio.Event:
    """Delay responses to count requests until the event is set."""
    real, gate = server.routes["POST", "/tokenize"], asyncio.Event()

    async def slow(asked: Asked) -> Canned:
        await gate.wait()
        answer = real(asked) if callable(real) else real
        return answer if isinstance(answer, Canned) else await answer

    server.routes["POST", "/tokenize"] = slow
    return gate


def texts(server: FakeServer) -> list[str]:
    """Return the texts that the server was asked to count."""
    return [one.body["content"] for one in server.asked if one.path == "/tokenize"]


async def until(state: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not state():
            await asyncio.sleep(0.01)


async def test_abandoned_request_is_never_sent() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        await endpoints.count_text("tiny", "hello world", PATIENCE)
        gate = held(server)
        server.asked.clear()
        first = asyncio.ensure_future(endpoints.count_text("tiny", "first", PATIENCE))
        await until(lambda: texts(server) == ["first"])
        hurried = [endpoints.count_text("tiny", f"hurried {n}", 0.01) for n in range(20)]
        assert {getattr(one, "kind", None) for one in await asyncio.gather(*hurried)} == {"late"}
        given_up = asyncio.ensure_future(endpoints.count_text("tiny", "given up", PATIENCE))
        await asyncio.sleep(0.01)
        given_up.cancel()
        last = asyncio.ensure_future(endpoints.count_text("tiny", "last", PATIENCE))
        await asyncio.sleep(0.01)
        gate.set()
        expect_count(await first)
        expect_count(await last)
        await until(lambda: not endpoints._asking)
        assert texts(server) == ["first", "last"]


async def test_newest_request_is_sent_first() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        await endpoints.count_text("tiny", "hello world", PATIENCE)
        gate = held(server)
        server.asked.clear()
        asking = []
        for name in ("one", "two", "three"):
            asking.append(asyncio.ensure_future(endpoints.count_text("tiny", name, PATIENCE)))
            await until(lambda: bool(texts(server)))
        gate.set()
        assert not [one for one in await asyncio.gather(*asking) if isinstance(one, Miss)]
        assert texts(server) == ["one", "three", "two"]


async def test_unsent_request_does_not_change_the_servers_status() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        await endpoints.count_text("tiny", "hello world", PATIENCE)
        asked = len(server.asked)
        count = expect_miss(await endpoints.count_text("tiny", "unwanted", PATIENCE, lambda: False))
        assert (count.kind, len(server.asked)) == ("late", asked)
        [row] = endpoints.capabilities()
        assert (row.text, row.chat) == ("supported", "supported")


async def test_restart_is_noticed_after_the_caller_stopped_waiting() -> None:
    """The response to a cancelled request still shows that the server has been restarted."""
    async with llamacpp("tiny") as server:
        endpoints = Endpoints([Endpoint(url=server.url)], True, {})
        expect_count(await endpoints.count_text("tiny", "hello world", PATIENCE))
    restarted = llamacpp("another")
    restarted._port = server._port
    gate = held(restarted)
    async with restarted:
        given_up = asyncio.ensure_future(endpoints.count_text("tiny", "given up", PATIENCE))
        await until(lambda: texts(restarted) == ["given up"])
        given_up.cancel()
        await asyncio.wait({given_up})
        gate.set()
        await until(lambda: not endpoints._asking)
        count = await endpoints.count_text("tiny", "hello again", PATIENCE)
        assert isinstance(count, Miss), "another model's count is none of this one"
        await endpoints.aclose()
