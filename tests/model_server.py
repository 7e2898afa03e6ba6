"""A model server for OpenAI's chat API that counts tokens with tiktoken.

It shares no code with token-sidecar. Requests are counted as in OpenAI's cookbook. The counts of
the request and the reply are reported as `usage`.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tests.truth import truth

PER_MESSAGE, PRIMING = 3, 3
"""How many tokens to add per message and before the reply, according to OpenAI's cookbook."""
PER_FUNCTION, PER_BLOCK, PER_PROPERTY, PER_ENUM, PER_ENUM_ITEM, PER_TOOLS = 7, 3, 3, -3, 3, 12
PER_CALL = 7


class Reply(msgspec.Struct, frozen=True):
    """A model's reply, consisting of text, tool calls and reasoning."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """The name and arguments (as JSON) of each tool call."""
    reasoning: int = 0
    """The reasoning tokens, which are included in the reported output and never sent back."""


class Received(msgspec.Struct):
    """A request, its token count, and its reply."""

    body: dict[str, Any]
    prompt: int
    output: int
    reasoning: int
    answered: threading.Event
    """Set by the test to let the server respond."""


def count_message(message: dict[str, Any]) -> int:
    """Return a message's token count, including its markup."""
    tokens = PER_MESSAGE + truth(message["role"])
    content = message.get("content")
    if isinstance(content, str):
        tokens += truth(content)
    for part in content if isinstance(content, list) else ():
        tokens += truth(part["text"])
    for call in message.get("tool_calls") or ():
        function = call["function"]
        tokens += PER_CALL + truth(function["name"]) + truth(function["arguments"])
    return tokens


def count_tools(tools: list[dict[str, Any]]) -> int:
    """Return the token count for a request's tools."""
    if not tools:
        return 0
    return PER_TOOLS + sum(_function(tool["function"]) for tool in tools)


def _function(function: dict[str, Any]) -> int:
    description = function.get("description", "")
    line = f"{function['name']}:{description.removesuffix('.')}"
    return PER_FUNCTION + truth(line) + _block(function.get("parameters") or {})


def _block(schema: Any) -> int:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        inner = schema.get("items") if isinstance(schema, dict) else None
        return _block(inner) if inner else 0
    tokens = PER_BLOCK if properties else 0
    for name, value in properties.items():
        kind, description = value.get("type", ""), value.get("description", "")
        tokens += PER_PROPERTY + truth(f"{name}:{kind}:{description.removesuffix('.')}")
        items = value.get("enum") or []
        tokens += PER_ENUM + sum(PER_ENUM_ITEM + truth(str(item)) for item in items) if items else 0
        tokens += _block(value)
    return tokens


def request_tokens(body: dict[str, Any]) -> int:
    """Return a whole request's token count."""
    messages = sum(map(count_message, body["messages"]))
    return messages + count_tools(body.get("tools") or []) + PRIMING


def reply_tokens(reply: Reply) -> int:
    """Return a reply's token count, excluding reasoning."""
    calls = sum(PER_CALL + truth(name) + truth(arguments) for name, arguments in reply.calls)
    return truth(reply.text) + calls


class ModelServer:
    """Answers each chat request with the result of `answer(body)`.

    If `waits` is true, the server responds only after the test has set the request's `answered`
    event. `usage` selects the chunk that contains the usage: an additional chunk (as in OpenAI's
    API) or the last chunk with content (as in Copilot's API).
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Reply],
        *,
        waits: bool = False,
        usage: str = "own chunk",
    ) -> None:
        self.answer, self.waits, self.usage = answer, waits, usage
        self.received: list[Received] = []
        self.arrived: queue.Queue[Received] = queue.Queue()
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        self._server = server
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self._thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for request in self.received:
            request.answered.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, body: dict[str, Any]) -> tuple[Received, Reply]:
        """Record a request, and return it with its reply.

        If `waits` is true, return only after the test has set the request's `answered` event.
        """
        reply = self.answer(body)
        output = reply_tokens(reply) + reply.reasoning
        received = Received(body, request_tokens(body), output, reply.reasoning, threading.Event())
        self.received.append(received)
        self.arrived.put(received)
        if self.waits:
            received.answered.wait(300)
        return received, reply

    def events(self, received: Received, reply: Reply) -> Iterator[dict[str, Any]]:
        """Return a streamed reply's chunks."""
        number = self.received.index(received) + 1
        head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1}
        head["model"] = received.body["model"]

        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        yield chunk({"role": "assistant", "content": ""})
        for piece in reply.text.split(" ") if reply.text else ():
            yield chunk({"content": piece + " "})
        for index, (name, arguments) in enumerate(reply.calls):
            function = {"name": name, "arguments": arguments}
            call = {"index": index, "id": f"call_{number}_{index}", "type": "function"}
            yield chunk({"tool_calls": [call | {"function": function}]})
        last = chunk({}, "tool_calls" if reply.calls else "stop")
        if self.usage == "own chunk":
            yield last
            last = head | {"choices": []}
        yield last if self.usage == "none" else last | {"usage": self.reported(received)}

    @staticmethod
    def reported(received: Received) -> dict[str, Any]:
        """Return a call's usage in OpenAI's format."""
        return {
            "prompt_tokens": received.prompt,
            "completion_tokens": received.output,
            "total_tokens": received.prompt + received.output,
            "completion_tokens_details": {"reasoning_tokens": received.reasoning},
        }


def _whole(server: ModelServer, received: Received, reply: Reply) -> dict[str, Any]:
    number = server.received.index(received) + 1
    message = {"role": "assistant", "content": reply.text}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": received.body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": server.reported(received),
    }


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            self._send(json.dumps({"object": "list", "data": [{"id": "gpt-4o"}]}).encode())

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            received, reply = server.take(json.loads(self.rfile.read(length)))
            if not received.body.get("stream"):
                self._send(json.dumps(_whole(server, received, reply)).encode())
                return
            events = [f"data: {json.dumps(event)}\n\n" for event in server.events(received, reply)]
            self._send("".join([*events, "data: [DONE]\n\n"]).encode(), "text/event-stream")

        def _send(self, body: bytes, kind: str = "application/json") -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
