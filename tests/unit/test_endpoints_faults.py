"""Tests endpoints that fail or are slow.

Each failure must be reported in time, with a reason. A slow server gets only requests that are still
needed, newest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sidecar.config.settings import Endpoint
from sidecar.endpoints import endpoints as endpoints_module
from sidecar.endpoints import http as http_module
from sidecar.endpoints.endpoints import Endpoints
from sidecar.endpoints.outcome import LARGEST_CHARACTERS, EndpointCount, Miss
from tests.unit.endpoints_fake_server import (
    CHAT_PATH,
    Asked,
    Canned,
    FakeServer,
    Reset,
    Route,
    expect_count,
    expect_miss,
    llamacpp,
    words,
)

HTML = Canned(body=b"<!doctype html><html><body>Welcome</body></html>")


PATIENCE = 60.0
"""Timeout in seconds for steps that usually take much less time."""


async def hang(_: Asked) -> Canned:
    await asyncio.sleep(10 * PATIENCE)
    return Canned()


def reset(_: Asked) -> Canned:
    raise Reset


def with_tokenize(told: Route) -> FakeServer:
    server = llamacpp()
    server.routes["POST", "/tokenize"] = told
    return server


def always(told: Route) -> FakeServer:
    server = FakeServer()
    server.otherwise = told
    return server


LOADING = Canned(
    503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
)
UNAUTHORIZED = Canned(
    401, {"error": {"type": "authentication_error", "message": "Invalid API Key"}}
)
LM_STUDIO_200 = Canned(body={"error": "Unexpected endpoint or method. (POST /tokenize)"})
BIG = Canned(body=b'{"tokens":[' + b"1," * 4_000_000 + b"1]}")

EMPTY, TEXT, ALWAYS_3 = (Canned(body={"tokens": tokens}) for tokens in ([], "x", [1, 2, 3]))

FAULTS: dict[str, tuple[Callable[[Route], FakeServer], Route, str]] = {
    "404 to all": (always, Canned(404, {"detail": "Not Found"}), "unsupported"),
    "404 to the count": (with_tokenize, Canned(404, {"error": {"code": 404}}), "unsupported"),
    "405": (with_tokenize, Canned(405), "unsupported"),
    "500 to all": (always, Canned(500, b"oops"), "unreachable"),
    "500 to the count": (with_tokenize, Canned(500), "unreachable"),
    "429": (with_tokenize, Canned(429), "unreachable"),
    "502 in HTML": (always, Canned(502, b"<html>Bad Gateway</html>"), "unreachable"),
    "HTML to all": (always, HTML, "unsupported"),
    "HTML to the count": (with_tokenize, HTML, "unsupported"),
    "not even JSON": (with_tokenize, Canned(body=b'{"tokens":[1,'), "unsupported"),
    "no tokens": (with_tokenize, EMPTY, "unsupported"),
    "no tokens to all": (always, EMPTY, "unsupported"),
    "tokens a string": (with_tokenize, TEXT, "unsupported"),
    "tokens a string to all": (always, TEXT, "unsupported"),
    "tokens of strings": (with_tokenize, Canned(body={"tokens": ["a", "b"]}), "unsupported"),
    "tokens a true": (with_tokenize, Canned(body={"tokens": [True]}), "unsupported"),
    "an error in a 200": (with_tokenize, LM_STUDIO_200, "unsupported"),
    "an error in every 200": (always, LM_STUDIO_200, "unsupported"),
    "a list": (with_tokenize, Canned(body=[1, 2]), "unsupported"),
    "a number": (always, Canned(body=3), "unsupported"),
    "a huge body": (with_tokenize, BIG, "unsupported"),
    "always 3": (with_tokenize, ALWAYS_3, "lying"),
    "always 3 to all": (always, ALWAYS_3, "lying"),
    "more tokens than bytes": (
        with_tokenize,
        lambda asked: Canned(body={"tokens": [7] * (20 * len(asked.body["content"]))}),
        "lying",
    ),
    "401": (always, UNAUTHORIZED, "auth"),
    "403 to the count": (with_tokenize, Canned(403, {"error": "forbidden"}), "auth"),
    "loading": (always, LOADING, "loading"),
    "hangs": (always, hang, "unreachable"),
    "hangs at the count": (with_tokenize, hang, "unreachable"),
    "resets": (always, reset, "unreachable"),
    "resets at the count": (with_tokenize, reset, "unreachable"),
}


class Clock:
    """A clock for the endpoints. It runs only when a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(endpoints_module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Reduce timeouts to a quarter, so that tests of hanging servers take less time."""

    def shorten(case: str) -> None:
        assert (endpoints_module.PROBE_SECONDS, http_module.REQUEST_SECONDS) == (2.0, 2.0)
        if "hang" in case:
            monkeypatch.setattr(endpoints_module, "PROBE_SECONDS", 0.5)
            monkeypatch.setattr(http_module, "REQUEST_SECONDS", 0.5)

    return shorten


@pytest.mark.parametrize("case", FAULTS)
async def test_each_fault_is_a_miss_within_the_time_limit(
    case: str, short_times: Callable[[str], None]
) -> None:
    make, fault, kind = FAULTS[case]
    short_times(case)
    async with make(fault) as server:
        endpoints = server.endpoints()
        miss = await endpoints.count_text("tiny", "hello world", PATIENCE)
        assert isinstance(miss, Miss), miss
        assert miss.kind == kind, miss.reason
        assert miss.reason
        [row] = endpoints.capabilities()
        assert (row.text, row.model) == (kind, "tiny")
        asked = len(server.asked)
        expect_miss(await endpoints.count_text("tiny", "hello again", PATIENCE))
        assert len(server.asked) == asked, "an outcome is remembered, not asked for again"


@pytest.mark.parametrize("case", FAULTS)
async def test_faults_after_the_probe(case: str, short_times: Callable[[str], None]) -> None:
    make, fault, _ = FAULTS[case]
    broken = make(fault)
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello world"))
        server.routes, server.otherwise = broken.routes, broken.otherwise
        short_times(case)
        text = "hello world, hello hello hello world"
        miss = await endpoints.count_text("tiny", text, PATIENCE)
        if case.startswith("always 3"):
            assert isinstance(miss, EndpointCount), "three tokens in this text cannot be refuted"
        else:
            assert isinstance(miss, Miss)


async def test_fault_is_noticed_after_the_caller_stopped_waiting() -> None:
    async with always(hang) as server:
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", "hello", 0.05), "late")
        expect_miss(await endpoints.count_text("tiny", "hello", PATIENCE), "unreachable")
        assert len(server.asked) == 1


async def test_timeout_of_a_large_text_does_not_disable_the_endpoint(
    short_times: Callable[[str], None],
) -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello world"))
        tokenize, server.routes["POST", "/tokenize"] = server.routes["POST", "/tokenize"], hang
        short_times("hangs")
        expect_miss(await endpoints.count_text("tiny", "hello " * 40_000, PATIENCE), "unreachable")
        server.routes["POST", "/tokenize"] = tokenize
        expect_count(await endpoints.count_text("tiny", "hello world", PATIENCE))


async def test_a_redirect_is_never_followed() -> None:
    async with llamacpp() as other, llamacpp() as server:
        for route in list(server.routes):
            server.routes[route] = Canned(307, headers={"location": f"{other.url}{route[1]}"})
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", "hello world"), "unsupported")
        assert other.asked == []


async def test_server_is_used_again_after_an_outage() -> None:
    server = llamacpp()
    async with server:
        endpoints = Endpoints([Endpoint(url=server.url)], True, {})
        expect_count(await endpoints.count_text("tiny", "hello world"))
    expect_miss(await endpoints.count_text("tiny", "hello world"), "unreachable")
    async with server:
        assert isinstance(await endpoints.count_text("tiny", "hello world"), Miss), "it backs off"
        await endpoints.probe(model="tiny")
        expect_count(await endpoints.count_text("tiny", "hello world"))
        await endpoints.aclose()


async def test_loading_server_is_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(endpoints_module.DELAYS, "loading", (0.05, 0.05))
    async with llamacpp() as server:
        routes, server.routes = server.routes, {}
        server.otherwise = LOADING
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", "hello world"), "loading")
        server.routes = routes
        await asyncio.sleep(0.1)
        expect_count(await endpoints.count_text("tiny", "hello world"))


async def test_backoff_of_an_unreachable_server_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    endpoints = Endpoints([Endpoint(url="http://127.0.0.1:9")], True, {})
    asked = {}
    for clock.now in (0.0, 4.9, 5.1, 15.0, 15.2, 35.1, 35.3):  # 5 s, then 10 s, then 20 s
        expect_miss(await endpoints.count_text("tiny", "hello", PATIENCE))
        asked[clock.now] = endpoints.requests
    assert asked == {0.0: 1, 4.9: 1, 5.1: 2, 15.0: 2, 15.2: 3, 35.1: 3, 35.3: 4}
    await endpoints.aclose()


@pytest.mark.parametrize(
    ("fault", "passed", "left"),
    [(Canned(status=500), 3.0, 2.0), (LOADING, 0.5, 1.5), (LOADING, 2.5, None)],
    ids=["unreachable", "loading", "over"],
)
async def test_time_until_a_server_is_asked_again_runs_down(
    fault: Canned, passed: float, left: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with FakeServer() as server:
        server.otherwise = fault
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", "hello", PATIENCE))
        clock.now = passed
        assert endpoints.unavailable_for("tiny") == left


async def test_long_load_does_not_lengthen_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with FakeServer() as server:
        server.otherwise = LOADING
        endpoints = server.endpoints()
        for _ in range(10):
            expect_miss(await endpoints.count_text("tiny", "hello", PATIENCE))
            clock.now += 3.0
        server.otherwise = Canned(status=500)
        expect_miss(await endpoints.count_text("tiny", "hello", PATIENCE))
        assert endpoints.unavailable_for("tiny") == 5.0


TURNS = [{"role": "user", "content": "hi"}]


def held(server: FakeServer) -> asyncio.Event:
    """Delay the counts of texts until the returned event is set."""
    real, gate = server.routes["POST", "/tokenize"], asyncio.Event()

    async def slow(asked: Asked) -> Canned:
        await gate.wait()
        assert callable(real)
        answer = real(asked)
        assert isinstance(answer, Canned)
        return answer

    server.routes["POST", "/tokenize"] = slow
    return gate


async def test_late_count_is_requested_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello", PATIENCE))
        answers = held(server)
        waits = []
        for text in ("one", "two", "three", "four"):
            miss = expect_miss(await endpoints.count_text("tiny", text, 0.01))
            waits.append(endpoints.retry_delay("tiny", miss.kind))
            clock.now += 5.0 if text == "one" else 0.0  # The second pause begins after the first.
        assert waits == [5.0, 10.0, 10.0, 10.0]
        clock.now += 4.0
        assert endpoints.retry_delay("tiny", "late") == 6.0
        assert endpoints.retry_delay("tiny", "unsupported") is None
        answers.set()
        clock.now += 10.0
        expect_count(await endpoints.count_text("tiny", "five", PATIENCE))
        clock.now += 1.0
        answers.clear()
        expect_miss(await endpoints.count_text("tiny", "six", 0.01))
        assert endpoints.retry_delay("tiny", "late") == 5.0, "an answer in time ends the series"
        answers.set()


async def test_steady_counting_does_not_hide_that_the_model_fell_asleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    async with llamacpp() as server:
        endpoints = server.endpoints()
        for clock.now in (0.0, 0.6):
            expect_count(await endpoints.count_text("tiny", f"at {clock.now}", PATIENCE))
        server.routes["GET", "/props"] = Canned(body={"is_sleeping": True})
        clock.now = 1.2  # a second after the probe, but not after the last count
        asked = server.posts()
        miss = expect_miss(await endpoints.count_text("tiny", "at 1.2", PATIENCE))
        assert "asleep" in miss.reason
        assert server.posts() == asked


@pytest.mark.parametrize("what", ["text", "chat"])
async def test_large_request_without_an_answer_is_repeated_less_and_less_often(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello", PATIENCE))
        server.routes["POST", "/tokenize" if what == "text" else CHAT_PATH] = hang
        monkeypatch.setattr(http_module, "REQUEST_SECONDS", 0.05)
        monkeypatch.setattr(http_module, "_LARGE_BYTES", 10)
        waits = []
        for _ in range(3):
            if what == "text":
                miss = await endpoints.count_text("tiny", "hello " * 9, PATIENCE)
            else:
                miss = await endpoints.count_chat("tiny", TURNS, None, PATIENCE)
            assert isinstance(miss, Miss)
            assert (miss.kind, endpoints.unavailable_for("tiny")) == ("unreachable", None)
            wait = endpoints.retry_delay("tiny", miss.kind)
            assert wait is not None
            waits.append(wait)
            clock.now += wait
        assert waits == [5.0, 10.0, 20.0]


@pytest.mark.parametrize("fault", [Canned(500), Canned(429), reset])
async def test_chats_are_not_repeated_before_the_server_is_probed_again(
    fault: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with llamacpp() as server:
        server.routes["POST", CHAT_PATH] = fault
        endpoints = server.endpoints()
        waits = []
        for _ in range(3):
            expect_count(await endpoints.count_text("tiny", "hello", PATIENCE))
            miss = expect_miss(await endpoints.count_chat("tiny", TURNS, None, PATIENCE))
            wait = endpoints.retry_delay("tiny", miss.kind)
            assert wait is not None
            waits.append(wait)
            clock.now += wait
        assert waits == [5.0, 10.0, 20.0]


@pytest.mark.parametrize("chats", [Canned(404), None], ids=["texts only", "chats too"])
async def test_late_texts_are_requested_less_often_whatever_chats_and_small_texts_do(
    chats: Canned | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with llamacpp() as server:
        if chats is not None:
            server.routes["POST", CHAT_PATH] = chats
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello", PATIENCE))
        gate, waits = held(server), []
        for number in range(3):
            gate.set()
            expect_count(await endpoints.count_text("tiny", str(number), PATIENCE))
            answer = await endpoints.count_chat("tiny", TURNS, None, PATIENCE)
            assert isinstance(answer, Miss) == (chats is not None)
            gate.clear()
            expect_miss(await endpoints.count_text("tiny", f"large {number}", 0.01))
            wait = endpoints.retry_delay("tiny", "late")
            assert wait is not None
            waits.append(wait)
            clock.now += wait
        assert waits == [5.0, 10.0, 20.0]


async def test_recovered_server_has_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello", PATIENCE))
        gate = held(server)
        expect_miss(await endpoints.count_text("tiny", "late", 0.01))
        assert endpoints.retry_delay("tiny", "interrupted") == 5.0
        gate.set()
        expect_count(await endpoints.count_text("tiny", "again", PATIENCE))
        assert endpoints.retry_delay("tiny", "interrupted") == 0.0


async def test_abandoned_request_is_not_sent_and_causes_no_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch)
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello", PATIENCE))
        asked = len(server.asked)
        unwanted = expect_miss(
            await endpoints.count_text("tiny", "unwanted", PATIENCE, lambda: False), "late"
        )
        [row] = endpoints.capabilities()
        assert (row.text, row.chat, len(server.asked)) == ("supported", "supported", asked)
        assert endpoints.retry_delay("tiny", "interrupted") == 0.0
        assert endpoints.retry_delay("tiny", unwanted.kind) == 5.0


async def test_closed_idle_connection_is_not_a_miss() -> None:
    async with llamacpp() as server:
        server.headers["connection"] = "close"
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "hello world"))
        before = len(server.asked)
        for number in range(5):
            text = "hello " * (number + 1)
            expect_count(await endpoints.count_text("tiny", text), words(text))
        assert len(server.asked) == before + 5, "a close that was announced is no new server"
        await endpoints.aclose()


async def test_too_long_text_is_not_sent() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", "x " * LARGEST_CHARACTERS), "too-large")
        assert server.asked == []


async def test_count_after_closing_is_a_miss() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        await endpoints.aclose()
        expect_miss(await endpoints.count_text("tiny", "hello"), "closed")
        assert await endpoints.limit("tiny") is None
        assert await endpoints.probe(model="tiny") == endpoints.capabilities()
        assert server.asked == []


async def test_closing_during_a_count() -> None:
    async with always(hang) as server:
        endpoints = server.endpoints()
        counting = asyncio.create_task(endpoints.count_text("tiny", "hello", 30))
        await asyncio.sleep(0.2)
        await endpoints.aclose()
        expect_miss(await asyncio.wait_for(counting, PATIENCE))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable timeouts, so that tests of delayed responses pass on slow machines."""
    monkeypatch.setattr(http_module, "REQUEST_SECONDS", PATIENCE)
    monkeypatch.setattr(endpoints_module, "PROBE_SECONDS", PATIENCE)


def texts(server: FakeServer) -> list[str]:
    """Return the texts that the server was asked to count."""
    return [one.body["content"] for one in server.asked if one.path == "/tokenize"]


async def until(state: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not state():
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("patient")
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


@pytest.mark.usefixtures("patient")
async def test_newest_request_is_sent_first() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        await endpoints.count_text("tiny", "hello world", PATIENCE)
        gate = held(server)
        server.asked.clear()
        queued: list[str] = []

        async def count(name: str) -> EndpointCount | Miss:
            def wanted() -> bool:
                queued.append(name)
                return True

            return await endpoints.count_text("tiny", name, PATIENCE, wanted)

        asking = []
        for name in ("one", "two", "three"):
            asking.append(asyncio.ensure_future(count(name)))
            await until(lambda: len(queued) == len(asking))
        await until(lambda: texts(server) == ["one"])
        gate.set()
        assert not [one for one in await asyncio.gather(*asking) if isinstance(one, Miss)]
        assert texts(server) == ["one", "three", "two"]


@pytest.mark.usefixtures("patient")
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
