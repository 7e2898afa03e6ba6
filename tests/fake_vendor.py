"""A fake model vendor on localhost for use by real coding agents.

It implements Anthropic's Messages API, OpenAI's Responses and Chat Completions APIs, and Gemini's
`generateContent`, with or without streaming. A `Script` determines the replies. `FakeVendor.calls`
lists the usage that was reported for each call. Tests compare this usage with the recorded usage.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple

Api = Literal["anthropic", "responses", "chat", "gemini"]
Kind = Literal["main", "subagent", "summary", "title", "other"]
Event = dict[str, Any]


class Usage(NamedTuple):
    """A call's tokens. `uncached`, `cache_read`, `cache_write` and `output` do not overlap."""

    uncached: int
    cache_read: int = 0
    cache_write: int = 0
    """All cache writes, including `cache_write_1h`."""
    output: int = 0
    """All output, including `reasoning`."""
    reasoning: int = 0
    cache_write_1h: int = 0

    @property
    def prompt(self) -> int:
        return self.uncached + self.cache_read + self.cache_write

    @property
    def context(self) -> int:
        """Return how large the conversation is after this call, in tokens."""
        return self.prompt + self.output


class ToolUse(NamedTuple):
    """A call to one of the agent's tools, as requested by the model."""

    name: str
    arguments: dict[str, Any] | str
    """The arguments, or the text for a custom tool of OpenAI's Responses API."""
    namespace: str | None = None
    """The tool's namespace in OpenAI's Responses API."""


@dataclass(frozen=True)
class Reply:
    """The model's reply to one request."""

    text: str = "Done."
    tools: tuple[ToolUse, ...] = ()
    prompt_tokens: int | None = None
    """The prompt size to report before the first summary. Else it is based on the request's size."""
    status: int = 200
    """The HTTP status. If it is not 200, the request fails and uses no tokens."""
    after: Kind | None = None
    """Delay this reply until a call of this kind, such as a sub-agent's, has been answered."""
    hangs: bool = False
    """Whether to send only the start of the reply, and wait until the client disconnects."""


@dataclass(frozen=True)
class Request:
    """The parts of a request that a script needs, in any vendor's format."""

    api: Api
    model: str
    body: dict[str, Any]
    streamed: bool

    @property
    def user_texts(self) -> list[str]:
        """The text of the user's messages, oldest first. Tool results are excluded."""
        return list(_USER_TEXTS[self.api](self.body))

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that the model may call, by name."""
        items = self.body.get("input")
        # Codex defines the tools of new models in an item of the input.
        defined = [item for item in items if "tools" in item] if isinstance(items, list) else []
        return tuple(_tool_names([*(self.body.get("tools") or []), *defined]))


@dataclass
class VendorCall:
    """A request, and the usage that the vendor reported for it."""

    number: int
    request: Request
    kind: Kind
    reply: Reply
    usage: Usage | None = None
    """The usage, or None if it was not sent to the client."""
    started_at: float = field(default_factory=time.monotonic)
    finished_at: float | None = None
    disconnected: bool = False

    @property
    def model(self) -> str:
        return self.request.model


class Script:
    """The replies to each prompt, used in order.

    A request is assigned to the latest user message that contains a known prompt. Requests without
    tools (for titles and summaries), and requests that contain a phrase in `side_calls`, are side
    calls.
    """

    def __init__(
        self, side_calls: dict[str, Kind] | None = None, *, turns_have_tools: bool = True
    ) -> None:
        """Create a script without replies.

        Args:
            side_calls: Phrases that identify side calls.
            turns_have_tools: Whether turns offer tools to the model. If not, a request without
                tools may belong to a turn.
        """
        self.side_calls = side_calls or {}
        self.summary_text = SUMMARY_TEXT
        """The reply to requests for a summary, in a format that some agents require."""
        self._turns_have_tools = turns_have_tools
        self._replies: dict[str, list[Reply]] = {}
        self._kinds: dict[str, Kind] = {}
        self._lock = threading.Lock()

    def on(self, prompt: str, *replies: Reply, kind: Kind = "main") -> None:
        """Add replies for calls with this prompt. Any further calls get "Done."."""
        self._replies[prompt] = list(replies)
        self._kinds[prompt] = kind

    def __call__(self, request: Request) -> tuple[Kind, Reply]:
        newest_first = request.user_texts[::-1]
        for phrase, kind in self.side_calls.items():
            if phrase in json.dumps(request.body, ensure_ascii=False):
                return kind, Reply(self.summary_text if kind == "summary" else SIDE_TEXT)
        if self._turns_have_tools and not request.tools:
            return "other", Reply(SIDE_TEXT)
        with self._lock:
            for text in newest_first:
                for prompt, replies in self._replies.items():
                    if prompt in text:
                        reply = replies.pop(0) if replies else Reply()
                        return self._kinds[prompt], reply
        return "main", Reply()


class PromptCache:
    """A vendor's prompt cache: it finds the longest prefix of a request that it has seen.

    A request's prefixes are its tools and system prompt, and then one more message each. A read
    starts the lifetime of all prefixes of the request anew. The clock moves only by `wait`.
    """

    def __init__(self, lifetime_seconds: float = 300.0) -> None:
        self.lifetime_seconds = lifetime_seconds
        self._now = 0.0
        self._expires: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait(self, seconds: float) -> None:
        """Let time pass, without waiting."""
        self._now += seconds

    def forget(self) -> None:
        """Drop everything, as vendors do without a reason that a client could know."""
        self._expires.clear()

    def usage(self, call: VendorCall) -> Usage:
        """Return a call's usage, and keep its prefixes."""
        digest, prompt, read = hashlib.sha256(call.model.encode()), 0, 0
        with self._lock:
            for block in _CACHE_BLOCKS[call.request.api](call.request.body):
                text = _without_marks(block)
                prompt += len(text) // 4
                digest.update(text.encode())
                name = digest.hexdigest()
                read = prompt if self._expires.get(name, -1.0) >= self._now else read
                self._expires[name] = self._now + self.lifetime_seconds
        output = 300 + 11 * call.number
        fresh = prompt - read
        if call.request.api == "anthropic":
            hour = fresh if '"ttl": "1h"' in json.dumps(call.request.body) else 0
            return Usage(0, read, fresh, output, 0, hour)
        return Usage(fresh, read, 0, output, 60 + call.number)


def _without_marks(block: object) -> str:
    """Return a block as JSON without `cache_control`, which is not part of the prompt."""
    return re.sub(r', "cache_control": \{[^}]*\}', "", json.dumps(block))


def _anthropic_blocks(body: Event) -> Iterator[object]:
    yield body.get("tools")
    yield body.get("system")
    yield [body.get("thinking"), body.get("output_config")]
    yield from body["messages"]


def _responses_blocks(body: Event) -> Iterator[object]:
    yield (body.get("reasoning") or {}).get("effort")
    yield body.get("instructions")
    yield body.get("tools")
    yield from body["input"] if isinstance(body["input"], list) else [body["input"]]


def _chat_blocks(body: Event) -> Iterator[object]:
    yield body.get("reasoning_effort")
    yield body.get("tools")
    yield from body["messages"]


def _gemini_blocks(body: Event) -> Iterator[object]:
    yield [body.get("systemInstruction"), body.get("tools")]
    yield from body["contents"]


_CACHE_BLOCKS: dict[Api, Callable[[Event], Iterator[object]]] = {
    "anthropic": _anthropic_blocks,
    "responses": _responses_blocks,
    "chat": _chat_blocks,
    "gemini": _gemini_blocks,
}


SIDE_TEXT = "A short note"
"""The reply to side calls."""
SUMMARY_TEXT = f"<analysis>{SIDE_TEXT}</analysis>\n<summary>{SIDE_TEXT}</summary>"


class FakeVendor:
    """The fake vendor's server, used as a context manager. `url` has no path."""

    def __init__(
        self, script: Script, listener: socket.socket | None = None, reply_seconds: float = 0.0
    ) -> None:
        """Start listening. Requests are answered once the context manager has been entered.

        Args:
            script: Determines the replies.
            listener: A socket that is already listening, possibly in another network namespace.
            reply_seconds: How long each reply takes.
        """
        self.script, self.reply_seconds = script, reply_seconds
        self.cache: PromptCache | None = None
        """If set, calls have the usage that this cache results in, instead of invented usage."""
        self.calls: list[VendorCall] = []
        self.receive_logs: Callable[[Mapping[str, str], bytes], None] | None = None
        """Called with the headers and body of each OpenTelemetry log request from an agent."""
        self._changed = threading.Condition()
        self._server = _Server(self, listener or socket.create_server(("127.0.0.1", 0)))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> FakeVendor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_until(self, condition: Callable[[list[VendorCall]], bool], seconds: float) -> bool:
        """Wait until the calls satisfy `condition`. Return whether they did within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self.calls), seconds)

    def billed(self, *kinds: Kind) -> list[VendorCall]:
        """Return the calls whose usage has been reported, in order.

        If `kinds` are given, return only calls of these kinds.
        """
        return [call for call in self.calls if call.usage and (not kinds or call.kind in kinds)]

    def begin(self, request: Request) -> VendorCall:
        kind, reply = self.script(request)
        with self._changed:
            if any(call.kind == "summary" for call in self.calls):
                reply = replace(reply, prompt_tokens=None)
            call = VendorCall(len(self.calls) + 1, request, kind, reply)
            self.calls.append(call)
            self._changed.notify_all()
        return call

    def finish(self, call: VendorCall, usage: Usage | None, *, disconnected: bool = False) -> None:
        with self._changed:
            call.usage, call.disconnected = usage, disconnected
            call.finished_at = time.monotonic()
            self._changed.notify_all()


def _usage(call: VendorCall) -> Usage:
    """Return plausible token counts that are different for each call."""
    prompt = call.reply.prompt_tokens or len(json.dumps(call.request.body)) // 4
    prompt += 7 * call.number
    cache_read = prompt // 2 if call.number > 1 else 0
    cache_write = prompt // 5 if call.request.api == "anthropic" else 0
    output = 300 + 11 * call.number
    uncached = prompt - cache_read - cache_write
    reasoning = 0 if call.request.api == "anthropic" else 60 + call.number
    return Usage(uncached, cache_read, cache_write, output, reasoning, cache_write // 3)


# Each function returns a vendor's reply in two forms: as a whole, and as a list of events. If a
# reply hangs, only its first event is sent, so this event must not contain the final usage.


def _anthropic(call: VendorCall, usage: Usage) -> tuple[Event, list[Event]]:
    counts = {
        "input_tokens": usage.uncached,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write - usage.cache_write_1h,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
        "service_tier": "standard",
    }
    head = {
        "id": f"msg_{call.number:024}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "stop_sequence": None,
    }
    blocks: list[Event] = [{"type": "text", "text": call.reply.text}] if call.reply.text else []
    blocks += [
        {
            "type": "tool_use",
            "id": _call_id(call, index),
            "name": tool.name,
            "input": tool.arguments,
        }
        for index, tool in enumerate(call.reply.tools)
    ]
    reason = "tool_use" if call.reply.tools else "end_turn"
    begun: Event = head | {
        "content": [],
        "stop_reason": None,
        "usage": counts | {"output_tokens": 1},
    }
    events: list[Event] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            start, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    total = counts | {"output_tokens": usage.output}
    ending = {"stop_reason": reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": total})
    events.append({"type": "message_stop"})
    return head | {"content": blocks, "stop_reason": reason, "usage": total}, events


def _responses(call: VendorCall, usage: Usage) -> tuple[Event, list[Event]]:
    items: list[Event] = []
    if call.reply.text:
        content = {"type": "output_text", "text": call.reply.text, "annotations": []}
        items.append({"type": "message", "role": "assistant", "content": [content]})
    for index, tool in enumerate(call.reply.tools):
        item: Event = {"call_id": _call_id(call, index), "name": tool.name}
        item |= {"namespace": tool.namespace} if tool.namespace else {}
        if isinstance(tool.arguments, str):
            item |= {"type": "custom_tool_call", "input": tool.arguments}
        else:
            item |= {"type": "function_call", "arguments": json.dumps(tool.arguments)}
        items.append(item)
    items = [
        item | {"id": f"item_{call.number}_{index}", "status": "completed"}
        for index, item in enumerate(items)
    ]
    head: Event = {"id": f"resp_{call.number:024}", "object": "response", "model": call.model}
    head |= {"created_at": int(time.time()), "tools": [], "tool_choice": "auto"}
    head |= {"parallel_tool_calls": True, "error": None, "incomplete_details": None}
    counts = {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.context,
    }
    whole = head | {"status": "completed", "output": items, "usage": counts}
    begun: Event = head | {"status": "in_progress", "output": [], "usage": None}
    events: list[Event] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(items):
        started: Event = item | {"status": "in_progress"}
        started |= {"content": []} if item["type"] == "message" else {}
        events.append({"type": "response.output_item.added", "output_index": index})
        events[-1]["item"] = started
        at: Event = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            part: Event = item["content"][0]
            at |= {"content_index": 0}
            events += [
                {"type": "response.content_part.added", "part": part | {"text": ""}} | at,
                {"type": "response.output_text.delta", "delta": part["text"]} | at,
                {"type": "response.output_text.done", "text": part["text"]} | at,
                {"type": "response.content_part.done", "part": part} | at,
            ]
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            events += [
                {"type": "response.function_call_arguments.delta", "delta": arguments} | at,
                {"type": "response.function_call_arguments.done", "arguments": arguments} | at,
            ]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return whole, events


def _chat(call: VendorCall, usage: Usage) -> tuple[Event, list[Event]]:
    tools = [
        {
            "index": index,
            "id": _call_id(call, index),
            "type": "function",
            "function": {"name": tool.name, "arguments": json.dumps(tool.arguments)},
        }
        for index, tool in enumerate(call.reply.tools)
    ]
    counts = {
        "prompt_tokens": usage.prompt,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens": usage.output,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.context,
    }
    head = {"id": f"chatcmpl-{call.number:024}", "created": int(time.time()), "model": call.model}
    message: Event = {"role": "assistant", "content": call.reply.text}
    message |= {"tool_calls": tools} if tools else {}
    reason = "tool_calls" if tools else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = head | {"object": "chat.completion", "choices": [choice], "usage": counts}

    def chunk(delta: Event, finish: str | None = None) -> Event:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return head | {"object": "chat.completion.chunk", "choices": choices}

    events = [chunk({"role": "assistant", "content": call.reply.text})]
    events += [chunk({"tool_calls": [tool]}) for tool in tools]
    events.append(chunk({}, reason))
    events.append(head | {"object": "chat.completion.chunk", "choices": [], "usage": counts})
    return whole, events


def _gemini(call: VendorCall, usage: Usage) -> tuple[Event, list[Event]]:
    parts: list[Event] = [{"text": call.reply.text}] if call.reply.text else []
    parts += [
        {"functionCall": {"id": _call_id(call, index), "name": tool.name, "args": tool.arguments}}
        for index, tool in enumerate(call.reply.tools)
    ]
    counts = {
        "promptTokenCount": usage.prompt,
        "cachedContentTokenCount": usage.cache_read,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.context,
    }
    head = {"modelVersion": call.model, "responseId": f"gemini-{call.number:024}"}
    content = {"role": "model", "parts": parts}
    whole = head | {
        "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
        "usageMetadata": counts,
    }
    begun = head | {"candidates": [{"index": 0, "content": content}]}
    empty = {"role": "model", "parts": [{"text": ""}]}
    candidate = {"index": 0, "content": empty, "finishReason": "STOP"}
    return whole, [begun, whole | {"candidates": [candidate]}]


_WRITERS = {
    "anthropic": _anthropic,
    "responses": _responses,
    "chat": _chat,
    "gemini": _gemini,
}


def _call_id(call: VendorCall, index: int) -> str:
    prefix = "toolu" if call.request.api == "anthropic" else "call"
    return f"{prefix}_{call.number:020}{index}"


# parses each vendor's requests


def _texts(content: object, text_types: tuple[str, ...] = ("text", "input_text")) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(
        str(part["text"])
        for part in parts
        if isinstance(part, dict) and "text" in part and part.get("type", "text") in text_types
    )


def _message_texts(messages: list[Event]) -> Iterator[str]:
    for message in messages:
        if message.get("role") == "user" and (text := _texts(message.get("content"))):
            yield text


def _gemini_texts(body: dict[str, Any]) -> Iterator[str]:
    for content in body["contents"]:
        if content.get("role", "user") == "user" and (text := _texts(content.get("parts"))):
            yield text


def _responses_texts(body: dict[str, Any]) -> Iterator[str]:
    items = body["input"]
    yield from [items] if isinstance(items, str) else _message_texts(items)


_USER_TEXTS: dict[Api, Callable[[dict[str, Any]], Iterator[str]]] = {
    "anthropic": lambda body: _message_texts(body["messages"]),
    "chat": lambda body: _message_texts(body["messages"]),
    "responses": _responses_texts,
    "gemini": _gemini_texts,
}


def _tool_names(tools: list[Event]) -> Iterator[str]:
    for tool in tools:
        inner = tool.get("functionDeclarations") or tool.get("tools")
        if inner:
            yield from _tool_names(inner)
        elif "function" in tool:
            yield tool["function"]["name"]
        else:
            yield tool.get("name") or tool.get("type", "")


_PATHS: list[tuple[str, Api]] = [
    (r"/messages$", "anthropic"),
    (r"/responses$", "responses"),
    (r"/chat/completions$", "chat"),
    (r"/models/([^/:]+):(stream)?[gG]enerateContent$", "gemini"),
]


def _request(path: str, body: dict[str, Any]) -> Request | None:
    """Parse a request, or return None if its path is not part of a vendor's API."""
    for pattern, api in _PATHS:
        if found := re.search(pattern, path):
            if api == "gemini":
                return Request(api, found[1], body, streamed=found[2] is not None)
            return Request(api, body["model"], body, streamed=bool(body.get("stream")))
    return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, vendor: FakeVendor, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.vendor = listener, vendor

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not print errors, because agents may disconnect at any time."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._send(200, {})

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [], "models": []})

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/v1/logs" and self.server.vendor.receive_logs:
            self.server.vendor.receive_logs(dict(self.headers), self._body())
            self._send(200, {})
            return
        body = json.loads(self._body() or b"{}")
        request = _request(path, body)
        if request is None:
            tokens = len(json.dumps(body)) // 4
            counts = {"input_tokens": tokens, "totalTokens": tokens}
            found = path.endswith(("count_tokens", ":countTokens"))
            self._send(200 if found else 404, counts if found else {})
            return
        call = self.server.vendor.begin(request)
        self._request_id = f"req_{call.number:024}"
        if call.reply.status != 200:
            self._refuse(call)
            return
        if kind := call.reply.after:
            self.server.vendor.wait_until(lambda _: bool(self.server.vendor.billed(kind)), 10)
        time.sleep(self.server.vendor.reply_seconds)
        cache = self.server.vendor.cache
        usage = _usage(call) if cache is None else cache.usage(call)
        whole, events = _WRITERS[request.api](call, usage)
        try:
            if call.reply.hangs:
                self._hang(events)
            elif request.streamed:
                self._stream(events)
            else:
                self._send(200, whole, {"request-id": self._request_id})
        except OSError:
            self.server.vendor.finish(call, None, disconnected=True)
        else:
            self.server.vendor.finish(call, None if call.reply.hangs else usage)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _refuse(self, call: VendorCall) -> None:
        error = {"type": "overloaded_error", "code": call.reply.status, "message": "Slow down"}
        error |= {"status": "RESOURCE_EXHAUSTED"}
        self._send(call.reply.status, {"type": "error", "error": error}, {"Retry-After": "0"})
        self.server.vendor.finish(call, None)

    def _send(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, content in (headers or {}).items():
            self.send_header(name, content)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("request-id", self._request_id)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _stream(self, events: list[Event]) -> None:
        self._begin_stream()
        for event in events:
            self._chunk(_line(event))
        with suppress(OSError):  # a client that has the usage may disconnect before the end
            if "chat.completion" in str(events[0].get("object")):
                self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

    def _hang(self, events: list[Event]) -> None:
        """Send the first event, and then comments until the client disconnects."""
        self._begin_stream()
        self._chunk(_line(events[0]))
        for _ in range(600):
            time.sleep(0.1)
            self._chunk(b": waiting\n\n")


def _line(event: Event) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()
