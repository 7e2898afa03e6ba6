"""Tokens of messages and tools: one function for status, pruning, preflight and requests.

The tokens around the texts belong to the model's template and cannot be counted here. They are
added by the vendors' published formulas, or as the usual templates have them, and the Measure says
how reliable that is:

* OpenAI's chat formula (3 per message with its role, 1 per name, 3 before the reply) was compared
  with reported usage by OpenAI's cookbook for gpt-3.5-turbo, gpt-4 and gpt-4o: `calibrated` for
  those models.
* Everything else is an `estimate`, and `calibrated` where the texts themselves are.

The band adds up the texts' own error, half of the tokens around them (a tenth where the formula was
compared), and the doubt about pictures, clips and files. It is None if the texts' error was not
measured. A count by the server itself (`endpoint`) is better than all of these, and reported usage
corrects them.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cachetools import LRUCache

from sidecar.counting.count import Measure, Method
from sidecar.counting.incremental import measure_text
from sidecar.counting.media import UncertainTokens, clip_tokens, image_tokens
from sidecar.messages.content import Block, read_message
from sidecar.messages.tool_schemas import ToolSchema, as_json, properties_of, read_tools
from sidecar.models import families
from sidecar.models.families import claude_version
from sidecar.models.names import parse

if TYPE_CHECKING:
    from sidecar.counting.tokenizer import Tokenizer

_TOOL_CHOICE = 130
"""How much longer the prompt is, at most, where a tool must be called, which is not known here."""

_CLAUDE: dict[tuple[str, tuple[int, int]], int] = {
    ("opus", (5, 0)): 286,
    ("opus", (4, 8)): 290,
    ("opus", (4, 7)): 675,
    ("opus", (4, 6)): 497,
    ("opus", (4, 5)): 496,
    ("opus", (4, 1)): 313,
    ("opus", (4, 0)): 313,
    ("sonnet", (5, 0)): 354,
    ("sonnet", (4, 6)): 497,
    ("sonnet", (4, 5)): 496,
    ("sonnet", (4, 0)): 313,
    ("haiku", (4, 5)): 496,
    ("haiku", (3, 5)): 264,
    # From an earlier edition of the page, which no longer lists these models.
    ("sonnet", (3, 7)): 346,
    ("sonnet", (3, 5)): 346,
    ("opus", (3, 0)): 530,
    ("sonnet", (3, 0)): 159,
    ("haiku", (3, 0)): 264,
}
_CLAUDE_LINE = re.compile(r"opus|sonnet|haiku")
_NEWEST_PROMPT, _NEWEST_DOUBT = 354, 400


def tool_prompt(bare: str, generation: str) -> UncertainTokens:
    """Return the system prompt's tokens that any tools add; 0 if none are published."""
    if not generation.startswith("claude"):
        return UncertainTokens(0)
    line, version = _CLAUDE_LINE.search(bare), claude_version(bare)
    known = _CLAUDE.get((line[0], version)) if line and version else None
    return (
        UncertainTokens(_NEWEST_PROMPT, _NEWEST_DOUBT)
        if known is None
        else UncertainTokens(known, _TOOL_CHOICE)
    )


class TemplateTokens(NamedTuple):
    """The tokens that a template puts around messages and tools."""

    message: int
    """Around each message, including its role."""
    name: int
    """For a name, in addition to the name itself."""
    priming: int
    """Once, before the reply."""
    call: int
    """Around each tool call."""
    result: int
    """Around each tool result."""
    tool: int
    """Around each tool's schema."""
    tools: int
    """Once, if there are tools; in addition to `tool_prompt`."""


_OPENAI = TemplateTokens(message=4, name=1, priming=3, call=7, result=2, tool=7, tools=12)
_OPENAI_CL100K = _OPENAI._replace(tool=10)
_ANTHROPIC = TemplateTokens(message=4, name=1, priming=3, call=12, result=12, tool=8, tools=0)
_GEMINI = TemplateTokens(message=1, name=1, priming=0, call=5, result=5, tool=3, tools=0)
_CHATML = TemplateTokens(message=5, name=1, priming=3, call=8, result=4, tool=3, tools=20)

_COMPARED = re.compile(r"(chat)?gpt-4o|gpt-4(-|$)|gpt-3\.?5")
"""Models whose formula OpenAI's cookbook compared with reported usage."""

_DOUBT = 0.5
"""Share of a template's tokens that may be wrong, where it was not compared with usage."""
_DOUBT_COMPARED = 0.1

_cache_lock = threading.Lock()
_tool_sets: LRUCache[tuple[str, str, bytes], Measure] = LRUCache(maxsize=64)


def template_tokens(model: str) -> TemplateTokens:
    """Return the model's template tokens, as far as they are known."""
    generation = families.generation_of(model)
    if generation in families.OPENAI_GENERATIONS:
        return _OPENAI_CL100K if generation == "cl100k_base" else _OPENAI
    if generation.startswith("claude"):
        return _ANTHROPIC
    return _GEMINI if generation == "gemma" and "gemini" in parse(model).bare else _CHATML


def priming_tokens(model: str) -> int:
    """Return the tokens that a request carries once, besides its messages and tools."""
    return template_tokens(model).priming


def count_messages(
    messages: Sequence[Any],
    tools: Sequence[Any] | None,
    model: str,
    tokenizer: Tokenizer,
) -> Measure:
    """Count a whole request: messages, tools and the beginning of the reply. Never raises.

    Messages and tools may have any vendor's form. Nothing at all is 0, exact.
    """
    if not messages and not tools:
        return tokenizer.measure(0)
    parts = [message_tokens(message, model, tokenizer) for message in messages]
    if tools:
        parts.append(tools_tokens(tools, model, tokenizer))
    return _combine(parts, _priming(model) if messages else UncertainTokens(0), tokenizer.name)


def _priming(model: str) -> UncertainTokens:
    """Return the tokens that begin the reply."""
    tokens = priming_tokens(model)
    doubt = _DOUBT_COMPARED if _is_compared(model) else _DOUBT
    return UncertainTokens(tokens, doubt * tokens)


def _combine(parts: Sequence[Measure], priming: UncertainTokens, name: str) -> Measure:
    tokens = sum([part.tokens for part in parts]) + priming.tokens
    methods = {part.method for part in parts}
    method: Method = "estimate" if "estimate" in methods else "calibrated"
    errors = [part.error_percent for part in parts]
    if any(error is None for error in errors):
        return Measure(tokens, method, name, None)
    wrong = sum([part.tokens * (part.error_percent or 0.0) / 100 for part in parts], priming.doubt)
    return Measure(tokens, method, name, round(100 * wrong / max(1, tokens), 1))


def message_text(message: Any) -> str:
    """Return all text of a message, as a server counts it in one request. Never raises."""
    read = read_message(message)
    calls = [block for block in read.flat() if block.kind == "call"]
    written = [part for call in calls for part in (call.name, call.arguments)]
    return "\n".join([part for part in (read.name, *read.texts, *written) if part])


def message_tokens(
    message: Any, model: str, tokenizer: Tokenizer, counted: int | None = None
) -> Measure:
    """Count one message with the template's tokens around it. Never raises.

    Args:
        message: In any vendor's form.
        model: The model's name.
        tokenizer: Counts the texts.
        counted: Tokens of its text as the model's server counted them.
    """
    read, around = read_message(message), template_tokens(model)
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


def _media_tokens(media: Sequence[Block], model: str) -> tuple[UncertainTokens, bool]:
    """Return the tokens of pictures, clips and textless files, and whether all sizes are known."""
    bare, generation = parse(model).bare, families.generation_of(model)
    tokens, doubt, sized = 0, 0.0, True
    for block in media:
        if block.kind == "picture":
            size, detail = block.picture
            seen, known = image_tokens(bare, generation, size, detail), size is not None
        else:
            seen, known = clip_tokens(bare, generation, block.clip, block.detail), False
        tokens, doubt, sized = tokens + seen.tokens, doubt + seen.doubt, sized and known
    return UncertainTokens(tokens, doubt), sized


def _is_compared(model: str) -> bool:
    return _COMPARED.match(parse(model).bare) is not None


def _method(tokenizer: Tokenizer, *, compared: bool) -> Method:
    """Return the method of a count that includes a template."""
    if tokenizer.method not in ("exact", "endpoint"):
        return tokenizer.method
    return "calibrated" if compared else "estimate"


def _texts(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[int, float | None]:
    """Return the tokens of texts and how many may be wrong; None if that was not measured."""
    tokens, wrong = 0, 0.0
    unmeasured = False
    for text in texts:
        measure = measure_text(text, tokenizer)
        unmeasured = unmeasured or measure.error_percent is None
        tokens += measure.tokens
        wrong += measure.tokens * (measure.error_percent or 0.0) / 100
    return tokens, None if unmeasured else wrong


def _error(wrong: float | None, doubtful: float, tokens: int) -> float | None:
    """Return the tokens that may be wrong, in percent of all."""
    return None if wrong is None else round(100 * (wrong + doubtful) / max(1, tokens), 1)


def tools_tokens(tools: Sequence[Any], model: str, tokenizer: Tokenizer) -> Measure:
    """Count a set of tool schemas; each set is counted once. Never raises.

    OpenAI: the cookbook's formula, nested properties like those on top. Others: each schema's
    compact JSON, and the system prompt that tools add, where its length is published.
    """
    if not tools:
        return tokenizer.measure(0)
    digest = hashlib.sha256(as_json(list(tools)).encode("utf-8", "surrogatepass")).digest()
    # Calibrated and plain estimates have the same name, but different factors and bands.
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
    around = template_tokens(model)
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
    """Return the texts of a tool and the tokens around them, by OpenAI's cookbook.

    3 tokens per block, property and enum item; an enum starts with 3 less.
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
