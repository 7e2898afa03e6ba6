"""Counts the tokens of messages and tools for the status, pruning, preflight checks and requests.

Besides text, a prompt contains the tokens of the model's chat template, which is often not public.
Template tokens are computed with the vendor's formula if it is published. Otherwise, the numbers of
a similar or common template are used. The method of a count shows how reliable the result is:

* OpenAI's cookbook compared its formula (3 tokens per message with its role, 1 per name, 3 before
  the reply) with reported usage for gpt-3.5-turbo, gpt-4 and gpt-4o. Counts for these models are
  `calibrated`.
* Other counts are `calibrated` if the counts of their text are calibrated, and `estimate`
  otherwise.

The error band is the sum of the error of the text, half of the template tokens (a tenth if the
formula was compared with reported usage), and the margins of pictures, clips and files. It is None
if the error of the text was not measured. Counts by the model's server are more reliable, and
reported usage corrects these estimates.

Pictures, audio, video and files count by the rules that vendors publish. docs/reference/sources.md
lists the web page of each rule, and the date on which the page was read. A rule that is published
for the model is exact. For other models, the most similar rule is used, with a margin that covers
the possible error. If the length of a file or clip is unknown, a length is assumed, with a wide
margin.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from sidecar import typed
from sidecar.counting.count_result import Measure, Method
from sidecar.counting.tokenizer_interface import Tokenizer, measure_text
from sidecar.messages.media import Clip, Size
from sidecar.messages.messages import (
    Block,
    ToolSchema,
    as_json,
    properties_of,
    read_message,
    read_tools,
)
from sidecar.models.names import (
    OPENAI_GENERATIONS,
    compiled,
    counts_as_gemini_3,
    generation_of,
    parse,
)
from sidecar.models.window import claude_tool_prompt


class UncertainTokens(NamedTuple):
    """A number of tokens, with a margin of error in tokens."""

    tokens: int
    margin: float = 0


_TOOL_CHOICE_MARGIN = 130
"""Maximum number of tokens that a forced tool call adds to a prompt."""

_NEWEST_PROMPT, _NEWEST_MARGIN = 354, 400


def tool_prompt_tokens(bare: str, generation: str) -> UncertainTokens:
    """Return the token count of the vendor's system prompt for tools, or 0 if none is published."""
    if not generation.startswith("claude"):
        return UncertainTokens(0)
    known = claude_tool_prompt(bare)
    return (
        UncertainTokens(_NEWEST_PROMPT, _NEWEST_MARGIN)
        if known is None
        else UncertainTokens(known, _TOOL_CHOICE_MARGIN)
    )


class TemplateTokens(NamedTuple):
    """The tokens that a chat template adds to messages and tools.

    Attributes:
        message: Tokens per message, including its role.
        name: Tokens per message with a name, in addition to the name itself.
        priming: Tokens per request, before the reply.
        call: Tokens per tool call.
        result: Tokens per tool result.
        tool: Tokens per tool schema.
        tools: Tokens per request with tools, in addition to `tool_prompt_tokens`.
    """

    message: int
    name: int
    priming: int
    call: int
    result: int
    tool: int
    tools: int


_OPENAI = TemplateTokens(message=4, name=1, priming=3, call=7, result=2, tool=7, tools=12)
_OPENAI_CL100K = _OPENAI._replace(tool=10)
_ANTHROPIC = TemplateTokens(message=4, name=1, priming=3, call=12, result=12, tool=8, tools=0)
_GEMINI = TemplateTokens(message=1, name=1, priming=0, call=5, result=5, tool=3, tools=0)
_CHATML = TemplateTokens(message=5, name=1, priming=3, call=8, result=4, tool=3, tools=20)

_COMPARED = re.compile(r"(chat)?gpt-4o|gpt-4(-|$)|gpt-3\.?5")
"""Models for which OpenAI's cookbook compares its formula with reported usage."""

_TEMPLATE_MARGIN_SHARE = 0.5
"""Margin of error (±) of the number of template tokens, as a fraction of that number. Used if the
formula was never compared with reported usage.
"""
_COMPARED_MARGIN_SHARE = 0.1


def template_tokens(model: str) -> TemplateTokens:
    """Return the template tokens of the model's chat template, or of the most similar known
    template.
    """
    generation = generation_of(model)
    if generation in OPENAI_GENERATIONS:
        return _OPENAI_CL100K if generation == "cl100k_base" else _OPENAI
    if generation.startswith("claude"):
        return _ANTHROPIC
    return _GEMINI if generation == "gemma" and "gemini" in parse(model).bare else _CHATML


def priming_tokens(model: str) -> int:
    return template_tokens(model).priming


def count_messages(
    messages: Sequence[Any],
    tools: Sequence[Any] | None,
    model: str,
    tokenizer: Tokenizer,
) -> Measure:
    """Count a whole request: messages, tools and the tokens before the reply. Never raises.

    Messages and tools may be in any vendor's format. An empty request has exactly 0 tokens.
    """
    if not messages and not tools:
        return tokenizer.measure(0)
    parts = [count_message(message, model, tokenizer) for message in messages]
    if tools:
        parts.append(count_tools(tools, model, tokenizer))
    priming = priming_tokens(model) if messages else 0
    tokens = sum([part.tokens for part in parts]) + priming
    methods = {part.method for part in parts}
    method: Method = "estimate" if "estimate" in methods else "calibrated"
    error = _error_percent(parts, _template_margin_share(model) * priming, tokens)
    return Measure(tokens, method, tokenizer.name, error)


def message_text(message: Any) -> str:
    """Return all text of a message, so that a server can count it in one request. Never raises."""
    read = read_message(message)
    calls = [block for block in read.flat() if block.kind == "call"]
    written = [part for call in calls for part in (call.name, call.arguments)]
    return "\n".join([part for part in (read.name, *read.texts, *written) if part])


def count_message(
    message: Any, model: str, tokenizer: Tokenizer, counted: int | None = None
) -> Measure:
    """Count one message, including its template tokens. Never raises.

    Args:
        message: The message, in any vendor's format.
        model: The model's name.
        tokenizer: Counts the tokens of strings in the message.
        counted: The token count of the message's text, if the model's server has counted it.
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
    media_tokens, has_known_sizes = _media_tokens(media, model)
    if counted is not None:
        # The margin includes all template tokens, because some templates add twice as many.
        tokens = counted + overhead + media_tokens.tokens
        error = _error_percent((), overhead + media_tokens.margin, tokens)
        return Measure(tokens, "estimate", tokenizer.name, error, counted)
    parts = [measure_text(text, tokenizer) for text in (*read.texts, *written, read.name or "")]
    tokens = sum([part.tokens for part in parts]) + overhead + media_tokens.tokens
    is_compared = not (calls or results or media) and _is_compared(model)
    method = (
        _method_with_template(tokenizer, is_compared=is_compared) if has_known_sizes else "estimate"
    )
    share = _COMPARED_MARGIN_SHARE if is_compared else _TEMPLATE_MARGIN_SHARE
    error = _error_percent(parts, share * overhead + media_tokens.margin, tokens)
    return Measure(tokens, method, tokenizer.name, error)


def _media_tokens(media: Sequence[Block], model: str) -> tuple[UncertainTokens, bool]:
    bare, generation = parse(model).bare, generation_of(model)
    total, has_known_sizes = UncertainTokens(0), True
    for block in media:
        if block.kind == "picture":
            size, detail = block.picture
            tokens = image_tokens(bare, generation, size, detail)
            has_known_sizes &= size is not None
        else:
            tokens = clip_tokens(bare, generation, block.clip, block.detail)
            has_known_sizes = False
        total = UncertainTokens(total.tokens + tokens.tokens, total.margin + tokens.margin)
    return total, has_known_sizes


def _is_compared(model: str) -> bool:
    return _COMPARED.match(parse(model).bare) is not None


def _template_margin_share(model: str) -> float:
    return _COMPARED_MARGIN_SHARE if _is_compared(model) else _TEMPLATE_MARGIN_SHARE


def _method_with_template(tokenizer: Tokenizer, *, is_compared: bool) -> Method:
    if tokenizer.method not in ("exact", "endpoint"):
        return tokenizer.method
    return "calibrated" if is_compared else "estimate"


def _error_percent(parts: Sequence[Measure], margin: float, tokens: int) -> float | None:
    """Return the error band of a sum, in percent.

    Returns None if the error of any text was not measured.

    Args:
        parts: The counts of the texts in the sum.
        margin: The margin of error of the rest of the sum, in tokens.
        tokens: The sum.
    """
    if any(part.error_percent is None for part in parts):
        return None
    margin += sum([part.tokens * (part.error_percent or 0.0) / 100 for part in parts])
    return round(100 * margin / max(1, tokens), 1)


def count_tools(tools: Sequence[Any], model: str, tokenizer: Tokenizer) -> Measure:
    """Count a set of tool schemas. Never raises.

    OpenAI's tools are counted with the formula in its cookbook. Other tools are counted as compact
    JSON. If the vendor adds a system prompt for tools and its length is published, it is included.
    """
    if not tools:
        return tokenizer.measure(0)
    schemas, around = read_tools(tools), template_tokens(model)
    overhead = around.tool * len(schemas) + around.tools
    parts: list[Measure] = []
    for tool in schemas:
        texts, extra = ([_tool_as_json(tool)], 0)
        if around in (_OPENAI, _OPENAI_CL100K):
            texts, extra = _openai_tool(tool)
        parts += [measure_text(text, tokenizer) for text in texts]
        overhead += extra
    prompt = tool_prompt_tokens(parse(model).bare, generation_of(model))
    tokens = sum([part.tokens for part in parts]) + overhead + prompt.tokens
    margin = _TEMPLATE_MARGIN_SHARE * overhead + prompt.margin
    error = _error_percent(parts, margin, tokens)
    return Measure(
        tokens, _method_with_template(tokenizer, is_compared=False), tokenizer.name, error
    )


def _tool_as_json(tool: ToolSchema) -> str:
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return tool.opaque or as_json(fields)


def _openai_tool(tool: ToolSchema) -> tuple[list[str], int]:
    """Return the strings in a tool schema, and how many tokens OpenAI's formula adds to them.

    Each block, property and enum value adds 3 tokens, except for the first value of an enum.
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


# Pictures, audio, video and files

UNKNOWN_SIZE = (1024, 1024)
"""Assumed width and height of pictures of unknown size."""
_EXTREMES = ((256, 256), (3840, 2160))
"""A small and a large size, in pixels. Most picture sizes lie between them."""
LARGEST_WINDOW = 2_097_152
"""The largest context window of any model with a rule for media, in tokens. If a picture or
clip seems to have more tokens, its header is damaged.
"""


class _Fit(NamedTuple):
    side: int
    patches: int | None = None


class _Patches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    factor: float
    low: _Fit
    high: _Fit
    original: _Fit | None = None
    auto: str = "high"


class _Tiles(NamedTuple):
    base: int
    tile: int


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule in `pictures.toml`, which has either patches or tiles."""

    models: str
    patches: _Patches | None = None
    tiles: _Tiles = _Tiles(0, 0)
    margin: float = 0.0


@cache
def _rules() -> list[_Rule]:
    table = typed.read_table("sidecar.counting", "pictures.toml", dict[str, list[_Rule]])
    return table["picture"]


_GEMINI_3 = {"low": 280, "medium": 560, "high": 1120, "ultra_high": 2240}
_GEMINI_2 = {"low": 64, "medium": 256}


def image_tokens(
    bare: str, generation: str, size: Size | None, detail: str = "auto"
) -> UncertainTokens:
    """Return the number of tokens in a picture.

    If the size is unknown, 1024 x 1024 pixels are assumed, with a margin that covers sizes from 256
    x 256 to 3840 x 2160.

    Args:
        bare: The model's name without the provider.
        generation: The model's tokenizer generation.
        size: The picture's width and height, if known.
        detail: OpenAI's image detail, or Gemini's media resolution.
    """
    if size is not None:
        return _sized_image_tokens(bare, generation, size, detail)
    assumed = _sized_image_tokens(bare, generation, UNKNOWN_SIZE, detail)
    extremes = [
        _sized_image_tokens(bare, generation, extreme, detail).tokens for extreme in _EXTREMES
    ]
    deviation = max(abs(tokens - assumed.tokens) for tokens in extremes)
    return UncertainTokens(assumed.tokens, assumed.margin + deviation)


def media_resolution(detail: str) -> str:
    """Return the short form of Gemini's media resolution, such as `high`, or "" if it is
    unspecified.
    """
    name = detail.lower().removeprefix("media_resolution_")
    return "" if name in ("auto", "unspecified") else name


def _sized_image_tokens(bare: str, generation: str, size: Size, detail: str) -> UncertainTokens:
    return _within_window(_picture_tokens(bare, generation, size, detail))


def _within_window(counted: UncertainTokens) -> UncertainTokens:
    most = LARGEST_WINDOW
    return UncertainTokens(min(counted.tokens, most), min(counted.margin, most))


def _picture_tokens(bare: str, generation: str, size: Size, detail: str) -> UncertainTokens:
    width, height = (max(1, side) for side in size)
    if generation.startswith("claude"):
        edge, most = (2576, 4784) if generation == "claude-4.7" else (1568, 1568)
        return UncertainTokens(_anthropic_tokens(width, height, edge, most))
    if generation == "gemma":
        return _gemini_image_tokens(bare, width, height, detail)
    rule = next(rule for rule in _rules() if compiled(rule.models).match(bare))
    if rule.patches is not None:
        tokens = _patch_tokens(width, height, rule.patches, detail)
    else:
        tokens = rule.tiles.base if detail == "low" else _tile_tokens(width, height, rule.tiles)
    return UncertainTokens(tokens, math.ceil(rule.margin * tokens))


def _tile_tokens(width: int, height: int, rule: _Tiles) -> int:
    shrink = min(1.0, 2048 / max(width, height))
    shrink *= min(1.0, 768 / (min(width, height) * shrink))
    across = math.ceil(round(width * shrink, 6) / 512)
    down = math.ceil(round(height * shrink, 6) / 512)
    return rule.base + rule.tile * across * down


def _patch_tokens(width: int, height: int, rule: _Patches, detail: str) -> int:
    detail = rule.auto if detail not in ("low", "high", "original") else detail
    fit = {"low": rule.low, "original": rule.original or rule.high}.get(detail, rule.high)
    shrink = min(1.0, fit.side / max(width, height))
    width, height = max(1, round(width * shrink)), max(1, round(height * shrink))
    if fit.patches is not None and _count_patches(width, height) > fit.patches:
        width, height = _shrink_to_patches(width, height, fit.patches)
    return math.ceil(_count_patches(width, height) * rule.factor)


def _count_patches(width: int, height: int) -> int:
    return math.ceil(width / 32) * math.ceil(height / 32)


def _shrink_to_patches(width: int, height: int, patches: int) -> Size:
    shrink = math.sqrt(32 * 32 * patches / (width * height))
    across, down = width * shrink / 32, height * shrink / 32
    rounding = [math.floor(side) / side for side in (across, down) if side >= 1]
    shrink *= min(rounding, default=1.0)
    # Adding 1e-6 prevents a floating-point error from rounding a whole number down.
    return max(1, int(width * shrink + 1e-6)), max(1, int(height * shrink + 1e-6))


def _anthropic_tokens(width: int, height: int, edge: int, most: int) -> int:
    long_side = max(width, height)

    def cost(longest: int) -> int:
        sides = (max(1, round(side * longest / long_side)) for side in (width, height))
        across, down = (math.ceil(side / 28) for side in sides)
        return across * down

    return cost(max(1, bisect_right(range(1, min(long_side, edge) + 1), most, key=cost)))


def _gemini_image_tokens(bare: str, width: int, height: int, detail: str) -> UncertainTokens:
    resolution = media_resolution(detail)
    if counts_as_gemini_3(bare):
        most = _GEMINI_3.get(resolution, 1120)
        return UncertainTokens(most, math.ceil(most / 10))
    if resolution in _GEMINI_2:
        return UncertainTokens(_GEMINI_2[resolution], 2)
    if max(width, height) <= 384:
        return UncertainTokens(258)
    unit = max(1, math.floor(min(width, height) / 1.5))
    tokens = 258 * math.ceil(width / unit) * math.ceil(height / unit)
    return UncertainTokens(tokens, tokens // 2)  # Google describes its formula as approximate


FILE_TOKENS = 1_500
"""Assumed number of tokens for a file whose text is not included: about a page of a PDF."""
_ASSUMED_FILE = UncertainTokens(FILE_TOKENS, 3 * FILE_TOKENS)

_CLAUDE_PAGE = UncertainTokens(2_250, 750)
_GEMINI_PAGE = {"low": 280, "medium": 560, "high": 1_120}
_GEMINI_2_PAGE = 258
_PAGE_SIZE = (1024, 1325)
"""Assumed width and height, in pixels, of a page that the vendor converts to a picture."""
_PAGE_TEXT = 500

_OPENAI_AUDIO = 10.0
"""Number of tokens per second of audio in OpenAI's models."""


def clip_tokens(bare: str, generation: str, clip: Clip, detail: str = "auto") -> UncertainTokens:
    """Return the number of tokens in an audio clip, a video or a document.

    Args:
        bare: The model's name without the provider.
        generation: The model's tokenizer generation.
        clip: The file's kind and length.
        detail: Gemini's media resolution.
    """
    if clip.pages is not None:
        page = _page_tokens(bare, generation, media_resolution(detail))
        pages = UncertainTokens(clip.pages * page.tokens, clip.pages * page.margin)
        return _within_window(pages)
    if clip.media == "document" or clip.seconds is None:
        return _ASSUMED_FILE
    if generation == "gemma":
        rate = _gemini_rate(bare, clip, media_resolution(detail))
    elif clip.media == "audio":
        rate = _OPENAI_AUDIO
    else:
        return _ASSUMED_FILE
    tokens = math.ceil(clip.seconds * rate)
    published = generation == "gemma" or "audio" in bare or "realtime" in bare
    margin = math.ceil(tokens * (0.1 if published else 2.0))
    return _within_window(UncertainTokens(tokens, margin))


def _page_tokens(bare: str, generation: str, resolution: str) -> UncertainTokens:
    if generation.startswith("claude"):
        return _CLAUDE_PAGE
    if generation == "gemma":
        is_gemini_3 = counts_as_gemini_3(bare)
        tokens = _GEMINI_PAGE.get(resolution, 560) if is_gemini_3 else _GEMINI_2_PAGE
        return UncertainTokens(tokens, math.ceil(tokens / 10))
    if generation in OPENAI_GENERATIONS:
        tokens = image_tokens(bare, generation, _PAGE_SIZE).tokens + _PAGE_TEXT
        return UncertainTokens(tokens, tokens)
    return UncertainTokens(FILE_TOKENS, 2 * FILE_TOKENS)


def _gemini_rate(bare: str, clip: Clip, resolution: str) -> float:
    is_gemini_3 = counts_as_gemini_3(bare)
    sound = 25.0 if is_gemini_3 else 32.0
    frames = {"high": 280} if is_gemini_3 else {"low": 64}
    frame = frames.get(resolution, 70 if is_gemini_3 else 258)
    return sound if clip.media == "audio" else clip.fps * frame + sound
