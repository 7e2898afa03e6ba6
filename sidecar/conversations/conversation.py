"""A conversation with an AI model as a value, its edits, and how it is saved.

Ids, token counts and times are saved, but no text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from sidecar import typed
from sidecar.conversations.context_protocol import FitResult, SectionSpec, SetParams
from sidecar.conversations.sections import (
    Assembler,
    RestoredPart,
    Section,
    SectionCount,
    SectionSource,
    SystemPrompt,
    TextSource,
    ToolSet,
    fixed_sums,
)
from sidecar.conversations.turn_counts import (
    Anchor,
    Counter,
    ModelCounts,
    Sums,
    TurnCounts,
    UsageUpdate,
    add_sums,
)
from sidecar.counting.calibration import Sample
from sidecar.counting.count_result import Measure
from sidecar.counting.message_tokens import message_text
from sidecar.errors import BadParamsError
from sidecar.messages.messages import Turn, is_assistant, sends_reasoning
from sidecar.messages.vendor_usage import Usage


class Edit(msgspec.Struct, frozen=True):
    """An edit that replaces all turns of a conversation."""

    turns: list[Turn]
    measures: list[Measure]
    origins: list[int]
    """Each turn's index before the edit, in ascending order.

    A summary has the index of the first turn that it replaces.
    """
    changes: bool
    cached_lost: int


class Plan(msgspec.Struct, frozen=True):
    """A pruning plan, which is valid for one `layout` of the conversation."""

    result: FitResult
    edit: Edit
    layout: int


class UndoState(msgspec.Struct, frozen=True):
    """The state of a conversation before an edit. `undo` restores it."""

    counter: Counter
    turns: list[Turn]
    measures: tuple[Measure, ...]
    anchor: Anchor | None
    compacted: bool
    edited_length: int
    edited_total: Sums
    edited_anchor: Anchor | None


def edited_anchor(anchor: Anchor, edit: Edit, old: TurnCounts, new: TurnCounts) -> Anchor:
    """Adjust an anchor for an edit, given the counts of the turns before and after the edit."""
    covers = bisect_left(edit.origins, anchor.covers)
    change = new.between(0, covers).minus(old.between(0, anchor.covers))
    return msgspec.structs.replace(
        anchor,
        covers=covers,
        prompt_covers=bisect_left(edit.origins, anchor.prompt_covers),
        adjust=anchor.adjust.plus(change),
        cached=max(0, anchor.cached - edit.cached_lost),
    )


def restored_counts(
    counts: ModelCounts, saved: UndoState, restored: Sequence[Measure]
) -> ModelCounts:
    """Return the counts from before an edit, plus the counts of turns appended since.

    Args:
        counts: The current counts, possibly by another tokenizer than before the edit.
        saved: The state before the edit.
        restored: The counts of the leading turns that were restored without their text.
    """
    made, anchor, known = ModelCounts(), counts.anchor, saved.edited_anchor
    made.counter = counts.counter or saved.counter
    before, edited = saved.measures, saved.edited_total
    if not saved.counter.is_like(made.counter):
        recount = TurnCounts()
        recount.count_missing(saved.turns, made.counter, restored)
        before, edited = recount.measures, counts.turns.between(0, saved.edited_length)
    made.turns = TurnCounts([*before, *counts.turns.measures[saved.edited_length :]])
    if anchor is None or (known and msgspec.structs.replace(anchor, fixed=known.fixed) == known):
        change = anchor.fixed.minus(known.fixed) if anchor and known else Sums()
        made.anchor = saved.anchor and saved.anchor.rebased(change)
        return made
    shift = len(before) - saved.edited_length
    made.anchor = msgspec.structs.replace(
        anchor,
        covers=anchor.covers + shift,
        prompt_covers=anchor.prompt_covers + shift,
        adjust=anchor.adjust.plus(made.turns.between(0, len(before)).minus(edited)),
    )
    return made


SYSTEM = -1
"""The key of the system prompt in mappings whose other keys are turn indices."""
SHRUNK = 0.7
"""A prompt below this fraction of its expected size is assumed to have been compacted."""
SAME = 0.01
"""Maximum relative difference between two reported sizes of the same prompt."""
MODELS_KEPT = 4
"""Maximum number of models whose counts a conversation keeps."""


class Conversation:
    """A conversation that a client reports: system prompt, tools, sections and turns.

    To switch models, assign a new `counter`. The turns are recounted when a count is next
    needed.
    """

    def __init__(
        self,
        conversation_id: str,
        counter: Counter,
        *,
        source: str = "protocol",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.id, self.source, self.counter = conversation_id, source, counter
        self._now = now
        self.updated_at = now()
        self.persist = False
        self.layout = 0
        """A version number. Every change that invalidates pruning plans increments it."""
        self._clear()

    def _clear(self) -> None:
        self.plans: dict[str, Plan] = {}
        """Pruning plans that can still be applied, by plan id."""
        self.applied_plan: Plan | None = None
        self.plans_made = 0
        self.assembler = Assembler()
        self.limit: int | None = None
        """The context window that the client set, in tokens."""
        self.reserve: int | None = None
        self.system: SystemPrompt | RestoredPart | None = None
        self.tools: ToolSet | RestoredPart | None = None
        self.sections: list[Section] = []
        self.turns: list[Turn] = []
        self.assembled: dict[str, int] = {}
        """The size of each part of the last assembled request, in tokens."""
        self.assembled_at = self.updated_at
        self.restored: list[Measure] = []
        """Counts of the leading turns that were restored without their text."""
        self.compacted = False
        self._counts_by_model: dict[str, ModelCounts] = {}
        self._last_assistant = -1
        self._undo_state: UndoState | None = None

    def copy(self) -> Conversation:
        made = copy(self)
        made.assembler = self.assembler.copy()
        made.turns, made.sections = self.turns.copy(), self.sections.copy()
        made._counts_by_model = {
            key: counts.copy() for key, counts in self._counts_by_model.items()
        }
        return made

    @property
    def model(self) -> str:
        return self.counter.key

    @property
    def has_turns_without_text(self) -> bool:
        """Whether any part of the conversation was restored without its text."""
        parts = (self.system, self.tools)
        return bool(self.restored) or any(isinstance(part, RestoredPart) for part in parts)

    @property
    def is_empty(self) -> bool:
        return self.would_be_empty_with(self.turns)

    def with_system(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return turns, after the system prompt if its text is known."""
        system = self.system.turn if isinstance(self.system, SystemPrompt) else None
        return [*turns] if system is None else [system, *turns]

    def would_be_empty_with(self, turns: Sequence[Turn]) -> bool:
        """Return whether the conversation would be empty if these were its only turns."""
        return not any((self.system, self.tools, self.sections, turns, self.model_counts().anchor))

    def record_assembled(self, parts: dict[str, int]) -> None:
        """Record the size of each part of an assembled request, in tokens."""
        self.assembled, self.assembled_at = parts, self._now()

    def touch(self) -> None:
        """Record that the conversation has just changed. This invalidates all pruning plans."""
        self.updated_at = max(self._now(), self.updated_at)
        self.layout += 1

    def set_system(self, text: str | None) -> None:
        """Set the system prompt. Its count is kept if the text has not changed."""
        if isinstance(self.system, SystemPrompt) and self.system.text == text:
            return
        self.system = SystemPrompt(text) if text else None

    def set_tools(self, tools: Sequence[dict[str, Any]] | None) -> None:
        """Set the tools. Their count is kept if they have not changed."""
        if isinstance(self.tools, ToolSet) and self.tools.tools == tools:
            return
        self.tools = ToolSet(tools) if tools else None

    def reset(self) -> None:
        """Remove everything from the conversation except its model."""
        self._clear()
        self.touch()

    def restore_turn_counts(
        self, turns: list[Turn], measures: list[Measure], anchor: Anchor | None
    ) -> None:
        """Restore turns and counts that were saved without the turns' text."""
        self.restored = measures
        self._take_turns(turns)
        self.model_counts().anchor = anchor

    def model_counts(self) -> ModelCounts:
        """Count the turns that have no count yet, and return all counts for the current model."""
        key = self.counter.key
        found = self._counts_by_model.pop(key, None) or ModelCounts()
        if found.counter is not None and not found.counter.is_like(self.counter):
            found = self._recount(found, found.counter)
        self._counts_by_model[key], found.counter = found, self.counter
        if len(self._counts_by_model) > MODELS_KEPT:
            del self._counts_by_model[next(iter(self._counts_by_model))]
        found.turns.count_missing(self.turns, self.counter, self.restored)
        return found

    def _recount(self, counts: ModelCounts, before: Counter) -> ModelCounts:
        """Recount the conversation with another tokenizer for the same model.

        Reported usage is kept.
        """
        change = self.fixed().minus(fixed_sums(before, self.system, self.tools))
        made = counts.with_reports_only(change)
        made.turns.count_missing(self.turns, self.counter, self.restored)
        return made

    def fixed(self) -> Sums:
        """Return the combined size of the system prompt and the tools."""
        return fixed_sums(self.counter, self.system, self.tools)

    def section_sums(self) -> Sums:
        """Return the combined size of the sections."""
        return add_sums([section.sums(self.counter) for section in self.sections])

    def update_section(self, index: int, now: SectionCount, then: SectionCount | None) -> None:
        """Update a section's counts.

        Args:
            index: The section's index.
            now: The count of the section's current text.
            then: The count of the text that the last usage report included, or None. It was made
                with the same tokenizer as `now`.
        """
        self.sections[index], change = self.sections[index].with_counts(now, then)
        counts = self._counts_by_model.get(self.model)
        anchor = counts.anchor if counts else None
        if counts and anchor and anchor.with_sections and change != Sums():
            counts.anchor = anchor.rebased(change)

    @property
    def lacks_document_counts(self) -> bool:
        """Whether a section's document still has to be counted for the current model."""
        return any(section.document_count_for(self.model) is None for section in self.sections)

    def total(self, upto: int | None = None) -> Sums:
        """Return the next request's size in tokens. If `upto` is given, later turns are ignored."""
        if self.is_empty:
            return Sums()
        counts = self.model_counts()
        priming = counts.priming(self.counter.priming)
        return counts.total(self.fixed(), self.section_sums(), priming, upto)

    def count_without_reports(self, upto: int | None = None) -> Sums:
        """Return the next request's size in tokens, ignoring reported usage."""
        counts = self.model_counts()
        beside = self.fixed().plus(self.section_sums())
        return beside.plus(counts.sum_turns(counts.priming(self.counter.priming), upto))

    def append(
        self, turns: Sequence[Turn], usage: Usage | None = None, total: int | None = None
    ) -> UsageUpdate:
        """Append turns. Earlier turns are not recounted.

        Args:
            turns: The new turns, in order.
            usage: The last reply's reported usage. Ignored if it has no prompt size.
            total: The reported sum of prompt and reply tokens, if the vendor reports nothing else.
        """
        first = len(self.turns)
        self.turns.extend(turns)
        assistants = [index for index, turn in enumerate(turns, first) if is_assistant(turn)]
        if assistants:
            self._last_assistant = assistants[-1]
            self._attach_reply(assistants[0])
        update = UsageUpdate()
        if total is not None:
            # Calibration needs the prompt's reported size. Only the total was reported here.
            self._anchor_appended(self._usage_of(total))
        elif usage is not None and usage.prompt_tokens:
            update = self._anchor_appended(usage)
        self.touch()
        return update

    def apply_reply_usage(self, usage: Usage, reply_estimate: Sums = Sums()) -> UsageUpdate:  # noqa: B008 - it is frozen
        """Apply the reported usage of a reply that has not been appended yet (`context/response`).

        Args:
            usage: The reported usage.
            reply_estimate: An estimated correction to add to the reported usage.
        """
        covers = len(self.turns)
        update = self._anchor(usage, prompt_covers=covers, covers=covers, pending=True)
        counts = self.model_counts()
        if counts.anchor is not None and reply_estimate != Sums():
            counts.anchor = msgspec.structs.replace(counts.anchor, reply_estimate=reply_estimate)
        return update

    def apply_overflow(self, prompt_tokens: int) -> UsageUpdate:
        """Apply the prompt size that a server reported when it rejected the prompt."""
        usage = Usage(input_tokens=prompt_tokens, prompt_tokens=prompt_tokens)
        covers = len(self.turns)
        return self._anchor(usage, prompt_covers=covers, covers=covers, pending=False)

    def apply_chat_count(self, total: int, first: int) -> None:
        """Apply an endpoint's token count of the whole chat.

        Args:
            total: The endpoint's count.
            first: The index of the first turn that the endpoint had not counted before.
        """
        counts, counter = self.model_counts(), self.counter
        before, old = counts.chat, counts.anchor
        chat = counts.share_chat(total, first, self.fixed(), counter.priming, counter.tokenizer)
        if counts.counts_same_chat(before, chat):
            pending, cached = (old.pending, old.cached) if old else (False, 0)
            counts.anchor = msgspec.structs.replace(chat, pending=pending, cached=cached)

    def _attach_reply(self, index: int) -> None:
        anchor = (counts := self.model_counts()).anchor
        if anchor is None or not anchor.pending:
            return
        sent_back = anchor.reasoning if sends_reasoning(self.turns[index]) else 0
        base, covers = anchor.base + sent_back, index + 1
        counts.anchor = msgspec.structs.replace(
            anchor, base=base, covers=covers, prompt_covers=index, pending=False
        )

    def _usage_of(self, total: int) -> Usage:
        """Split a reported total into estimated prompt, reply and reasoning tokens."""
        reply = self._last_assistant if self._last_assistant >= 0 else len(self.turns)
        counted = 0
        if reply < len(self.turns):
            counted = (
                self.count_without_reports(reply + 1).tokens()
                - self.count_without_reports(reply).tokens()
            )
        anchor = self.model_counts().anchor
        known = self.total(reply) if anchor is None or anchor.covers <= reply else Sums()
        prompt = min(known.tokens() or total - counted, total)
        output, unseen = total - prompt, max(0, total - prompt - counted)
        return Usage(
            input_tokens=prompt, prompt_tokens=prompt, output_tokens=output, reasoning_tokens=unseen
        )

    def _anchor_appended(self, usage: Usage) -> UsageUpdate:
        last = self._last_assistant
        if last < 0:
            covers = len(self.turns)
            return self._anchor(usage, prompt_covers=covers, covers=covers, pending=True)
        return self._anchor(usage, prompt_covers=last, covers=last + 1, pending=False)

    def _anchor(
        self, usage: Usage, *, prompt_covers: int, covers: int, pending: bool
    ) -> UsageUpdate:
        counts = self.model_counts()
        sample = self._compare(counts, usage.prompt_tokens, prompt_covers)
        answer = self.turns[prompt_covers] if prompt_covers < len(self.turns) else None
        hidden = 0 if answer and sends_reasoning(answer) else usage.reasoning_tokens
        counts.anchor = Anchor(
            kind="usage",
            base=usage.prompt_tokens + usage.output_tokens - hidden,
            covers=covers,
            fixed=self.fixed().plus(self.section_sums()),
            prompt=usage.prompt_tokens,
            prompt_covers=prompt_covers,
            reasoning=hidden,
            pending=pending,
            cached=usage.cache_read_tokens + usage.cache_write_tokens,
        )
        self.sections = [section.as_reported(self.model) for section in self.sections]
        self.compacted = sample.compacted
        self.touch()
        return sample

    def _compare(self, counts: ModelCounts, prompt: int, prompt_covers: int) -> UsageUpdate:
        anchor = counts.anchor
        if anchor is not None and anchor.covers <= prompt_covers:
            if anchor.prompt and abs(prompt - anchor.prompt) <= SAME * anchor.prompt:
                return UsageUpdate()  # the client has sent the same prompt again
            kept = counts.turns.between(anchor.prompt_covers, anchor.covers).tokens()
            base = anchor.base + anchor.reply_estimate.tokens()
            unsent = max(0, base - anchor.prompt - kept) if anchor.prompt else 0
            expected = self.total(prompt_covers)
            if prompt < SHRUNK * (expected.tokens() - unsent):
                return UsageUpdate(compacted=True)
        own = self.count_without_reports(prompt_covers)
        # If an endpoint counted part of the prompt, the reported size does not show how accurate
        # our estimates are.
        if self.compacted or not prompt or own.endpoint:
            return UsageUpdate()
        has_same_sections = own.documents == (
            anchor.fixed.documents if anchor and anchor.with_sections else 0
        )
        sample = Sample(
            own.tokens() - own.documents,
            prompt,
            None if own.unmeasured else own.error,
            excluded=own.documents,
            excluded_margin=abs(own.document_error),
            is_excluded_unchanged=has_same_sections,
        )
        return UsageUpdate(sample)

    @property
    def has_reported_usage(self) -> bool:
        """Whether a server has reported this conversation's size."""
        return self.model_counts().anchor is not None

    @property
    def reported_tokens(self) -> int | None:
        """The size that a vendor last reported, in tokens, or None."""
        anchor = self.model_counts().anchor
        return anchor.base if anchor is not None and anchor.kind == "usage" else None

    def edit(self, edit: Edit) -> None:
        """Apply an edit, which replaces all turns. `undo` reverts it."""
        counts = self.model_counts()
        old, new, before = counts.turns, TurnCounts(edit.measures), counts.anchor
        counts.turns, counts.chat = new, None
        counts.anchor = None if before is None else edited_anchor(before, edit, old, new)
        self._undo_state = UndoState(
            counter=self.counter,
            turns=self.turns,
            measures=old.measures,
            anchor=before,
            compacted=self.compacted,
            edited_length=len(edit.turns),
            edited_total=new.between(0),
            edited_anchor=counts.anchor,
        )
        self._counts_by_model = {self.model: counts}
        self._take_turns(list(edit.turns))
        self.compacted = True

    def undo(self) -> bool:
        """Revert the last edit and keep the turns added since. Return whether there was an edit."""
        saved, self._undo_state, self.applied_plan = self._undo_state, None, None
        if saved is None:
            return False
        model = saved.counter.key
        counts = self._counts_by_model.get(model, ModelCounts())
        if len(counts.turns) >= saved.edited_length:
            counts = restored_counts(counts, saved, self.restored)
        self._counts_by_model = {model: counts}
        self._take_turns(saved.turns + self.turns[saved.edited_length :])
        self.compacted = saved.compacted
        self.touch()
        return True

    def _take_turns(self, turns: list[Turn]) -> None:
        self.turns = turns
        assistants = [index for index, turn in enumerate(turns) if is_assistant(turn)]
        self._last_assistant = max(assistants, default=-1)


def uncounted_texts(conversation: Conversation) -> dict[int, str]:
    """Return the text of turns whose counts are estimates, keyed by turn index.

    Turns in the last reported prompt are left out.
    """
    counts, system = conversation.model_counts(), conversation.system
    first = counts.anchor.prompt_covers if counts.anchor else 0
    turns = {
        index: message_text(conversation.turns[index])
        for index in range(first, len(conversation.turns))
        if _is_guess(counts.turns[index])
    }
    if isinstance(system, SystemPrompt) and _is_guess(system.measure(conversation.counter)):
        turns[SYSTEM] = system.text
    return {index: text for index, text in turns.items() if text}


def apply_text_counts(conversation: Conversation, counted: Mapping[int, int]) -> None:
    """Apply a server's token counts for the text of turns, keyed by turn index."""
    counts, system = conversation.model_counts(), conversation.system
    counter = conversation.counter
    if SYSTEM in counted and isinstance(system, SystemPrompt):
        system.set_count(counter, counter.message(system.turn, counted[SYSTEM]))
    measures = list(counts.turns.measures)
    turns = [index for index in counted if index != SYSTEM]
    for index in turns:
        measures[index] = counter.message(conversation.turns[index], counted[index])
    if turns:
        counts.turns.recount_tail(min(turns), measures[min(turns) :])
    anchor = counts.anchor
    if anchor is not None and anchor.kind == "usage" and anchor.adjust == Sums():
        counts.anchor = _with_counted_reply(anchor, counts.turns, turns)


def _with_counted_reply(anchor: Anchor, counts: TurnCounts, new: Sequence[int]) -> Anchor:
    reply = range(anchor.prompt_covers, anchor.covers)
    if not {*new}.intersection(reply) or not all(counts[index].counted for index in reply):
        return anchor
    base = anchor.prompt + counts.between(reply.start, reply.stop).tokens()
    return msgspec.structs.replace(anchor, base=base, reasoning=0, reply_estimate=Sums())


def _is_guess(measure: Measure) -> bool:
    return measure.method in ("calibrated", "estimate") and not measure.counted


Follow = Callable[[SectionSpec], SectionSource]


def apply_set(conversation: Conversation, params: SetParams, follow: Follow) -> None:
    """Apply the params of `context/set` except `model`. Omitted params change nothing.

    Args:
        conversation: The conversation to change.
        params: The params.
        follow: Creates the source of a section that refers to a document.

    Raises:
        BadParamsError: A section has both or neither of `text` and `textDocument`.
    """
    if params.sections is not UNSET:
        conversation.sections = sections_from(params.sections or (), conversation.sections, follow)
    if params.system_prompt is not UNSET:
        conversation.set_system(params.system_prompt)
    if params.tools is not UNSET:
        conversation.set_tools(params.tools)
    if params.limit is not UNSET:
        conversation.limit = params.limit
    if params.reserve is not UNSET:
        conversation.reserve = params.reserve
    if params.persist is not None:
        conversation.persist = params.persist
    conversation.touch()


def sections_from(
    specs: Sequence[SectionSpec], old: Sequence[Section], follow: Follow
) -> list[Section]:
    """Create the requested sections, reusing the counts of sections with unchanged text."""
    known = {
        section.source.snapshot.text: section.source
        for section in old
        if isinstance(section.source, TextSource)
    }
    named = {section.name: section for section in old}
    return [
        Section(
            name=spec.name,
            reported=named[spec.name].reported if spec.name in named else None,
            in_report=named[spec.name].in_report if spec.name in named else None,
            source=_make_source(spec, known, follow),
            cap=spec.cap,
            priority=spec.priority or 0,
            truncation=spec.truncation or "middle",
        )
        for spec in specs
    ]


def _make_source(
    spec: SectionSpec, known: Mapping[str, SectionSource], follow: Follow
) -> SectionSource:
    if (spec.text is None) == (spec.text_document is None):
        raise BadParamsError("a section needs either `text` or `textDocument`")
    if spec.text is None:
        return follow(spec)
    return known.get(spec.text) or TextSource(spec.text)


class SavedSection(msgspec.Struct, frozen=True):
    name: str
    measure: Measure
    is_document: bool = False
    """Whether the section was counted as a document. Documents are calibrated separately."""


class SavedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's saved data."""

    version: int = 1
    id: str
    model: str
    source: str
    updated_at: datetime
    limit: int | None
    reserve: int | None
    compacted: bool
    system: Measure | None
    tools: Measure | None
    sections: list[SavedSection]
    roles: list[str]
    turns: list[Measure]
    anchor: Anchor | None
    model_named: bool = True


def save(conversation: Conversation, *, model_named: bool = True) -> SavedSession:
    """Return the data to save for a conversation, and whether a client has named its model."""
    counter, counts = conversation.counter, conversation.model_counts()
    return SavedSession(
        id=conversation.id,
        model=conversation.model,
        source=conversation.source,
        updated_at=conversation.updated_at,
        limit=conversation.limit,
        reserve=conversation.reserve,
        compacted=conversation.compacted,
        system=conversation.system.measure(counter) if conversation.system else None,
        tools=conversation.tools.measure(counter) if conversation.tools else None,
        sections=[
            SavedSection(
                section.name,
                section.measure(counter),
                section.document_count_for(conversation.model) is not None,
            )
            for section in conversation.sections
        ],
        roles=[turn.role for turn in conversation.turns],
        turns=list(counts.turns.measures),
        anchor=counts.anchor,
        model_named=model_named,
    )


def restore(saved: SavedSession, counter: Counter) -> Conversation:
    """Restore a conversation without its text. `counter` must count for `saved.model`."""
    conversation = Conversation(saved.id, counter, source=saved.source)
    conversation.limit, conversation.reserve, conversation.persist = (
        saved.limit,
        saved.reserve,
        True,
    )
    conversation.system = RestoredPart(saved.system) if saved.system else None
    conversation.tools = RestoredPart(saved.tools) if saved.tools else None
    conversation.sections = [_restore_section(section, saved.model) for section in saved.sections]
    conversation.restore_turn_counts(
        [Turn(role=role) for role in saved.roles], saved.turns, saved.anchor
    )
    conversation.updated_at = conversation.assembled_at = saved.updated_at
    conversation.compacted = saved.compacted
    return conversation


def _restore_section(section: SavedSection, model: str) -> Section:
    part = RestoredPart(section.measure)
    count = SectionCount(model, section.measure, part) if section.is_document else None
    return Section(name=section.name, source=part, document_count=count)


def to_json(saved: SavedSession) -> bytes:
    return msgspec.json.encode(saved)


def from_json(data: bytes) -> SavedSession | None:
    """Decode a saved conversation, or return None if it is damaged or has another version."""
    try:
        saved = typed.decode(data, SavedSession)
    except msgspec.DecodeError:
        return None
    return saved if saved.version == 1 and len(saved.roles) == len(saved.turns) else None
