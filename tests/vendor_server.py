"""A model server that speaks as Anthropic, OpenAI's Responses and Gemini do, and keeps what it got.

It calls a tool for each prompt and answers its result. What it reports as usage is made up, so that
a number that equals it can only have come from there.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

ANSWER = "It is 21 degrees and sunny there."
CALL = {"city": "Lisbon"}
PROMPT, CACHED, OUTPUT = 4_000, 1_000, 70
"""Tokens of the first call: its uncached prompt, what a cache gave, its output. Each call more has
100 more of the first."""


class Call(NamedTuple):
    """A request that came."""

    path: str
    body: dict[str, Any]
    uncached: int

    @property
    def prompt(self) -> int:
        """All of the prompt, as reported."""
        return self.uncached + CACHED

    @property
    def occupancy(self) -> int:
        """What the next request carries of this one and its reply."""
        return self.prompt + OUTPUT


def _anthropic(call: Call, number: int) -> list[dict[str, Any]]:
    usage: dict[str, Any] = {
        "input_tokens": call.uncached,
        "cache_read_input_tokens": CACHED,
        "output_tokens": 1,
    }
    usage["cache_creation_input_tokens"] = 0
    head: dict[str, Any] = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "content": [],
    }
    head |= {"model": call.body["model"], "usage": usage}
    block: dict[str, Any]
    if '"tool_result"' in json.dumps(call.body["messages"][-1]):
        block, reason = {"type": "text", "text": ""}, "end_turn"
        delta = {"type": "text_delta", "text": ANSWER}
    else:
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": "weather", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(CALL)}
        reason = "tool_use"
    return [
        {"type": "message_start", "message": head},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason},
            "usage": {"output_tokens": OUTPUT},
        },
        {"type": "message_stop"},
    ]


def _responses(call: Call, number: int) -> list[dict[str, Any]]:
    usage = {
        "input_tokens": call.prompt,
        "input_tokens_details": {"cached_tokens": CACHED},
        "output_tokens": OUTPUT,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": call.occupancy,
    }
    response = {"id": f"resp_{number}", "object": "response", "model": call.body["model"]}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    if call.body["input"][-1].get("type") == "function_call_output":
        events.append({"type": "response.output_text.delta", "delta": ANSWER})
        text = {"type": "output_text", "text": ANSWER}
        item = {"type": "message", "role": "assistant", "content": [text]}
    else:
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
        item |= {"name": "weather", "arguments": json.dumps(CALL)}
    whole = response | {"output": [item | {"status": "completed"}], "usage": usage}
    return [*events, {"type": "response.completed", "response": whole | {"status": "completed"}}]


def _gemini(call: Call, number: int) -> list[dict[str, Any]]:
    part: dict[str, Any] = {"functionCall": {"name": "weather", "args": CALL, "id": f"c{number}"}}
    if "functionResponse" in json.dumps(call.body["contents"][-1]):
        part = {"text": ANSWER}
    content = {"role": "model", "parts": [part]}
    usage = {
        "promptTokenCount": call.prompt,
        "cachedContentTokenCount": CACHED,
        "candidatesTokenCount": OUTPUT,
        "totalTokenCount": call.occupancy,
    }
    return [
        {
            "candidates": [{"content": content, "finishReason": "STOP"}],
            "usageMetadata": usage,
            "modelVersion": "gemini-2.5-pro",
            "responseId": f"gemini-{number}",
        }
    ]


_SPEAKERS = {"/v1/messages": _anthropic, "/v1/responses": _responses, "/v1beta/": _gemini}


class VendorServer:
    """Answers by the vendor whose path is asked; every reply is streamed."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> VendorServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """What a request is answered with."""
        call = Call(path, body, PROMPT + 100 * len(self.calls))
        self.calls.append(call)
        speak = next(made for start, made in _SPEAKERS.items() if path.startswith(start))
        return speak(call, len(self.calls))


def _handler(server: VendorServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            events = server.events(self.path, body)
            text = "".join(f"data: {json.dumps(each)}\n\n" for each in events).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler
