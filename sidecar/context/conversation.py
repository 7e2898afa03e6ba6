"""A conversation: its prompt parts, its turns, each model's counts, and pruning plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from sidecar.context.assemble import Assembler
from sidecar.context.counter import Counter, Sums, add_sums
from sidecar.context.model_counts import (
    Anchor,
    Edit,
    Grown,
    ModelCounts,
    Plan,
    Sample,
    TurnCounts,
    UndoState,
    UsageUpdate,
    edited_anchor,
    kinds_of_turns,
    newest_kind,
    restored_counts,
)
from sidecar.context.protocol import SectionSpec, SetParams
from sidecar.context.sections import (
    RestoredPart,
    Section,
    SectionCount,
    SectionSource,
    SystemPrompt,
    TextSource,
    ToolSet,
    fixed_sums,
)
from sidecar.counting.message_tokens import message_text
from sidecar.errors import BadParamsError
from sidecar.messages.turns import Turn, is_assistant, sends_reasoning
from sidecar.messages.usage import Usage

if TYPE_CHECKING:
    from sidecar.counting.count import Measure
    from sidecar.counting.text_features import Kind


SYSTEM = -1
"""Stands for the system prompt where turns are identified by index."""
SHRUNK = 0.7
"""A prompt below this share of the expected size means that the client compacted it."""
SAME = 0.01
"""A prompt within this share of the last one counts as sent again."""
MODELS_KEPT = 4
"""Number of models whose counts are kept."""


class Conversation:
    """A conversation that a client feeds: system prompt, tools, sections, turns and their counts.

    `counter` counts for the conversation's model. Setting another counter switches the model;
    turns are counted again when a number is needed.
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
        """Increases with each change that affects plans."""
        self._clear()

    def _clear(self) -> None:
        self.plans: dict[str, Plan] = {}
        """Pruning plans that can still be applied, by id."""
        self.applied_plan: Plan | None = None
        self.plans_made = 0
        self.assembler = Assembler()
        self.limit: int | None = None
        """The context window that the client named, in tokens."""
        self.reserve: int | None = None
        self.system: SystemPrompt | RestoredPart | None = None
        self.tools: ToolSet | RestoredPart | None = None
        self.sections: list[Section] = []
        self.turns: list[Turn] = []
        self.assembled: dict[str, int] = {}
        """Size in tokens of the last assembled request, by part."""
        self.assembled_at = self.updated_at
        self.restored: list[Measure] = []
        """Counts of the first turns, if their text was lost in a restart."""
        self.restored_kind: Kind = "prose"
        """The kind of text of the last restored turn."""
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
        """The model that the turns are counted for."""
        return self.counter.key

    @property
    def has_turns_without_text(self) -> bool:
        """Whether some turns were restored without their text."""
        parts = (self.system, self.tools)
        return bool(self.restored) or any(isinstance(part, RestoredPart) for part in parts)

    @property
    def is_empty(self) -> bool:
        return self.is_empty_but_for(self.turns)

    def is_empty_but_for(self, turns: Sequence[Turn]) -> bool:
        """Return whether there would be nothing to count if the turns were these."""
        return not any((self.system, self.tools, self.sections, turns, self.model_counts().anchor))

    def note_assembled(self, parts: dict[str, int]) -> None:
        self.assembled, self.assembled_at = parts, self._now()

    def touch(self) -> None:
        """Update the time of the last change, and invalidate plans."""
        self.updated_at = max(self._now(), self.updated_at)
        self.layout += 1

    def set_system(self, text: str | None) -> None:
        """Set the system prompt. An unchanged prompt is not counted again."""
        if isinstance(self.system, SystemPrompt) and self.system.text == text:
            return
        self.system = SystemPrompt(text) if text else None

    def set_tools(self, tools: Sequence[dict[str, Any]] | None) -> None:
        """Set the tools. Unchanged tools are not counted again."""
        if isinstance(self.tools, ToolSet) and self.tools.tools == tools:
            return
        self.tools = ToolSet(tools) if tools else None

    def reset(self) -> None:
        """Remove everything except the model."""
        self._clear()
        self.touch()

    def restore_turn_counts(
        self, turns: list[Turn], measures: list[Measure], anchor: Anchor | None
    ) -> None:
        """Set the counts of turns whose text was lost in a restart."""
        self.restored = measures
        self._take_turns(turns)
        self.model_counts().anchor = anchor

    def model_counts(self) -> ModelCounts:
        """Return the current model's counts, after counting all turns."""
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
        """Return the counts of another tokenizer for the same model.

        Reported numbers are kept, and an edit can still be undone.
        """
        change = self.fixed().minus(fixed_sums(before, self.system, self.tools))
        made = counts.with_reports_only(change)
        made.turns.count_missing(self.turns, self.counter, self.restored)
        saved, saved_counts = self._undo_state, TurnCounts()
        if saved is not None and saved.model == self.model:
            saved_counts.count_missing(saved.turns, self.counter, self.restored)
            self._undo_state = saved.recounted(counts.anchor, made, change, saved_counts.measures)
        return made

    def fixed(self) -> Sums:
        """Return the tokens of system prompt and tools."""
        return fixed_sums(self.counter, self.system, self.tools)

    def section_sums(self) -> Sums:
        """Return the tokens of the sections."""
        return add_sums([section.sums(self.counter) for section in self.sections])

    def update_section(self, index: int, now: SectionCount, then: SectionCount | None) -> None:
        """Set a section's count.

        Args:
            index: Index of the section.
            now: The count of its text.
            then: The count of its text at the last report, by the same tokenizer.
        """
        self.sections[index], change = self.sections[index].with_counts(now, then)
        counts = self._counts_by_model.get(self.model)
        anchor = counts.anchor if counts else None
        if counts and anchor and anchor.with_sections and change != Sums():
            counts.anchor = msgspec.structs.replace(anchor, fixed=anchor.fixed.plus(change))
            if self._undo_state is not None:
                self._undo_state = self._undo_state.rebased(anchor, counts.anchor, change)

    @property
    def has_uncounted_sections(self) -> bool:
        """Return whether a section has no count for the current model."""
        return any(section.document_count_for(self.model) is None for section in self.sections)

    def total(self, upto: int | None = None) -> Sums:
        """Return the size of the next request with the first `upto` turns, or all turns."""
        if self.is_empty:
            return Sums()
        counts = self.model_counts()
        priming = counts.priming(self.counter.priming)
        return counts.total(self.fixed(), self.section_sums(), priming, upto)

    def count_without_reports(self, upto: int | None = None) -> Sums:
        """Return the same size without using reported numbers."""
        counts = self.model_counts()
        beside = self.fixed().plus(self.section_sums())
        return beside.plus(counts.sum_turns(counts.priming(self.counter.priming), upto))

    def append(
        self, turns: Sequence[Turn], usage: Usage | None = None, total: int | None = None
    ) -> UsageUpdate:
        """Add turns. Only the new turns are counted.

        Args:
            turns: The new turns, in order.
            usage: The reported usage of the last reply. Without a prompt size, it is ignored.
            total: Tokens of prompt and reply together, if the vendor reports no parts.
        """
        first = len(self.turns)
        self.turns.extend(turns)
        assistants = [index for index, turn in enumerate(turns, first) if is_assistant(turn)]
        if assistants:
            self._last_assistant = assistants[-1]
            self._attach_reply(assistants[0])
        update = UsageUpdate()
        if total is not None:
            self._anchor_appended(self._usage_of(total))  # it measures nothing: no sample
        elif usage is not None and usage.prompt_tokens:
            update = self._anchor_appended(usage)
        self.touch()
        return update

    def apply_reply_usage(self, usage: Usage, reply_estimate: Sums = Sums()) -> UsageUpdate:  # noqa: B008 - it is frozen
        """Apply the usage of a reply that is not appended (`context/response`).

        `reply_estimate` is an estimated part of the output, which `usage` does not list
        separately.
        """
        covers = len(self.turns)
        update = self._anchor(usage, prompt_covers=covers, covers=covers, pending=True)
        counts = self.model_counts()
        if counts.anchor is not None and reply_estimate != Sums():
            counts.anchor = msgspec.structs.replace(counts.anchor, reply_estimate=reply_estimate)
        return update

    def apply_overflow(self, prompt_tokens: int) -> UsageUpdate:
        """Apply the exact size of a prompt that a server refused."""
        usage = Usage(input_tokens=prompt_tokens, prompt_tokens=prompt_tokens)
        covers = len(self.turns)
        return self._anchor(usage, prompt_covers=covers, covers=covers, pending=False)

    def apply_chat_count(self, total: int, first: int) -> None:
        """Apply an endpoint's count of the chat. Turns from index `first` on are new."""
        counts, fixed, end = self.model_counts(), self.fixed(), len(self.turns)
        before = counts.chat
        counts.share_chat(total, first, fixed, self.counter.priming, self.counter.tokenizer)
        if counts.counts_same_chat(before, total, end):
            old = counts.anchor
            pending, cached = (old.pending, old.cached) if old else (False, 0)
            counts.anchor = Anchor(
                kind="chat", base=total, covers=end, fixed=fixed, pending=pending, cached=cached
            )

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
        """Split a total into the predicted prompt, the counted reply, and reasoning as the rest."""
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
        anchor, expected = counts.anchor, None
        if anchor is not None and anchor.covers <= prompt_covers:
            if anchor.prompt and abs(prompt - anchor.prompt) <= SAME * anchor.prompt:
                return UsageUpdate()  # the same prompt once more: its reply was thrown away
            kept = counts.turns.between(anchor.prompt_covers, anchor.covers).tokens()
            base = anchor.base + anchor.reply_estimate.tokens()
            unsent = max(0, base - anchor.prompt - kept) if anchor.prompt else 0
            expected = self.total(prompt_covers)
            if prompt < SHRUNK * (expected.tokens() - unsent):
                return UsageUpdate(compacted=True)
        own = self.count_without_reports(prompt_covers)
        # Of what an estimate would have been off by, a count by an endpoint says nothing.
        if self.compacted or not prompt or own.endpoint:
            return UsageUpdate()
        has_same_sections = own.documents == (
            anchor.fixed.documents if anchor and anchor.with_sections else 0
        )
        sample = Sample(
            own.tokens() - own.documents,
            prompt,
            self.newest_kind(prompt_covers),
            None if own.unmeasured else own.error,
            section_tokens=own.documents,
            section_error=abs(own.document_error),
            has_same_sections=has_same_sections,
            expected=expected if has_same_sections else None,
            markup=counts.markup,
            grown=self._growth_since_report(counts, prompt_covers),
        )
        return UsageUpdate(sample)

    def _growth_since_report(self, counts: ModelCounts, upto: int) -> Grown:
        """Return the turns added since the last report, or None if anything else was added."""
        anchor = counts.anchor
        if anchor is None or anchor.fixed != self.fixed().plus(self.section_sums()):
            return ()
        added = range(max(anchor.prompt_covers, len(self.restored)), upto)
        return kinds_of_turns((self.turns[index], counts.turns[index].tokens) for index in added)

    def newest_kind(self, upto: int | None = None) -> Kind:
        """Return the kind of text of the last turn."""
        stop = len(self.turns) if upto is None else upto
        if stop <= len(self.restored):
            return self.restored_kind
        return newest_kind(self.turns[max(0, stop - 2) : stop])

    @property
    def has_reported_usage(self) -> bool:
        """Whether a server has reported usage for this conversation."""
        return self.model_counts().anchor is not None

    def edit(self, edit: Edit) -> None:
        """Replace all turns. `undo` reverts this."""
        counts = self.model_counts()
        old, new, before = counts.turns, TurnCounts(edit.measures), counts.anchor
        counts.turns, counts.chat = new, None
        counts.anchor = None if before is None else edited_anchor(before, edit, old, new)
        self._undo_state = UndoState(
            model=self.model,
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
        """Revert the last edit; later turns stay. Returns False if there is no edit."""
        saved, self._undo_state, self.applied_plan = self._undo_state, None, None
        if saved is None:
            return False
        counts = self._counts_by_model.get(saved.model, ModelCounts())
        if len(counts.turns) >= saved.edited_length:
            counts = restored_counts(counts, saved)
        self._counts_by_model = {saved.model: counts}
        self._take_turns(saved.turns + self.turns[saved.edited_length :])
        self.compacted = saved.compacted
        self.touch()
        return True

    def _take_turns(self, turns: list[Turn]) -> None:
        self.turns = turns
        assistants = [index for index, turn in enumerate(turns) if is_assistant(turn)]
        self._last_assistant = max(assistants, default=-1)


def uncounted_texts(conversation: Conversation) -> dict[int, str]:
    """Return the texts without an exact count by turn, except those in a reported prompt."""
    counts, system = conversation.model_counts(), conversation.system
    first = counts.anchor.prompt_covers if counts.anchor else 0
    turns = {
        index: message_text(msgspec.to_builtins(conversation.turns[index]))
        for index in range(first, len(conversation.turns))
        if _is_guess(counts.turns[index])
    }
    if isinstance(system, SystemPrompt) and _is_guess(system.measure(conversation.counter)):
        turns[SYSTEM] = system.text
    return {index: text for index, text in turns.items() if text}


def apply_text_counts(conversation: Conversation, counted: Mapping[int, int]) -> None:
    """Apply a server's counts of some turns' texts, in tokens."""
    counts, system = conversation.model_counts(), conversation.system
    if SYSTEM in counted and isinstance(system, SystemPrompt):
        system.set_count(
            conversation.counter, _count_with_markup(conversation, system.turn, counted[SYSTEM])
        )
    measures = list(counts.turns.measures)
    turns = [index for index in counted if index != SYSTEM]
    for index in turns:
        measures[index] = _count_with_markup(
            conversation, conversation.turns[index], counted[index]
        )
    if turns:
        counts.turns.recount_tail(min(turns), measures[min(turns) :])
    anchor = counts.anchor
    if anchor is not None and anchor.kind == "usage" and anchor.adjust == Sums():
        _recount_reply(conversation, counts, set(turns))


def _recount_reply(conversation: Conversation, counts: ModelCounts, new: set[int]) -> None:
    anchor = counts.anchor
    if anchor is None:
        return
    reply = range(anchor.prompt_covers, anchor.covers)
    if counts.excess is None or counts.excess[0] != anchor.prompt_covers:
        counts.learn_message_markup(conversation.count_without_reports(anchor.prompt_covers))
    if new.intersection(reply) and all(counts.turns[index].counted for index in reply):
        base = anchor.prompt + counts.turns.between(reply.start, reply.stop).tokens()
        counts.anchor = msgspec.structs.replace(
            anchor, base=base, reasoning=0, reply_estimate=Sums()
        )


def _count_with_markup(conversation: Conversation, turn: Turn, counted: int) -> Measure:
    measure, counts = conversation.counter.around(turn, counted), conversation.model_counts()
    if counts.excess is None or measure.error_percent is None:
        return measure
    tokens = max(counted, measure.tokens + round(counts.correction))
    error = (measure.error_percent or 0.0) / 10
    return msgspec.structs.replace(measure, tokens=tokens, method="calibrated", error_percent=error)


def _is_guess(measure: Measure) -> bool:
    return measure.method in ("calibrated", "estimate") and not measure.counted


Follow = Callable[[SectionSpec], SectionSource]


def apply_set(conversation: Conversation, params: SetParams, follow: Follow) -> None:
    """Apply `context/set`: omitted params stay unchanged, null removes.

    The caller switches the model. `follow` returns the source of a section that names a
    document.

    Raises:
        BadParamsError: A section does not have exactly one of `text` and `textDocument`.
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
    """Return the requested sections. Counts of unchanged texts are reused."""
    known = {
        section.source.text(): section.source
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
        raise BadParamsError("each section takes exactly one of `text` and `textDocument`")
    if spec.text is None:
        return follow(spec)
    return known.get(spec.text) or TextSource(spec.text)
