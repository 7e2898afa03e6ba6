"""The parts of a request besides its turns: system prompt, tools and named sections."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import msgspec

from sidecar.config.settings import Truncation
from sidecar.context.counter import Counter, Sums, add_sums, document_sums, sums_of
from sidecar.counting.count import Measure
from sidecar.errors import RequestError
from sidecar.messages.tool_schemas import read_tools
from sidecar.messages.turns import Turn

TOOLS_SHOWN = 3
"""How many of the largest tools a message names."""


class Counted(Protocol):
    """A part of a request that can be counted."""

    def measure(self, counter: Counter) -> Measure:
        """Return the part's tokens."""


class SectionSource(Counted, Protocol):
    """The source of a section's text."""

    @property
    def version(self) -> Hashable:
        """Changes whenever the text does."""

    def text(self) -> str: ...


class _CachedCount:
    """Caches one count per model and tokenizer."""

    def __init__(self) -> None:
        self._measures: dict[tuple[str, str], Measure] = {}

    def measure(self, counter: Counter) -> Measure:
        """Return the cached count. With another tokenizer, it is an estimate."""
        key = counter.key, counter.basis
        found = self._measures.get(key)
        if found is None:
            found = self._measures[key] = self._count(counter)
        return found

    def take(self, counter: Counter, measure: Measure) -> None:
        """Set the count for the counter's model and tokenizer."""
        self._measures[counter.key, counter.basis] = measure

    def _count(self, counter: Counter) -> Measure:
        raise NotImplementedError


class TextSource(_CachedCount):
    """A section that is given as a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @property
    def version(self) -> Hashable:
        return 0

    def text(self) -> str:
        return self._text

    def _count(self, counter: Counter) -> Measure:
        return counter.text(self._text)


class SystemPrompt(_CachedCount):
    """The system prompt, counted as a message."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    @property
    def turn(self) -> Turn:
        """The message that contains it."""
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
    """Return the error for a conversation that was restored without its texts."""
    return RequestError(
        "noText",
        "only the token counts of this restored session are known: send its system prompt, "
        "tools and turns again after context/reset",
    )


OTHER_PERCENT = 60.0
"""Error band (±%) of a count by another model's vocabulary."""


def fixed_sums(counter: Counter, *parts: SystemPrompt | ToolSet | RestoredPart | None) -> Sums:
    """Return the tokens of these parts together."""
    return add_sums([sums_of(part.measure(counter)) for part in parts if part])


class RestoredPart:
    """A part whose text was lost in a restart."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure

    @property
    def version(self) -> Hashable:
        return 0

    def text(self) -> str:
        """Raises RequestError `noText`."""
        raise no_text()

    def measure(self, counter: Counter) -> Measure:
        """Return the saved count. With another tokenizer, it is an estimate."""
        if counter.tokenizer == self._measure.tokenizer:
            return self._measure
        return Measure(self._measure.tokens, "estimate", counter.tokenizer, OTHER_PERCENT)


class SectionCount(msgspec.Struct, frozen=True):
    """A section's count."""

    model: str
    measure: Measure
    source: SectionSource
    """The text that was counted."""
    cache_key: Hashable = None
    """Everything besides the text that the count depends on."""
    final: bool = True
    """Whether no better count is expected from an endpoint."""

    @property
    def is_sure(self) -> bool:
        """Whether the model's own tokenizer or server made the count."""
        return self.measure.method in ("exact", "endpoint")

    def is_like(self, other: SectionCount) -> bool:
        """Return whether both counts were made in the same way and can be compared."""
        mine, its = self.measure, other.measure
        if (self.model, mine.method, mine.tokenizer) != (other.model, its.method, its.tokenizer):
            return False
        return self.is_sure or (self.cache_key, self.final) == (other.cache_key, other.final)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the context, and how to shorten it."""

    name: str
    source: SectionSource
    document_count: SectionCount | None = None
    """The count of the section's document, if known."""
    reported: SectionCount | None = None
    """The best count of its text at the last report."""
    held: SectionCount | None = None
    """The section's part of the reported number."""
    cap: int | None = None
    """Token limit of the section."""
    priority: int = 0
    """Sections with a lower priority are shortened first."""
    truncation: Truncation = "middle"

    def measure(self, counter: Counter) -> Measure:
        """Return the section's tokens, limited by its cap."""
        return self.capped(self.whole(counter))

    def capped(self, whole: Measure) -> Measure:
        if self.cap is None or whole.tokens <= self.cap:
            return whole
        return msgspec.structs.replace(whole, tokens=self.cap)

    def whole(self, counter: Counter) -> Measure:
        """Return the tokens of the whole text, without the cap."""
        return self.document_count_for(counter.key) or self.source.measure(counter)

    def document_count_for(self, model: str) -> Measure | None:
        """Return its document's count for a model, or None."""
        known = self.document_count
        holds = known and known.model == model and known.source is self.source
        return known.measure if known and holds else None

    def as_reported(self, model: str) -> Section:
        """Return the section after a report that includes its current text."""
        held = self.document_count if self.document_count_for(model) is not None else None
        return msgspec.structs.replace(self, reported=held, held=held)

    def with_counts(self, now: SectionCount, then: SectionCount | None) -> tuple[Section, Sums]:
        """Return the section with new counts of its text and of its reported text.

        Also returns how much the count in the reported number changes.
        """
        held = self.held
        if held is None or then is None or held.model != then.model:
            return msgspec.structs.replace(self, document_count=now), Sums()
        is_surer = self.reported is None or then.is_sure or not self.reported.is_sure
        reported = then if is_surer else self.reported
        made = msgspec.structs.replace(self, document_count=now, reported=reported, held=then)
        mine, its = self.capped(then.measure), self.capped(held.measure)
        return made, document_sums(mine).minus(document_sums(its))

    def sums(self, counter: Counter) -> Sums:
        measure = self.measure(counter)
        return document_sums(measure) if self.document_count_for(counter.key) else sums_of(measure)


def largest_tools(tools: ToolSet | RestoredPart | None, counter: Counter) -> list[tuple[str, int]]:
    """Return names and tokens of the largest tool schemas.

    Tokens that all tools have in common belong to no single tool.
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
    """Return a tool's name, or all names if a vendor's format combines several tools."""
    return ", ".join([schema.name for schema in read_tools([tool])])
