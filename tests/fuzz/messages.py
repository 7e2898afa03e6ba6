"""Generates valid and randomly mutated messages for a server."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

Message = dict[str, Any]

SESSIONS = ("one", "two", "three", "", "\u202e", "../..", "a" * 300)
MODELS = ("gpt-5", "gpt-4", "claude-sonnet-4-5", "qwen-3", "no such model", "", "![p](x)", "\x00")
TEXTS = (
    "",
    "hello world",
    "# Title\n\ntext\n\n## Part\n\nmore text, and more\n",
    "日本🙂\r\n\x0c\u2028",
    "\ud800",
    "\x00" * 300,
    " " * 1_000,
    "value = compute(7)\n" * 40,
)
HUGE = "".join(f"value_{n} = compute({n})\n" for n in range(10_000))
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 5, 2**31, -(2**63), 10**40, 0.5, -0.0, 1e308, "", "2.0", "1"),
    *(
        "\ud800",
        "NaN",
        "\x00",
        "a" * 2_000,
        "%s%n",
        "2026-11-22",
        float("nan"),
        float("inf"),
        [],
        {},
    ),
)
IDS = (0, 1, 2, 3, 7, -1, 2**53, 10**40, "", "1", "same", "\ud800", "i" * 1_000)
METHODS = (
    *("exit", "shutdown", "initialize", "initialized", "$/cancelRequest", "$/progress", "$/none"),
    *(
        "tokens/count",
        "context/append",
        "textDocument/didOpen",
        "textDocument/didChange",
        "x" * 999,
    ),
    *("notebookDocument/didOpen", "workspace/executeCommand", "window/showMessageRequest", ""),
)
COMMANDS = ("heaviestSections", "compareModels", "none")
LSP_REQUESTS = ("hover", "codeAction", "inlayHint", "codeLens", "documentSymbol", "diagnostic")
MAX_DEPTH = 3_000


class Messages:
    """Generates messages or invalid bytes with one random generator."""

    def __init__(self, chance: random.Random, root: str) -> None:
        self._chance = chance
        self._number = 1_000
        self._version = 0
        self._uris = (
            *(f"{root}/{name}" for name in ("a.md", "b.md", "src/c.py", "AGENTS.md", "../d.md")),
            *("untitled:Untitled-1", "file:///%00", "not a uri", "", "vscode-vfs://github/a/b"),
        )
        self._roots = (root, f"{root}/src", "file:///nowhere", "file:///%00", "nothing")
        self.makers = (
            *(self._opened, self._changed, self._changed, self._changed, self._closed),
            *(self._counted, self._fitted, self._about_document, self._about_document),
            *(self._context_set, self._appended, self._assembled, self._response, self._preflight),
            *(self._context, self._reset, self._recorded, self._detail, self._models),
            *(self._command, self._cancelled, self._answer, self._unusual, self._rare),
        )

    def next(self) -> Message | bytes:
        """Return a valid message, a mutated one, or bytes that are not a message."""
        message = self._chance.choice(self.makers)()
        kind = self._chance.random()
        if kind < 0.5:
            return message
        if kind < 0.95:
            for _ in range(self._chance.choice((1, 1, 1, 2, 5))):
                self._mutate(message)
            return message
        return self._mangled(message)

    def folders(self, *, removed: bool) -> Message:
        """Return a message that closes or opens root folders."""
        roots = [{"uri": uri, "name": uri} for uri in self._roots]
        event = {"added": [] if removed else roots[:1], "removed": roots if removed else []}
        return self._notification("workspace/didChangeWorkspaceFolders", event=event)

    def _mutate(self, message: Message) -> None:
        """Change a random place in a message. The result is usually still valid JSON."""
        places = list(_places(message)) or [(message, "jsonrpc")]
        holder, key = self._chance.choice(places)
        how = self._chance.randrange(7)
        if how == 0 and isinstance(holder, dict):
            holder.pop(key, None)
        elif how == 1:
            other, name = self._chance.choice(places)
            holder[key] = copy.deepcopy(other.get(name) if isinstance(other, dict) else other)
        elif how == 2:
            holder[key] = self._nested(holder.get(key) if isinstance(holder, dict) else 0)
        elif how == 3 and isinstance(holder, dict):
            holder[self._chance.choice(("id", "jsonrpc", "method", "params", "result", "x"))] = key
        elif how == 4:
            holder[key] = self._chance.choice((*IDS, *METHODS, *self._uris))
        else:
            holder[key] = copy.copy(self._chance.choice(SCALARS))

    def _nested(self, value: Any) -> Any:
        depth = self._chance.choice((3, 3, 3, 3, 100, 190, 201, 967, MAX_DEPTH))
        if depth > 300:  # Too deep for Python objects, so `body` writes the value directly.
            return {Deep.KEY: [depth, self._chance.randrange(2)]}
        for _ in range(depth):
            value = [value] if self._chance.random() < 0.5 else {"content": value}
        return value

    def _mangled(self, message: Message) -> bytes:
        """Give the message a unique id, and return its bytes after changing or removing some."""
        if message.get("method") in ("exit", "shutdown", "initialize"):
            message["method"] = "tokens/count"
        message["id"] = f"mangled {self._number}"
        whole = bytearray(body(message))
        for _ in range(self._chance.choice((1, 1, 3, 20))):
            place = self._chance.randrange(len(whole))
            how = self._chance.randrange(3)
            if how == 0:
                whole[place] = self._chance.randrange(256)
            elif how == 1:
                del whole[place : place + self._chance.randrange(1, 40)]
            else:
                del whole[max(1, place) :]
            whole = whole or bytearray(b"{")
        return bytes(whole)

    def _request(self, method: str, **params: Any) -> Message:
        self._number += 1
        number = self._number if self._chance.random() < 0.8 else self._chance.choice(IDS)
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}

    def _notification(self, method: str, **params: Any) -> Message:
        return {"jsonrpc": "2.0", "method": method, "params": params}

    def _document(self) -> Message:
        return {"uri": self._chance.choice(self._uris)}

    def _text(self) -> str:
        return self._chance.choice(TEXTS) if self._chance.random() < 0.999 else HUGE

    def _position(self) -> Message:
        place = self._chance.choice
        return {"line": place((0, 0, 1, 2, 99)), "character": place((0, 1, 5, 2**31 - 1))}

    def _range(self) -> Message:
        return {"start": self._position(), "end": self._position()}

    def _one_of(self, **params: Any) -> Message:
        """Return random params."""
        return {name: value for name, value in params.items() if self._chance.random() < 0.5}

    def _opened(self) -> Message:
        self._version += 1
        item = {"languageId": "markdown", "version": self._version, "text": self._text()}
        return self._notification("textDocument/didOpen", textDocument=item | self._document())

    def _changed(self) -> Message:
        self._version += 1
        changes = [
            {"text": self._text()[:500]}
            | ({"range": self._range()} if self._chance.random() < 0.8 else {})
            for _ in range(self._chance.choice((1, 1, 3)))
        ]
        return self._notification(
            "textDocument/didChange",
            textDocument=self._document() | {"version": self._version},
            contentChanges=changes,
        )

    def _closed(self) -> Message:
        return self._notification("textDocument/didClose", textDocument=self._document())

    def _counted(self) -> Message:
        chat = [{"role": "user", "content": self._text()}]
        source = self._chance.choice(
            ({"textDocument": self._document()}, {"text": self._text()}, {"messages": chat})
        )
        more = self._one_of(model=self._model(), models=[self._model()], range=self._range())
        return self._request("tokens/count", **source, **more)

    def _fitted(self) -> Message:
        source = self._chance.choice(({"textDocument": self._document()}, {"text": self._text()}))
        more = self._one_of(range=self._range(), mode="end", marker="…", model=self._model())
        return self._request("tokens/fit", maxTokens=self._natural(), **source, **more)

    def _natural(self) -> int:
        return self._chance.choice((0, 1, 3, 50, 10_000, 10**18))

    def _model(self) -> str:
        return self._chance.choice(MODELS)

    def _about_document(self) -> Message:
        return self._request(
            f"textDocument/{self._chance.choice(LSP_REQUESTS)}",
            textDocument=self._document(),
            position=self._position(),
            range=self._range(),
            context={"diagnostics": []},
        )

    def _session(self, method: str, **params: Any) -> Message:
        who = self._one_of(session=self._chance.choice(SESSIONS))
        if self._chance.random() < 0.2:
            who["workspace"] = self._chance.choice((*self._roots, *self._uris))
        return self._request(method, **who, **params)

    def _turns(self) -> list[Message]:
        call = {"id": "c1", "name": "read", "arguments": '{"path": "a"}'}
        blocks: list[Message] = [
            {"type": "text", "text": self._text()},
            {"type": "image", "source": {}},
        ]
        turns: list[Message] = [
            {"role": "user", "content": self._chance.choice((self._text(), blocks, None))},
            {"role": "assistant", "content": self._text(), "toolCalls": [call]},
            {"role": "tool", "content": self._text(), "toolCallId": "c1"},
        ]
        return turns[: self._chance.randrange(4)]

    def _context_set(self) -> Message:
        sections = [
            {"name": "s", "text": self._text(), "cap": self._natural()},
            {"name": "d", "textDocument": self._document(), "range": self._range()},
        ]
        tool = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {}}}}
        some = self._one_of(
            model=self._model(),
            systemPrompt=self._text(),
            tools=[tool],
            sections=sections,
            limit=self._chance.choice((1, 100, 200_000)),
            reserve=self._natural(),
            persist=True,
        )
        return self._session("context/set", **some)

    def _appended(self) -> Message:
        more = {"usage": self._usage()} if self._chance.random() < 0.3 else {}
        return self._session("context/append", turns=self._turns(), **more)

    def _usage(self) -> Message:
        return self._chance.choice(
            (
                {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105},
                {"input_tokens": 3, "cache_read_input_tokens": 90, "output_tokens": 4},
                {"promptTokenCount": self._natural(), "candidatesTokenCount": 1},
                {"totalTokens": 10**18},
            )
        )

    def _assembled(self) -> Message:
        parts = ("assistant", "identity", "feedback", "tools", "context", "logs", "user")
        some = self._one_of(**{name: self._text() for name in parts}, maxTokens=self._natural())
        return self._session("context/assemble", **some)

    def _response(self) -> Message:
        message = {"role": "assistant", "content": self._text()}
        reply = self._chance.choice(
            (
                {
                    "id": "r1",
                    "object": "chat.completion",
                    "model": "gpt-5",
                    "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
                    "usage": self._usage(),
                },
                {"type": "message", "content": [{"type": "text", "text": "x"}], "usage": {}},
                self._text(),
                [message],
            )
        )
        return self._session("context/response", response=reply, requestId="r1")

    def _preflight(self) -> Message:
        some = self._one_of(
            turns=self._turns(),
            text=self._text(),
            model=self._model(),
            maxOutputTokens=self._natural(),
            pendingToolCall={"name": "read", "expectedTokens": self._natural()},
        )
        return self._session("context/preflight", **some)

    def _context(self) -> Message:
        name = self._chance.choice(("usage", "fit", "undo", "fit"))
        some = {}
        if name == "fit":
            some = self._one_of(maxTokens=self._natural(), apply=True, strategy="summarize")
        return self._session(f"context/{name}", **some)

    def _reset(self) -> Message:
        if self._chance.random() < 0.5:
            return self._session("context/reset")
        return self._request("context/reset", session=self._chance.choice(SESSIONS))

    def _recorded(self) -> Message:
        number = self._chance.randrange(200)
        some = self._one_of(provider="openai", at="2026-11-22T08:00:00Z", category="main")
        return self._session(
            "cost/record", model=self._model(), usage=self._usage(), requestId=f"q{number}", **some
        )

    def _detail(self) -> Message:
        some = self._one_of(since="2026-11-01", until="today", by=["model", "session"])
        return self._session("cost/detail", **some)

    def _models(self) -> Message:
        method = self._chance.choice(("models/list", "capabilities/list", "capabilities/probe"))
        return self._request(method, **self._one_of(query="gpt", model=self._model()))

    def _command(self) -> Message:
        name = f"tokenSidecar.server.{self._chance.choice(COMMANDS)}"
        arguments = [self._chance.choice((*self._uris, *SESSIONS))]
        return self._request("workspace/executeCommand", command=name, arguments=arguments)

    def _cancelled(self) -> Message:
        number = self._chance.choice((*IDS, self._number, self._number - 1))
        return self._notification("$/cancelRequest", id=number)

    def _answer(self) -> Message:
        """Return a response to a request that the server never sent.

        Its id may equal that of a request.
        """
        number = self._chance.choice((*IDS, self._number, self._number - 1))
        what = self._chance.choice(({"result": None}, {"error": {"code": 1, "message": ""}}))
        return {"jsonrpc": "2.0", "id": number, **what}

    def _unusual(self) -> Message:
        """Return a request or notification with a random method and unsuitable params."""
        method = self._chance.choice(METHODS)
        make = self._chance.choice((self._request, self._notification))
        return make(method, **self._one_of(id=1, value="off", token=1))

    def _rare(self) -> Message:
        """Return a message that makes the server reload its settings. Such messages should be rare."""
        if self._chance.random() < 0.99:
            return self._notification("$/setTrace", value="off")
        roots = [{"uri": uri, "name": uri} for uri in self._roots[1:]]
        event = {"added": roots[: self._chance.randrange(3)], "removed": roots}
        settings = {"tokenSidecar": self._one_of(model=self._model(), inlayHints=True)}
        return self._chance.choice(
            (
                self._notification("workspace/didChangeWorkspaceFolders", event=event),
                self._notification("workspace/didChangeConfiguration", settings=settings),
            )
        )


class Deep:
    """A placeholder for a value that is too deeply nested for Python objects."""

    KEY = "\x01deep"


def body(message: Message) -> bytes:
    """Encode a message as JSON, including deeply nested values."""
    text = json.dumps(message)
    mark = json.dumps({Deep.KEY: 0})[:-2]
    while (start := text.find(mark)) >= 0:
        end = text.index("}", start) + 1
        depth, form = json.loads(text[start:end])[Deep.KEY]
        opening, closing = ("[", "]") if form else ('{"a":', "}")
        text = text[:start] + opening * depth + "0" + closing * depth + text[end:]
    return text.encode()


def _places(value: Any) -> Any:
    """Yield every place in a message as a container and a key."""
    level = [value]
    while level:
        holder = level.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list) and Deep.KEY not in holder[key]:
                level.append(holder[key])


def is_owed(message: Message) -> bool:
    """Return whether the server must respond to a message with this id."""
    number = message.get("id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return False
    return message.get("method") is not None or not {"result", "error"} & message.keys()


def ends(message: Message) -> bool:
    """Return whether the server may stop accepting requests after this message."""
    method = message.get("method")
    if message.get("jsonrpc") != "2.0":
        return False
    return (method == "exit" and "id" not in message) or (method == "shutdown" and "id" in message)
