"""The parts of a request other than its turns: the system prompt, tools and named sections."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import msgspec

from sidecar.config.settings import Truncation
from sidecar.conversations.turn_counts import (
    Counter,
    Sums,
    add_sums,
    document_sums,
    restored_measure,
    sums_of,
)
from sidecar.counting.count_result import Measure
from sidecar.errors import RequestError
from sidecar.messages.content import read_tools
from sidecar.messages.turns import Turn

TOOLS_SHOWN = 3
"""The maximum number of tools to name in a message."""


class SectionSource(Protocol):
    """The source of a section's text, such as a document."""

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the text changes."""

    def text(self) -> str: ...

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
        self._text = text

    @property
    def version(self) -> Hashable:
        return 0

    def text(self) -> str:
        return self._text

    def _count(self, counter: Counter) -> Measure:
        return counter.text(self._text)


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

    def text(self) -> str:
        """Raise RequestError `noText`, because the text was not saved."""
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
