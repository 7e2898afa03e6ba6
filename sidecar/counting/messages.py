"""Tokens of messages and tools: one function for status, pruning, preflight and requests.

What stands around the texts is not text that anyone can count: it is the model's template. It is
added by the vendors' published formulas, or by the marks of the usual templates, and the Measure
says what that makes of it:

* OpenAI's chat formula (3 a message with its role, 1 a name, 3 before the reply) was compared with
  reported usage by OpenAI's cookbook for gpt-3.5-turbo, gpt-4 and gpt-4o: `calibrated` there.
* Everything else is `estimate`, and `calibrated` where the texts themselves are calibrated.

The expected error is the texts' own, and half of what stands around them (a tenth where it was
compared); None where the texts' error was not measured, or a picture's size is not known. A count
by the server itself (`endpoint`) knows better, and reported usage corrects all of these.
"""

from __future__ import annotations

import hashlib
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from cachetools import LRUCache

from sidecar.counting import families
from sidecar.counting.content import FILE_TOKENS, Content, read_message
from sidecar.counting.count import Measure, Method
from sidecar.counting.images import image_tokens
from sidecar.counting.names import parse
from sidecar.counting.tool_schemas import ToolSchema, as_json, properties_of, read_tools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.counting.count import Tokenizer


class Format(NamedTuple):
    """What a template puts around messages and tools, in tokens."""

    message: int
    """Around each message, its role included."""
    name: int
    """For a name, beside the name itself."""
    priming: int
    """Once, before the reply."""
    call: int
    """Around each tool call."""
    result: int
    """Around each tool result."""
    tool: int
    """Around each tool's schema."""
    tools: int
    """Once, where there are tools."""


_OPENAI = Format(message=4, name=1, priming=3, call=7, result=2, tool=7, tools=12)
_OPENAI_CL100K = _OPENAI._replace(tool=10)
_ANTHROPIC = Format(message=4, name=1, priming=3, call=12, result=12, tool=8, tools=346)
_GEMINI = Format(message=1, name=1, priming=0, call=5, result=5, tool=3, tools=0)
_CHATML = Format(message=5, name=1, priming=3, call=8, result=4, tool=3, tools=20)

_OPENAI_GENERATIONS = frozenset(
    ("o200k_base", "cl100k_base", "o200k_harmony", "openai-newer", "p50k_base", "r50k_base")
)
_COMPARED = re.compile(r"(chat)?gpt-4o|gpt-4(-|$)|gpt-3\.?5")
"""Models whose message formula OpenAI's cookbook shows beside reported usage."""

_DOUBT = 0.5
"""How much of what stands around texts may be wrong, where nobody compared it with usage."""
_DOUBT_COMPARED = 0.1

_cache_lock = threading.Lock()
_tool_sets: LRUCache[tuple[str, str, bytes], Measure] = LRUCache(maxsize=64)


def format_of(model: str) -> Format:
    """What the model's template puts around messages and tools, as far as it is known."""
    generation = families.generation_of(model)
    if generation in _OPENAI_GENERATIONS:
        return _OPENAI_CL100K if generation == "cl100k_base" else _OPENAI
    if generation.startswith("claude"):
        return _ANTHROPIC
    return _GEMINI if generation == "gemma" and "gemini" in parse(model).bare else _CHATML


def priming_tokens(model: str) -> int:
    """Tokens that a request carries once, beside its messages and tools."""
    return format_of(model).priming


def count_messages(
    messages: Sequence[Any],
    tools: Sequence[Any] | None,
    model: str,
    tokenizer: Tokenizer,
) -> Measure:
    """A whole request: messages, tools and what begins the reply. Nothing at all is 0, exact.

    Messages and tools may have any vendor's form. Never raises.
    """
    if not messages and not tools:
        return Measure(0, "exact", tokenizer.name, 0.0)
    parts = [message_tokens(message, model, tokenizer) for message in messages]
    if tools:
        parts.append(tools_tokens(tools, model, tokenizer))
    priming = priming_tokens(model) if messages else 0
    return _together(parts, priming, tokenizer.name)


def _together(parts: Sequence[Measure], priming: int, name: str) -> Measure:
    tokens = sum([part.tokens for part in parts]) + priming
    methods = {part.method for part in parts}
    method: Method = "estimate" if "estimate" in methods else "calibrated"
    errors = [part.error_percent for part in parts]
    if any(error is None for error in errors):
        return Measure(tokens, method, name, None)
    wrong = sum([part.tokens * (part.error_percent or 0.0) / 100 for part in parts])
    return Measure(tokens, method, name, round(100 * wrong / max(1, tokens), 1))


def message_tokens(message: Any, model: str, tokenizer: Tokenizer) -> Measure:
    """One message with what the model's template puts around it. Never raises."""
    content, around = read_message(message), format_of(model)
    texts = sum([tokenizer.count(text) for text in content.texts])
    texts += sum([tokenizer.count(name) + tokenizer.count(text) for name, text in content.calls])
    overhead = around.message + around.call * len(content.calls) + around.result * content.results
    if content.name:
        texts += tokenizer.count(content.name)
        overhead += around.name
    seen, sized = _pictures(content, model)
    guessed = FILE_TOKENS * content.files
    tokens = texts + overhead + seen + guessed
    if guessed or not sized:
        return Measure(tokens, "estimate", tokenizer.name, None)
    compared = not (content.calls or content.results or seen) and _is_compared(model)
    method = _method(tokenizer, compared=compared)
    doubt = _DOUBT_COMPARED if compared else _DOUBT
    error = _error(tokenizer, texts, doubt * overhead, tokens)
    return Measure(tokens, method, tokenizer.name, error)


def _pictures(content: Content, model: str) -> tuple[int, bool]:
    """Tokens of the pictures, and whether the size of each is known."""
    if not content.pictures:
        return 0, True
    bare, generation = parse(model).bare, families.generation_of(model)
    tokens = [
        image_tokens(bare, generation, picture.size, picture.detail) for picture in content.pictures
    ]
    return sum(tokens), all(picture.size for picture in content.pictures)


def _is_compared(model: str) -> bool:
    return _COMPARED.match(parse(model).bare) is not None


def _method(tokenizer: Tokenizer, *, compared: bool) -> Method:
    """How a count with a template around it was made."""
    if tokenizer.method not in ("exact", "endpoint"):
        return tokenizer.method
    return "calibrated" if compared else "estimate"


def _error(tokenizer: Tokenizer, texts: int, doubtful: float, tokens: int) -> float | None:
    """The texts' own error, and the tokens beside them that may be wrong, in percent."""
    if tokenizer.error_percent is None:
        return None
    wrong = texts * tokenizer.error_percent / 100 + doubtful
    return round(100 * wrong / max(1, tokens), 1)


def tools_tokens(tools: Sequence[Any], model: str, tokenizer: Tokenizer) -> Measure:
    """A set of tools as the model is told of them; counted once for each set. Never raises.

    OpenAI: the cookbook's formula, nested properties like those on top. Others: each schema's
    compact JSON, and for Claude the system prompt that tools bring with them.
    """
    if not tools:
        return Measure(0, "exact", tokenizer.name, 0.0)
    digest = hashlib.sha256(as_json(list(tools)).encode("utf-8", "surrogatepass")).digest()
    key = (tokenizer.name, families.generation_of(model), digest)
    with _cache_lock:
        known = _tool_sets.get(key)
    if known is not None:
        return known
    measure = _count_tools(read_tools(tools), model, tokenizer)
    with _cache_lock:
        _tool_sets[key] = measure
    return measure


def _count_tools(tools: Sequence[ToolSchema], model: str, tokenizer: Tokenizer) -> Measure:
    around = format_of(model)
    openai = around in (_OPENAI, _OPENAI_CL100K)
    each = [(_openai_tool if openai else _json_tool)(tool, tokenizer) for tool in tools]
    texts = sum([text for text, _ in each])
    overhead = sum([extra for _, extra in each]) + around.tool * len(tools) + around.tools
    tokens = texts + overhead
    error = _error(tokenizer, texts, _DOUBT * overhead, tokens)
    return Measure(tokens, _method(tokenizer, compared=False), tokenizer.name, error)


def _json_tool(tool: ToolSchema, tokenizer: Tokenizer) -> tuple[int, int]:
    if not tool.parameters and not tool.description:
        return tokenizer.count(tool.name), 0
    return tokenizer.count(as_json(tool)), 0


def _openai_tool(tool: ToolSchema, tokenizer: Tokenizer) -> tuple[int, int]:
    """(texts, what stands around them) by the cookbook: 3 a block, a property and an enum's item.

    An enum is 3 less for a start.
    """
    texts = tokenizer.count(f"{tool.name}:{tool.description.removesuffix('.')}")
    overhead = 0
    for block in properties_of(tool.parameters):
        overhead += 3 + 3 * len(block)
        for name, value in block:
            texts += tokenizer.count(_property_line(name, value))
            values = value.get("enum")
            if isinstance(values, list) and values:
                overhead += -3 + 3 * len(values)
                texts += sum([tokenizer.count(str(item)) for item in values])
    return texts, overhead


def _property_line(name: str, value: Mapping[str, Any]) -> str:
    kind, description = value.get("type"), value.get("description")
    text = description.removesuffix(".") if isinstance(description, str) else ""
    return f"{name}:{kind if isinstance(kind, str) else as_json(kind)}:{text}"
