"""Tokens of messages and tools: one function for status, pruning, preflight and requests.

What stands around the texts is not text that anyone can count: it is the model's template. It is
added by the vendors' published formulas, or by the marks of the usual templates, and the Measure
says what that makes of it:

* OpenAI's chat formula (3 a message with its role, 1 a name, 3 before the reply) was compared with
  reported usage by OpenAI's cookbook for gpt-3.5-turbo, gpt-4 and gpt-4o: `calibrated` there.
* Everything else is `estimate`, and `calibrated` where the texts themselves are calibrated.

The band is the texts' own, and half of what stands around them (a tenth where it was
compared), and what a picture's, a clip's or a file's count may be off; None where the texts' error
was not measured. A count by the server itself (`endpoint`) knows better, and reported usage
corrects all of these.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cachetools import LRUCache

from sidecar.counting.clips import clip_tokens
from sidecar.counting.count import Measure, Method
from sidecar.counting.images import Seen, image_tokens
from sidecar.counting.incremental import measure_text
from sidecar.counting.tool_prompts import tool_prompt
from sidecar.messages.content import Block, read_message
from sidecar.messages.tool_schemas import ToolSchema, as_json, properties_of, read_tools
from sidecar.models import families
from sidecar.models.names import parse

if TYPE_CHECKING:
    from sidecar.counting.tokenizer import Tokenizer


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
    """Once, where there are tools; beside what `tool_prompt` knows."""


_OPENAI = Format(message=4, name=1, priming=3, call=7, result=2, tool=7, tools=12)
_OPENAI_CL100K = _OPENAI._replace(tool=10)
_ANTHROPIC = Format(message=4, name=1, priming=3, call=12, result=12, tool=8, tools=0)
_GEMINI = Format(message=1, name=1, priming=0, call=5, result=5, tool=3, tools=0)
_CHATML = Format(message=5, name=1, priming=3, call=8, result=4, tool=3, tools=20)

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
    if generation in families.OPENAI_GENERATIONS:
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
        return tokenizer.measure(0)
    parts = [message_tokens(message, model, tokenizer) for message in messages]
    if tools:
        parts.append(tools_tokens(tools, model, tokenizer))
    return _together(parts, _priming(model) if messages else Seen(0), tokenizer.name)


def _priming(model: str) -> Seen:
    """What begins the reply, and how much of it is in doubt."""
    tokens = priming_tokens(model)
    doubt = _DOUBT_COMPARED if _is_compared(model) else _DOUBT
    return Seen(tokens, doubt * tokens)


def _together(parts: Sequence[Measure], priming: Seen, name: str) -> Measure:
    tokens = sum([part.tokens for part in parts]) + priming.tokens
    methods = {part.method for part in parts}
    method: Method = "estimate" if "estimate" in methods else "calibrated"
    errors = [part.error_percent for part in parts]
    if any(error is None for error in errors):
        return Measure(tokens, method, name, None)
    wrong = sum([part.tokens * (part.error_percent or 0.0) / 100 for part in parts], priming.doubt)
    return Measure(tokens, method, name, round(100 * wrong / max(1, tokens), 1))


def message_text(message: Any) -> str:
    """All that is text in a message, as a server counts it in one request. Never raises."""
    read = read_message(message)
    calls = [block for block in read.flat() if block.kind == "call"]
    written = [part for call in calls for part in (call.name, call.arguments)]
    return "\n".join([part for part in (read.name, *read.texts, *written) if part])


def message_tokens(
    message: Any, model: str, tokenizer: Tokenizer, counted: int | None = None
) -> Measure:
    """One message with what the model's template puts around it. Never raises.

    `counted`: tokens of its text as the model's server has counted them.
    """
    read, around = read_message(message), format_of(model)
    blocks = list(read.flat())
    calls = [block for block in blocks if block.kind == "call"]
    results = [block for block in blocks if block.kind == "result"]
    media = [block for block in blocks if block.kind == "picture"]
    media += [block for block in blocks if block.kind == "file" and not block.inner]
    overhead = around.message + around.call * len(calls) + around.result * len(results)
    overhead += around.name if read.name else 0
    written = [part for call in calls for part in (call.name, call.arguments)]
    each = [*read.texts, *written, read.name or ""] if counted is None else []
    texts, wrong = _texts(each, tokenizer)
    texts += counted or 0
    seen, sized = _media_tokens(media, model)
    tokens = texts + overhead + seen.tokens
    if counted is not None:  # some templates put twice as much around a message
        doubtful = round(100 * (overhead + seen.doubt) / max(1, tokens), 1)
        return Measure(tokens, "estimate", tokenizer.name, doubtful, counted)
    compared = not (calls or results or media) and _is_compared(model)
    method = _method(tokenizer, compared=compared) if sized else "estimate"
    doubt = _DOUBT_COMPARED if compared else _DOUBT
    error = _error(wrong, doubt * overhead + seen.doubt, tokens)
    return Measure(tokens, method, tokenizer.name, error)


def _media_tokens(media: Sequence[Block], model: str) -> tuple[Seen, bool]:
    """Pictures, clips and files without text; and whether the size of all of them is known."""
    bare, generation = parse(model).bare, families.generation_of(model)
    tokens, doubt, sized = 0, 0.0, True
    for block in media:
        if block.kind == "picture":
            size, detail = block.picture
            seen, known = image_tokens(bare, generation, size, detail), size is not None
        else:
            seen, known = clip_tokens(bare, generation, block.clip, block.detail), False
        tokens, doubt, sized = tokens + seen.tokens, doubt + seen.doubt, sized and known
    return Seen(tokens, doubt), sized


def _is_compared(model: str) -> bool:
    return _COMPARED.match(parse(model).bare) is not None


def _method(tokenizer: Tokenizer, *, compared: bool) -> Method:
    """How a count with a template around it was made."""
    if tokenizer.method not in ("exact", "endpoint"):
        return tokenizer.method
    return "calibrated" if compared else "estimate"


def _texts(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[int, float | None]:
    """Tokens of texts, and how many of them may be wrong; None where that was not measured."""
    tokens, wrong = 0, 0.0
    unmeasured = False
    for text in texts:
        measure = measure_text(text, tokenizer)
        unmeasured = unmeasured or measure.error_percent is None
        tokens += measure.tokens
        wrong += measure.tokens * (measure.error_percent or 0.0) / 100
    return tokens, None if unmeasured else wrong


def _error(wrong: float | None, doubtful: float, tokens: int) -> float | None:
    """Tokens of texts, and tokens beside them, that may be wrong, in percent of all."""
    return None if wrong is None else round(100 * (wrong + doubtful) / max(1, tokens), 1)


def tools_tokens(tools: Sequence[Any], model: str, tokenizer: Tokenizer) -> Measure:
    """A set of tools as they are described to the model; counted once for each set. Never raises.

    OpenAI: the cookbook's formula, nested properties like those on top. Others: each schema's
    compact JSON, and the system prompt that tools bring with them where its length is published.
    """
    if not tools:
        return tokenizer.measure(0)
    digest = hashlib.sha256(as_json(list(tools)).encode("utf-8", "surrogatepass")).digest()
    # A corrected estimate has the name of the plain one: its factor and band tell them apart.
    made = f"{tokenizer.name} {tokenizer.scale(10**9)} {tokenizer.band(10**9)}"
    key = (made, parse(model).bare, digest)
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
    each = [(_openai_tool if openai else _json_tool)(tool) for tool in tools]
    texts, wrong = _texts([text for written, _ in each for text in written], tokenizer)
    overhead = sum([extra for _, extra in each]) + around.tool * len(tools) + around.tools
    prompt = tool_prompt(parse(model).bare, families.generation_of(model))
    tokens = texts + overhead + prompt.tokens
    error = _error(wrong, _DOUBT * overhead + prompt.doubt, tokens)
    return Measure(tokens, _method(tokenizer, compared=False), tokenizer.name, error)


def _json_tool(tool: ToolSchema) -> tuple[list[str], int]:
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return [tool.opaque or as_json(fields)], 0


def _openai_tool(tool: ToolSchema) -> tuple[list[str], int]:
    """(texts, tokens around them) by the cookbook: 3 a block, a property and an enum's item.

    An enum is 3 less for a start.
    """
    texts = [f"{tool.opaque or tool.name}:{tool.description.removesuffix('.')}"]
    overhead = 0
    for block in properties_of(tool.parameters):
        overhead += 3 + 3 * len(block)
        for name, value in block:
            texts.append(_property_line(name, value))
            values = value.get("enum")
            if isinstance(values, list) and values:
                overhead += -3 + 3 * len(values)
                texts += map(str, values)
    return texts, overhead


def _property_line(name: str, value: Mapping[str, Any]) -> str:
    kind, description = value.get("type"), value.get("description")
    text = description.removesuffix(".") if isinstance(description, str) else ""
    return f"{name}:{kind if isinstance(kind, str) else as_json(kind)}:{text}"
