"""Assembles requests under a token limit, in an order that suits vendors' prompt caches.

The parts that rarely change come first. If a request is too large, its logs are shortened, then
its mandates are dropped, and finally its context is replaced by a placeholder.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from cachetools import LRUCache

from sidecar.conversations.context_protocol import (
    AssembledSection,
    AssembleParams,
    AssembleResult,
    PackPart,
)
from sidecar.conversations.sections import Section
from sidecar.conversations.turn_counts import Counter

logger = logging.getLogger(__name__)

SKIPPED_SENSORS = frozenset({"heartbeat", "delegation"})
"""Values of the `sensor` param for requests that contain no context."""
LOG_LINES = 5
PREFIXES_KEPT = 8


class _Prefix(msgspec.Struct, frozen=True):
    text: str
    digest: str


class _Context(msgspec.Struct, frozen=True):
    keys: tuple[object, ...]
    text: str
    items: int
    """The number of items in the context, shown in the placeholder if the context is removed."""
    parts: tuple[PackPart, ...] = ()


class Assembler:
    """Assembles one session's requests, reusing unchanged parts."""

    def __init__(self) -> None:
        self._prefixes: LRUCache[bytes, _Prefix] = LRUCache(PREFIXES_KEPT)
        self._context: _Context | None = None

    def copy(self) -> Assembler:
        made = Assembler()
        made._prefixes.update(self._prefixes)
        made._context = self._context
        return made

    def assemble(
        self,
        params: AssembleParams,
        counter: Counter,
        sections: Sequence[Section],
        usable: int,
    ) -> AssembleResult:
        """Return a request's parts in order, trimmed to fit.

        Args:
            params: The text of each part, and the cache keys of the context.
            counter: Counts and shortens text for the session's model.
            sections: The session's sections, which are rendered if the params contain no context.
            usable: The maximum size in tokens, used if the params do not set one.
        """
        prefix, prefix_cached = self._build_prefix(params)
        skipped = params.sensor in SKIPPED_SENSORS
        context, context_cached = _NOTHING, False
        if not skipped:
            context, context_cached = self._build_context(params, counter, sections)
        mandates = params.mandates or ""
        parts = {
            "prefix": prefix.text,
            "mandates": mandates if isinstance(mandates, str) else "\n".join(mandates),
            "context": context.text,
            "logs": params.logs or "",
            "user": params.user or "",
        }
        limit = usable if params.max_tokens is None else params.max_tokens
        kept, level = self._trim(parts, context, limit, counter)
        tokens = sum(section.tokens for section in kept)
        return AssembleResult(
            sections=kept,
            tokens=tokens,
            prefix_hash=prefix.digest,
            prefix_cached=prefix_cached,
            context_cached=context_cached,
            skipped=skipped,
            trim_level=level,
            fits=tokens <= limit,
            intent=params.focus,
            budget_applied=limit,
            pack=list(context.parts),
        )

    def _build_prefix(self, params: AssembleParams) -> tuple[_Prefix, bool]:
        inputs = [params.assistant, params.identity, params.feedback, _tools_as_json(params.tools)]
        key = _digest(json.dumps(inputs))
        found = self._prefixes.get(key)
        if found is not None:
            return found, True
        text = "\n\n".join(part for part in inputs if part)
        made = self._prefixes[key] = _Prefix(text, _digest(text).hex())
        return made, False

    def _build_context(
        self, params: AssembleParams, counter: Counter, sections: Sequence[Section]
    ) -> tuple[_Context, bool]:
        followed = tuple(version for one in sections if (version := one.source.version) != 0)
        named = (params.focus, params.scope, params.memory_version, params.preset)
        keys = (*named, counter.key, counter.basis, *followed)
        kept = self._context
        if kept is not None and kept.keys == keys and params.context in (None, kept.text):
            return kept, True
        if params.context is not None:
            lines = [line for line in params.context.splitlines() if line.strip()]
            made = _Context(keys, params.context, len(lines))
        else:
            text, parts = render(sections, counter, params.preset)
            made = _Context(keys, text, len(sections), parts)
        self._context = made
        return made, False

    def _trim(
        self, parts: dict[str, str], context: _Context, limit: int, counter: Counter
    ) -> tuple[list[AssembledSection], int]:
        steps: tuple[tuple[str, Callable[[str], str]], ...] = (
            ("logs", last_lines),
            ("mandates", lambda _: ""),
            ("context", lambda text: trimmed_context(context.items) if text else ""),
        )
        kept = dict(parts)
        tokens = {name: counter.text(text).tokens for name, text in parts.items()}
        level = 0
        for name, shorten in steps:
            if sum(tokens.values()) <= limit:
                break
            level += 1
            kept[name] = shorten(kept[name])
            before, tokens[name] = tokens[name], counter.text(kept[name]).tokens
            logger.debug("trim level %d: %s, %d -> %d tokens", level, name, before, tokens[name])
        cut = {"context"} if any(part.trimmed for part in context.parts) else set()
        made = [
            AssembledSection(
                name=name,
                text=text,
                tokens=tokens[name],
                trimmed=name in cut or text != parts[name],
            )
            for name, text in kept.items()
        ]
        return made, level


def last_lines(logs: str) -> str:
    """Return the last `LOG_LINES` lines of a log."""
    return "".join(logs.splitlines(keepends=True)[-LOG_LINES:])


def trimmed_context(items: int) -> str:
    """Return the placeholder for a context that was removed."""
    return f"[Context trimmed: {items} items]"


def _tools_as_json(tools: str | list[str | dict[str, object]] | None) -> str | None:
    """Serialize tools with sorted keys, so that equal schemas produce the same text."""
    if tools is None or isinstance(tools, str):
        return tools
    return "\n".join(
        tool if isinstance(tool, str) else json.dumps(tool, sort_keys=True, ensure_ascii=False)
        for tool in tools
    )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


_NOTHING = _Context((), "", 0)


class Preset(msgspec.Struct, frozen=True):
    """Token limits for a context and its sections."""

    total: int
    caps: Mapping[str, int]


PRESETS: Mapping[str, Preset] = {
    "mind": Preset(
        total=8000,
        caps={
            "intent_summary": 300,
            "product_overview": 600,
            "api_signatures": 2200,
            "recent_diffs": 1200,
            "impl_snippets": 3000,
            "configs_profiles": 700,
        },
    )
}


class Rendered(NamedTuple):
    """A rendered context and its sections' token counts."""

    text: str
    parts: tuple[PackPart, ...] = ()


def render(sections: Sequence[Section], counter: Counter, preset: str | None = None) -> Rendered:
    """Render each section under a heading with its name, and shorten its text to its token limit.

    A preset limits the total size, and sets a limit for sections that have none. If the total
    is too large, the sections with the lowest priority are shortened first. Among sections with
    the same priority, the last one is shortened first.
    """
    limits = PRESETS.get(preset or "")
    texts = [_cap_text(section, counter, limits) for section in sections]
    whole = _join_parts(sections, texts)
    if limits is not None and counter.text(whole).tokens > limits.total:
        whole = _shorten_parts(sections, texts, counter, limits)
    return Rendered(whole, tuple(_render_parts(sections, texts, counter)))


def _render_parts(
    sections: Sequence[Section], texts: Sequence[str], counter: Counter
) -> Iterator[PackPart]:
    for section, text in zip(sections, texts, strict=True):
        cut = text != section.source.text()
        measure = counter.text(text) if cut else section.whole(counter)
        yield PackPart(name=section.name, tokens=measure.tokens, trimmed=cut)


def _cap_text(section: Section, counter: Counter, preset: Preset | None) -> str:
    cap = section.cap
    if cap is None and preset is not None:
        cap = preset.caps.get(section.name)
    text = section.source.text()
    return text if cap is None else counter.fit(text, cap, section.truncation)


def _join_parts(sections: Sequence[Section], texts: Sequence[str]) -> str:
    return "\n\n".join(
        f"## {section.name}\n\n{text}"
        for section, text in zip(sections, texts, strict=True)
        if text
    )


def _shorten_parts(
    sections: Sequence[Section], texts: list[str], counter: Counter, preset: Preset
) -> str:
    order = sorted(range(len(sections)), key=lambda index: (sections[index].priority, -index))
    for index in order:
        over = counter.text(_join_parts(sections, texts)).tokens - preset.total
        if over <= 0:
            break
        left = max(0, counter.text(texts[index]).tokens - over)
        texts[index] = counter.fit(texts[index], left, sections[index].truncation)
    whole = _join_parts(sections, texts)
    if counter.text(whole).tokens <= preset.total:
        return whole
    return counter.fit(whole, preset.total, "middle")
