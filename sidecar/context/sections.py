"""What a request carries beside its turns: system prompt, tools, named sections."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import msgspec

from sidecar.config.settings import Truncation
from sidecar.context.counter import Counter, Sums, all_sums, document_sums, sums_of
from sidecar.counting.count import Measure
from sidecar.errors import RequestError
from sidecar.messages.tool_schemas import read_tools
from sidecar.messages.turns import Turn

TOOLS_SHOWN = 3
"""Of the heaviest, in a message."""


class Counted(Protocol):
    """A part that knows how many tokens it takes for a model."""

    def measure(self, counter: Counter) -> Measure:
        """Its tokens as it is now; cheap when asked again."""


class SectionSource(Counted, Protocol):
    """Where a section's text comes from. An open buffer's source counts incrementally."""

    @property
    def version(self) -> Hashable:
        """Changes whenever the text does."""

    def text(self) -> str:
        """The text as it is now."""


class _Once:
    """Counts once for each model and tokenizer."""

    def __init__(self) -> None:
        self._measures: dict[tuple[str, str], Measure] = {}

    def measure(self, counter: Counter) -> Measure:
        """Tokens of this part, counted at the first call for each model and tokenizer."""
        key = counter.key, counter.basis
        found = self._measures.get(key)
        if found is None:
            found = self._measures[key] = self._count(counter)
        return found

    def take(self, counter: Counter, measure: Measure) -> None:
        """Let this be the count for the counter's model and tokenizer."""
        self._measures[counter.key, counter.basis] = measure

    def _count(self, counter: Counter) -> Measure:
        raise NotImplementedError


class TextSource(_Once):
    """A section that was given as a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @property
    def version(self) -> Hashable:
        """It never changes."""
        return 0

    def text(self) -> str:
        """The text as it was given."""
        return self._text

    def _count(self, counter: Counter) -> Measure:
        return counter.text(self._text)


class SystemPrompt(_Once):
    """The system prompt, counted as the message that it is sent as."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    @property
    def turn(self) -> Turn:
        """The message that carries it."""
        return Turn(role="system", content=self.text)

    def _count(self, counter: Counter) -> Measure:
        return counter.message(self.turn)


class ToolSet(_Once):
    """The tool schemas of a conversation."""

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        self.tools = list(tools)

    def _count(self, counter: Counter) -> Measure:
        return counter.tools(self.tools)


def no_text() -> RequestError:
    """The error for a session that was restored from its counts."""
    return RequestError(
        "noText",
        "only the token counts of this restored session are known: send its system prompt, "
        "tools and turns again after context/reset",
    )


OTHER_PERCENT = 60.0
"""Half of the band of a count by another vocabulary than the model's: no two differ by more on
anything but scripts that one of them hardly knows."""


def fixed_sums(counter: Counter, *parts: SystemPrompt | ToolSet | RestoredPart | None) -> Sums:
    """What these parts of a conversation take together."""
    return all_sums([sums_of(part.measure(counter)) for part in parts if part])


class RestoredPart:
    """A part whose count outlived a restart, and whose text did not."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure

    @property
    def version(self) -> Hashable:
        """It never changes."""
        return 0

    def text(self) -> str:
        """Raises SidecarError `noText`."""
        raise no_text()

    def measure(self, counter: Counter) -> Measure:
        """The count as it was kept: an estimate for any other tokenizer than its own."""
        if counter.tokenizer == self._measure.tokenizer:
            return self._measure
        return Measure(self._measure.tokens, "estimate", counter.tokenizer, OTHER_PERCENT)


class SectionCount(msgspec.Struct, frozen=True):
    """The count of a section's text, as its document shows it too."""

    model: str
    measure: Measure
    source: SectionSource
    """The text that was counted."""
    basis: Hashable = None
    """What the count depends on besides the text."""
    final: bool = True
    """Whether no endpoint could still give a surer one."""

    @property
    def is_sure(self) -> bool:
        """Whether the model's own tokenizer or server has counted it."""
        return self.measure.method in ("exact", "endpoint")

    def is_like(self, other: SectionCount) -> bool:
        """Whether both were counted in one way: their difference is then a text's, not a way's."""
        mine, its = self.measure, other.measure
        if (self.model, mine.method, mine.tokenizer) != (other.model, its.method, its.tokenizer):
            return False
        return self.is_sure or (self.basis, self.final) == (other.basis, other.final)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the context, and how it gives way when room is short."""

    name: str
    source: SectionSource
    document_count: SectionCount | None = None
    """Its count, where the owner of documents' counts has given it."""
    reported: SectionCount | None = None
    """The surest count of the text that it had when the last number was reported."""
    held: SectionCount | None = None
    """The count of that text that stands beside the reported number now."""
    cap: int | None = None
    """Tokens that it may take at most."""
    priority: int = 0
    """Where sections have to be shortened together, the lowest goes first."""
    truncation: Truncation = "middle"

    def measure(self, counter: Counter) -> Measure:
        """Tokens that the section takes, its cap applied."""
        return self.capped(self.whole(counter))

    def capped(self, whole: Measure) -> Measure:
        """What the section takes of a text that measures so much."""
        if self.cap is None or whole.tokens <= self.cap:
            return whole
        return msgspec.structs.replace(whole, tokens=self.cap)

    def whole(self, counter: Counter) -> Measure:
        """Tokens of its text, whatever it may take of them."""
        return self.document_count_for(counter.key) or self.source.measure(counter)

    def document_count_for(self, model: str) -> Measure | None:
        """The count that its document has for a model; None where that is not known."""
        known = self.document_count
        holds = known and known.model == model and known.source is self.source
        return known.measure if known and holds else None

    def as_reported(self, model: str) -> Section:
        """The same when a number was reported that holds its text as it is."""
        held = self.document_count if self.document_count_for(model) is not None else None
        return msgspec.structs.replace(self, reported=held, held=held)

    def with_counts(self, now: SectionCount, then: SectionCount | None) -> tuple[Section, Sums]:
        """The same with another count of its text, and of the text that was reported; and by what
        the latter has changed what stands beside the reported number."""
        held = self.held
        if held is None or then is None or held.model != then.model:
            return msgspec.structs.replace(self, document_count=now), Sums()
        is_surer = self.reported is None or then.is_sure or not self.reported.is_sure
        reported = then if is_surer else self.reported
        made = msgspec.structs.replace(self, document_count=now, reported=reported, held=then)
        mine, its = self.capped(then.measure), self.capped(held.measure)
        return made, document_sums(mine).minus(document_sums(its))

    def sums(self, counter: Counter) -> Sums:
        """What it adds to the conversation."""
        measure = self.measure(counter)
        return document_sums(measure) if self.document_count_for(counter.key) else sums_of(measure)


def heaviest_tools(tools: ToolSet | RestoredPart | None, counter: Counter) -> list[tuple[str, int]]:
    """(name, tokens) of the tools whose schemas weigh most; counts each schema when asked.

    What a set of tools costs whatever is in it is not held against each of them.
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
    """The name of a tool, or those of all that a vendor's form puts into one."""
    return ", ".join([schema.name for schema in read_tools([tool])])
