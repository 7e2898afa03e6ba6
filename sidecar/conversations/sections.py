"""The parts of a request other than its turns, and how they are assembled (`context/assemble`).

These are the system prompt, tools and named sections. `Assembler` puts a request together under a
token limit, in an order that suits vendors' prompt caches: the parts that rarely change come first.
If a request is too large, its logs are shortened, then its mandates are dropped, and finally its
context is replaced by a placeholder.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from cachetools import LRUCache

from sidecar.config.settings import Truncation
from sidecar.conversations.context_protocol import (
    AssembledSection,
    AssembleParams,
    AssembleResult,
    PackPart,
)
from sidecar.conversations.turn_counts import (
    Counter,
    Sums,
    add_sums,
    document_sums,
    restored_measure,
    sums_of,
)
from sidecar.counting.count_result import Measure
from sidecar.counting.open_documents import Snapshot
from sidecar.errors import RequestError
from sidecar.messages.messages import Turn, read_tools

logger = logging.getLogger(__name__)

SKIPPED_SENSORS = frozenset({"heartbeat", "delegation"})
"""Values of the `sensor` param for requests that contain no context."""
LOG_LINES = 5
PREFIXES_KEPT = 8
TOOLS_SHOWN = 3
"""The maximum number of tools to name in a message."""


class SectionSource(Protocol):
    """The source of a section's text, such as a document."""

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the text changes."""

    @property
    def snapshot(self) -> Snapshot:
        """The text. It caches the counts of its pieces."""

    def measure(self, counter: Counter) -> Measure:
        """Return the text's token count."""


class _CachedCount:
    """A request part with a cached count for each model and tokenizer."""

    def __init__(self) -> None:
        self._measures: dict[tuple[str, str], Measure] = {}

    def measure(self, counter: Counter) -> Measure:
        """Return the cached count. If there is none, the part is counted first."""
        key = counter.key, counter.basis
        found = self._measures.get(key)
        if found is None:
            found = self._measures[key] = self._count(counter)
        return found

    def set_count(self, counter: Counter, measure: Measure) -> None:
        """Store a count for the counter's model and tokenizer."""
        self._measures[counter.key, counter.basis] = measure

    def _count(self, counter: Counter) -> Measure:
        raise NotImplementedError


class TextSource(_CachedCount):
    """A section's text, as sent by the client."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.snapshot = Snapshot(text=text)

    @property
    def version(self) -> Hashable:
        return 0

    def _count(self, counter: Counter) -> Measure:
        return counter.text(self.snapshot.text)


class SystemPrompt(_CachedCount):
    """A system prompt, which is counted as a message."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    @property
    def turn(self) -> Turn:
        """The system prompt as a message."""
        return Turn(role="system", content=self.text)

    def _count(self, counter: Counter) -> Measure:
        return counter.message(self.turn)


class ToolSet(_CachedCount):
    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        self.tools = list(tools)

    def _count(self, counter: Counter) -> Measure:
        return counter.tools(self.tools)


def no_text() -> RequestError:
    """Return the error for a conversation that was restored without its text."""
    return RequestError(
        "noText",
        "this session was restored without its text; reset it with context/reset, then send "
        "its system prompt, tools and turns again",
    )


def fixed_sums(counter: Counter, *parts: SystemPrompt | ToolSet | RestoredPart | None) -> Sums:
    """Return the total of the given parts, such as the system prompt and the tools."""
    return add_sums([sums_of(part.measure(counter)) for part in parts if part])


class RestoredPart:
    """A request part whose count was saved without its text."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure

    @property
    def version(self) -> Hashable:
        return 0

    @property
    def snapshot(self) -> Snapshot:
        """Raises RequestError `noText`, because the text was not saved."""
        raise no_text()

    def measure(self, counter: Counter) -> Measure:
        """Return the saved count, marked as an estimate if the tokenizer has changed."""
        return restored_measure(self._measure, counter)


class SectionCount(msgspec.Struct, frozen=True):
    """A section's token count for a model."""

    model: str
    measure: Measure
    source: SectionSource
    cache_key: Hashable = None
    """Everything that the count depends on besides the text."""
    final: bool = True
    """Whether the count is final. False while an endpoint's count is still expected."""

    @property
    def is_sure(self) -> bool:
        """Whether the count comes from the model's own tokenizer or its server."""
        return self.measure.method in ("exact", "endpoint")

    def is_like(self, other: SectionCount) -> bool:
        """Return whether two counts were made in the same way and are therefore comparable."""
        mine, its = self.measure, other.measure
        if (self.model, mine.method, mine.tokenizer) != (other.model, its.method, its.tokenizer):
            return False
        return self.is_sure or (self.cache_key, self.final) == (other.cache_key, other.final)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A named section of the context, with its counts and the rules for shortening it."""

    name: str
    source: SectionSource
    document_count: SectionCount | None = None
    """The section's count as a document, or None if it has not been counted as one."""
    reported: SectionCount | None = None
    """The most reliable count of the section's text as of the last usage report."""
    in_report: SectionCount | None = None
    """The section's count when it was last added to `Anchor.fixed`.

    This count ignores the token limit. `Anchor.fixed` includes only tokens up to the limit.
    """
    cap: int | None = None
    """The section's token limit."""
    priority: int = 0
    """Sections with a lower priority are shortened first."""
    truncation: Truncation = "middle"

    def measure(self, counter: Counter) -> Measure:
        """Return the section's count, which is at most its token limit."""
        return self.capped(self.whole(counter))

    def capped(self, whole: Measure) -> Measure:
        """Return a count, reduced to the section's token limit if necessary."""
        if self.cap is None or whole.tokens <= self.cap:
            return whole
        return msgspec.structs.replace(whole, tokens=self.cap)

    def whole(self, counter: Counter) -> Measure:
        """Return the whole text's count, ignoring the token limit."""
        return self.document_count_for(counter.key) or self.source.measure(counter)

    def document_count_for(self, model: str) -> Measure | None:
        """Return the current text's count as a document for a model, or None if there is none."""
        known = self.document_count
        holds = known and known.model == model and known.source is self.source
        return known.measure if known and holds else None

    def as_reported(self, model: str) -> Section:
        """Return a copy that marks the current text as included in the last usage report."""
        in_report = self.document_count if self.document_count_for(model) is not None else None
        return msgspec.structs.replace(self, reported=in_report, in_report=in_report)

    def with_counts(self, now: SectionCount, then: SectionCount | None) -> tuple[Section, Sums]:
        """Return a copy with new counts, and the resulting change in `Anchor.fixed`.

        Args:
            now: The count of the current text.
            then: The count of the text that the last usage report included, or None.
        """
        in_report = self.in_report
        if in_report is None or then is None or in_report.model != then.model:
            return msgspec.structs.replace(self, document_count=now), Sums()
        is_better = self.reported is None or then.is_sure or not self.reported.is_sure
        reported = then if is_better else self.reported
        made = msgspec.structs.replace(self, document_count=now, reported=reported, in_report=then)
        mine, its = self.capped(then.measure), self.capped(in_report.measure)
        return made, document_sums(mine).minus(document_sums(its))

    def sums(self, counter: Counter) -> Sums:
        """Return the section's count as `Sums`."""
        measure = self.measure(counter)
        return document_sums(measure) if self.document_count_for(counter.key) else sums_of(measure)


def largest_tools(tools: ToolSet | RestoredPart | None, counter: Counter) -> list[tuple[str, int]]:
    """Return the names and sizes of the largest tool schemas.

    The size of a minimal schema is subtracted from each size.
    """
    if not isinstance(tools, ToolSet):
        return []
    any_tool = counter.tools([{"name": "t"}]).tokens
    weights = [
        (tool_names(tool), max(0, counter.tools([tool]).tokens - any_tool)) for tool in tools.tools
    ]
    heavy = [weight for weight in weights if weight[1]]
    return sorted(heavy, key=lambda weight: -weight[1])[:TOOLS_SHOWN]


def tool_names(tool: Any) -> str:
    """Return a tool's name, or several names if the vendor's format groups tools."""
    return ", ".join([schema.name for schema in read_tools([tool])])


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
        cut = text != section.source.snapshot.text
        measure = counter.text(text) if cut else section.whole(counter)
        yield PackPart(name=section.name, tokens=measure.tokens, trimmed=cut)


def _cap_text(section: Section, counter: Counter, preset: Preset | None) -> str:
    cap = section.cap
    if cap is None and preset is not None:
        cap = preset.caps.get(section.name)
    text = section.source.snapshot.text
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
