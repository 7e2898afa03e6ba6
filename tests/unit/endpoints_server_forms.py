"""A table of responses from every kind of model server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.cases import read_table
from tests.unit.endpoints_fake_server import Asked, Canned, FakeServer, Route, listing, words


def number(name: str, field: str, **more: Any) -> Any:
    """Return a route that reads text from the field `name` and returns its count in `field`."""
    return lambda asked: Canned(body={field: words(asked.body[name]), **more})


def ids(name: str, field: str = "tokens") -> Any:
    return lambda asked: Canned(body={field: list(range(words(asked.body[name])))})


def with_bos(name: str, field: str) -> Any:
    """Return a route like that of `number`, but add a begin-of-text token to the count."""
    return lambda asked: Canned(body={field: len(asked.body[name]) // 3 + 1})


def vllm_tokenize(asked: Asked) -> Canned:
    text = asked.body.get("prompt") or str(asked.body["messages"])
    tokens = list(range(words(text)))
    return Canned(body={"count": len(tokens), "max_model_len": 4096, "tokens": tokens})


def tgi_tokenize(asked: Asked) -> Canned:
    text = asked.body["inputs"]
    one = {"text": "x", "start": 0, "stop": 1}
    return Canned(body=[{"id": n, **one} for n in range(words(text))])


def tgi_chat(asked: Asked) -> Canned:
    tokens = [{"id": n} for n in range(words(str(asked.body["messages"])))]
    return Canned(body={"tokenize_response": tokens, "templated_text": ""})


def litellm_count(source: str) -> Any:
    def route(asked: Asked) -> Canned:
        assert asked.query == "call_endpoint=true"
        total = 7 + words(asked.body["messages"][0]["content"])
        return Canned(body={"total_tokens": total, "count_source": source})

    return route


ANSWERS: dict[str, Route] = {
    "vllm_tokenize": vllm_tokenize,
    "tgi_tokenize": tgi_tokenize,
    "tgi_chat": tgi_chat,
    "localai_tokenize": ids("content"),
    "koboldcpp_count": number("prompt", "value"),
    "llama_cpp_python_count": with_bos("input", "count"),
    "litellm_count": litellm_count("anthropic_api"),
    "litellm_estimate": litellm_count("local_estimate"),
}
MODELS = ("GET", "/v1/models")


def make_route(
    answer: str | None = None,
    models: Sequence[str] = (),
    headers: dict[str, str] | None = None,
    text: str | None = None,
    body: Any = None,
    **extra: Any,
) -> Route:
    """Return the route that a table describes. `extra` are fields of each listed model."""
    if answer is not None:
        return ANSWERS[answer]
    if models:
        body = listing(*models, **extra).body
    return Canned(body=body if text is None else text.encode(), headers=headers or {})


class ServerForm(msgspec.Struct):
    """What a kind of server responds, and what is found out about it."""

    server: str
    routes: dict[str, dict[str, Any]]
    text: bool = False
    chat: bool = False
    limit: int | None = None

    def start(self) -> FakeServer:
        """Return a server with these routes."""
        routes = {tuple(route.split()): make_route(**self.routes[route]) for route in self.routes}
        return FakeServer(routes)  # type: ignore[arg-type] # a method and a path


SERVERS = msgspec.convert(read_table("model_servers"), dict[str, ServerForm])
