"""Creates, applies and undoes plans that make a conversation fit (`context/fit`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sidecar.context.counter import Calibration, Sums, factor_of, sums_of
from sidecar.context.model_counts import Edit, Plan
from sidecar.context.prune import Choice, Cleaned, Pairs, choose, clean, tail_start, units
from sidecar.context.results import FitResult, Removed
from sidecar.context.sections import SystemPrompt, no_text
from sidecar.context.summary import summarise
from sidecar.errors import BadParamsError
from sidecar.messages.turns import Turn, is_system

if TYPE_CHECKING:
    from sidecar.context.conversation import Conversation
    from sidecar.context.params import FitParams
    from sidecar.context.window import Window
    from sidecar.counting.count import Measure

logger = logging.getLogger(__name__)

SUMMARY_CAP = 1000
"""Most tokens of a summary. It is also limited to an eighth of the target size."""
SUMMARY_MIN = 24
"""Summaries with fewer tokens are left out."""
PLANS_KEPT = 4


def stale_plan_error() -> BadParamsError:
    """Return the error for an unknown plan, or one for another state of the conversation."""
    return BadParamsError("the session has changed since the plan was made; request a new plan")


def fit(
    conversation: Conversation,
    params: FitParams,
    window: Window,
    *,
    keep_turns: int = 4,
    calibration: Calibration | None = None,
) -> FitResult:
    """Apply the plan that the params name, or make one and apply it if requested.

    Args:
        conversation: The conversation.
        params: The params of `context/fit`.
        window: The context window. Its usable part is the default target.
        keep_turns: Default for the params.
        calibration: The conversation's calibration.
    """
    if params.plan_id is not None:
        return apply_plan(conversation, params.plan_id)
    plan = make_plan(
        conversation,
        window.usable if params.max_tokens is None else params.max_tokens,
        keep_turns=keep_turns if params.keep_turns is None else params.keep_turns,
        summarize=params.strategy == "summarize",
        calibration=calibration,
    )
    return apply_plan(conversation, plan.plan_id) if params.apply else plan


def make_plan(
    conversation: Conversation,
    max_tokens: int,
    *,
    keep_turns: int = 4,
    summarize: bool = False,
    calibration: Calibration | None = None,
) -> FitResult:
    """Make and store a plan that shrinks the conversation to at most `max_tokens`.

    Raises:
        RequestError: `noText`. Only the conversation's counts are known.
    """
    if conversation.has_turns_without_text:
        raise no_text()
    conversation.plans_made += 1
    maker = _Maker(conversation, max_tokens, keep_turns, factor_of(calibration))
    result, edit = maker.plan(f"{conversation.id}/{conversation.plans_made}", summarize)
    _store_plan(conversation, Plan(result, edit, conversation.layout))
    return result


def _store_plan(conversation: Conversation, plan: Plan) -> None:
    plans = {
        plan_id: known
        for plan_id, known in conversation.plans.items()
        if known is conversation.applied_plan or known.layout == plan.layout
    }
    plans[plan.result.plan_id] = plan
    while len(plans) > PLANS_KEPT:
        del plans[next(iter(plans))]
    conversation.plans = plans


def apply_plan(conversation: Conversation, plan_id: str) -> FitResult:
    """Apply a plan. Applying the last applied plan again changes nothing.

    Raises:
        BadParamsError: The conversation has changed since the plan was made.
    """
    plan = conversation.plans.get(plan_id)
    if plan is None:
        raise stale_plan_error()
    if plan is conversation.applied_plan:
        return plan.result
    if plan.layout != conversation.layout:
        raise stale_plan_error()
    if plan.edit.changes:
        conversation.edit(plan.edit)
        conversation.touch()
    conversation.applied_plan = plan
    logger.debug(
        "pruned: %d turns, %d -> %d tokens",
        len(plan.result.removed),
        plan.result.tokens_before,
        plan.result.tokens_after,
    )
    return plan.result


class _Maker:
    def __init__(
        self, conversation: Conversation, max_tokens: int, keep_turns: int, factor: float
    ) -> None:
        self._conversation, self._counter = conversation, conversation.counter
        self._turns = conversation.turns
        self._max, self._keep_turns, self._factor = max_tokens, keep_turns, factor
        self._counts = conversation.ledger().counts
        self._sums = [sums_of(measure) for measure in self._counts.measures]
        self._total = conversation.total()

    def plan(self, plan_id: str, summarize: bool) -> tuple[FitResult, Edit]:
        """Return the plan for the client, and the edit that applies it."""
        pairs = Pairs(self._turns)
        cleaned = clean(self._turns, pairs, self._counter)
        reserved = min(SUMMARY_CAP, self._max // 8) if summarize else 0
        choice = self._choose(pairs, cleaned, reserved)
        summary = self._summarize_removed(choice) if summarize else None
        edit = self._edit(cleaned, choice, summary)
        after = self._occupancy_after(edit)
        return (
            FitResult(
                messages=self._messages_after(edit),
                removed=self._list_removed(cleaned, choice),
                summary=None if summary is None else str(summary.content),
                tokens_before=self._calibrated_tokens(self._total),
                tokens_after=after,
                cached_tokens_lost=edit.cached_lost,
                fits=after <= self._max,
                plan_id=plan_id,
                reason=None if after <= self._max else self._explain_misfit(after),
            ),
            edit,
        )

    def _choose(self, pairs: Pairs, cleaned: Cleaned, reserved: int) -> Choice:
        sums, total = list(self._sums), self._total
        for index, measure in cleaned.measures.items():
            sums[index] = sums_of(measure)
            total = total.minus(self._sums[index]).plus(sums[index])
        for index in cleaned.gone:
            total = total.minus(sums[index])
        if self._is_small_enough(total, self._max):
            return Choice(dict(cleaned.gone), total)
        candidates = units(self._turns, pairs, self._keep_turns)
        target = self._max - reserved
        made = choose(
            candidates, cleaned.gone, total, sums, lambda left: self._is_small_enough(left, target)
        )
        left = [turn for index, turn in enumerate(self._turns) if index not in made.gone]
        if self._keep_turns > 0 or not all(map(is_system, left)):
            return made
        self._keep_turns = 1  # a conversation needs at least one turn
        return self._choose(pairs, cleaned, reserved)

    def _summarize_removed(self, choice: Choice) -> Turn | None:
        """Return a turn that summarises the removed ones, or None if none fits."""
        gone = [index for index in sorted(choice.gone) if choice.gone[index] in _PRUNED]
        weight = sum(self._counts[index].tokens for index in gone)
        left = min(SUMMARY_CAP, self._max // 8, self._max - self._calibrated_tokens(choice.total))
        envelope = self._counter.message(Turn(role="user", content="")).tokens
        cap = min(int(left / max(1.0, self._factor)), weight // 2) - envelope
        if cap < SUMMARY_MIN:
            return None
        try:
            text = summarise([self._turns[index] for index in gone], self._counter, cap)
        except Exception as error:  # a failed summary must not prevent the plan
            logger.warning("no summary: %s", type(error).__name__)
            return None
        turn = Turn(role="user", content=text)
        return turn if text and self._counter.message(turn).tokens <= cap + envelope else None

    def _edit(self, cleaned: Cleaned, choice: Choice, summary: Turn | None) -> Edit:
        turns: list[Turn] = []
        measures: list[Measure] = []
        origins: list[int] = []
        for index, turn in enumerate(self._turns):
            if summary is not None and choice.gone.get(index) in _PRUNED:
                turns.append(summary)
                measures.append(self._counter.message(summary))
                origins.append(index)
                summary = None
            if index not in choice.gone:
                turns.append(cleaned.turns.get(index, turn))
                measures.append(cleaned.measures.get(index) or self._counts[index])
                origins.append(index)
        changed = min((*choice.gone, *cleaned.turns), default=None)
        return Edit(
            turns, measures, origins, changed is not None, self._count_cached_tokens_lost(changed)
        )

    def _count_cached_tokens_lost(self, changed: int | None) -> int:
        anchor = self._conversation.ledger().anchor
        if anchor is None or changed is None:
            return 0
        before = self._conversation.fixed().plus(self._counts.between(0, changed))
        return max(0, anchor.cached - before.tokens(self._factor))

    def _messages_after(self, edit: Edit) -> list[Turn]:
        system = self._conversation.system
        head = [system.turn] if isinstance(system, SystemPrompt) else []
        return [*head, *edit.turns]

    def _list_removed(self, cleaned: Cleaned, choice: Choice) -> list[Removed]:
        found = {index: (self._sums[index], reason) for index, reason in choice.gone.items()}
        for index, reason in cleaned.stripped.items():
            if index not in found:
                kept = sums_of(cleaned.measures[index])
                found[index] = (self._sums[index].minus(kept), reason)
        return [
            Removed(
                index=index,
                role=self._turns[index].role,
                tokens=self._calibrated_tokens(sums),
                reason=reason,
            )
            for index, (sums, reason) in sorted(found.items())
        ]

    def _occupancy_after(self, edit: Edit) -> int:
        if self._conversation.is_empty_but_for(edit.turns):
            return 0
        total = self._total
        for sums in self._sums:
            total = total.minus(sums)
        for measure in edit.measures:
            total = total.plus(sums_of(measure))
        return self._calibrated_tokens(total)

    def _calibrated_tokens(self, sums: Sums) -> int:
        return max(0, sums.tokens(self._factor))

    def _is_small_enough(self, sums: Sums, max_tokens: int) -> bool:
        return self._calibrated_tokens(sums) <= max_tokens

    def _explain_misfit(self, after: int) -> str:
        start = tail_start(self._turns, self._keep_turns)
        tail = self._calibrated_tokens(self._counts.between(start))
        return (
            f"{after:,} tokens are left and {self._max:,} are allowed: the last {self._keep_turns} "
            f"user turns with their replies take {tail:,} of them; what else stays is the system "
            "prompt, tools, sections and pending tool calls. Keep fewer turns, or allow more"
        )


_PRUNED = ("toolOutput", "dialogue")
