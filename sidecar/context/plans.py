"""Plans that make a conversation fit (`context/fit`): worked out, shown, applied, taken back."""

from __future__ import annotations

import logging
from copy import copy
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from sidecar.context.counter import Calibration, Sums, factor_of, sums_of
from sidecar.context.model_counts import Edit
from sidecar.context.prune import Choice, Cleaned, Pairs, choose, clean, tail_start, units
from sidecar.context.results import FitResult, Removed
from sidecar.context.sections import SystemPrompt, no_text
from sidecar.context.summary import summarise
from sidecar.errors import BadParamsError
from sidecar.messages.turns import Turn, is_system

if TYPE_CHECKING:
    from sidecar.context.params import FitParams
    from sidecar.context.session import Session
    from sidecar.context.window import Window
    from sidecar.counting.count import Measure

logger = logging.getLogger(__name__)

SUMMARY_CAP = 1000
"""Tokens of a summary at most, and never more than an eighth of what is aimed at."""
SUMMARY_MIN = 24
"""Fewer tokens than this say nothing useful: then what goes is dropped without a summary."""
PLANS_KEPT = 4


class Plan(msgspec.Struct, frozen=True):
    """A plan and the state of the session that it was made for."""

    result: FitResult
    edit: Edit
    layout: int


def stale_plan() -> BadParamsError:
    """The error for a plan that was made for another state of the session, or never."""
    return BadParamsError("planId names no current plan: the session changed, ask for a new plan")


class Plans:
    """The plans of one session that may still be applied. Holds no text beyond the session's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plans: dict[str, Plan] = {}
        self._applied: Plan | None = None
        self._numbers = count(1)

    def copy(self, session: Session) -> Plans:
        """The same plans for a copy of their session."""
        made = copy(self)
        made._session, made._plans = session, self._plans.copy()
        return made

    def answer(
        self,
        params: FitParams,
        window: Window,
        *,
        keep_turns: int = 4,
        calibration: Calibration | None = None,
    ) -> FitResult:
        """`context/fit`: a plan that is named is applied; else one is made, and applied if asked.

        Args:
            params: as they came.
            window: the session's; its usable part is what is aimed at by default.
            keep_turns: the setting, where the params do not say.
            calibration: of the session's estimates.
        """
        if params.plan_id is not None:
            return self.apply(params.plan_id)
        made = self.make(
            window.usable if params.max_tokens is None else params.max_tokens,
            keep_turns=keep_turns if params.keep_turns is None else params.keep_turns,
            summarize=params.strategy == "summarize",
            calibration=calibration,
        )
        return self.apply(made.plan_id) if params.apply else made

    def make(
        self,
        max_tokens: int,
        *,
        keep_turns: int = 4,
        summarize: bool = False,
        calibration: Calibration | None = None,
    ) -> FitResult:
        """A plan after which the occupancy is `max_tokens` at most; nothing is changed.

        Raises SidecarError `noText` for a session that is known by its counts only.
        """
        if self._session.known_by_counts:
            raise no_text()
        maker = _Maker(self._session, max_tokens, keep_turns, factor_of(calibration))
        result, edit = maker.plan(f"{self._session.id}/{next(self._numbers)}", summarize)
        self._keep(Plan(result, edit, self._session.layout))
        return result

    def _keep(self, plan: Plan) -> None:
        """Keep a plan, and forget those that can no longer be applied."""
        self._plans = {
            plan_id: known
            for plan_id, known in self._plans.items()
            if known is self._applied or known.layout == plan.layout
        }
        self._plans[plan.result.plan_id] = plan
        while len(self._plans) > PLANS_KEPT:
            del self._plans[next(iter(self._plans))]

    def apply(self, plan_id: str) -> FitResult:
        """Apply a plan as it was shown. Applying the last applied one again changes nothing.

        Raises SidecarError `badParams` where the session changed since the plan was made.
        """
        plan = self._plans.get(plan_id)
        if plan is None:
            raise stale_plan()
        if plan is self._applied:
            return plan.result
        if plan.layout != self._session.layout:
            raise stale_plan()
        if plan.edit.changes:
            self._session.edit(plan.edit)
            self._session.touch()
        self._applied = plan
        logger.debug(
            "pruned: %d turns, %d -> %d tokens",
            len(plan.result.removed),
            plan.result.tokens_before,
            plan.result.tokens_after,
        )
        return plan.result

    def undo(self) -> bool:
        """Take the last applied plan back, once. False where there is none."""
        self._applied = None
        return self._session.undo()


class _Maker:
    """Makes one plan."""

    def __init__(self, session: Session, max_tokens: int, keep_turns: int, factor: float) -> None:
        self._session, self._counter = session, session.counter
        self._turns = session.turns
        self._max, self._keep, self._factor = max_tokens, keep_turns, factor
        self._counts = session.ledger().counts
        self._sums = [sums_of(measure) for measure in self._counts.measures]
        self._total = session.total()

    def plan(self, plan_id: str, summarize: bool) -> tuple[FitResult, Edit]:
        """The plan's public form, and the edit that it stands for."""
        pairs = Pairs(self._turns)
        cleaned = clean(self._turns, pairs, self._counter)
        reserved = min(SUMMARY_CAP, self._max // 8) if summarize else 0
        choice = self._choose(pairs, cleaned, reserved)
        summary = self._summary(choice) if summarize else None
        edit = self._edit(cleaned, choice, summary)
        after = self._after(edit)
        return (
            FitResult(
                messages=self._messages(edit),
                removed=self._removed(cleaned, choice),
                summary=None if summary is None else str(summary.content),
                tokens_before=self._tokens(self._total),
                tokens_after=after,
                cached_tokens_lost=edit.cached_lost,
                fits=after <= self._max,
                plan_id=plan_id,
                reason=None if after <= self._max else self._why_not(after),
            ),
            edit,
        )

    def _choose(self, pairs: Pairs, cleaned: Cleaned, reserved: int) -> Choice:
        """Turns that go; room for a summary is kept only where something has to go."""
        sums, total = list(self._sums), self._total
        for index, measure in cleaned.measures.items():
            sums[index] = sums_of(measure)
            total = total.minus(self._sums[index]).plus(sums[index])
        for index in cleaned.gone:
            total = total.minus(sums[index])
        if self._fits(total, self._max):
            return Choice(dict(cleaned.gone), total)
        candidates = units(self._turns, pairs, self._keep)
        target = self._max - reserved
        made = choose(candidates, cleaned.gone, total, sums, lambda left: self._fits(left, target))
        left = [turn for index, turn in enumerate(self._turns) if index not in made.gone]
        if self._keep > 0 or not all(map(is_system, left)):
            return made
        self._keep = 1  # a conversation without a turn is none
        return self._choose(pairs, cleaned, reserved)

    def _summary(self, choice: Choice) -> Turn | None:
        """A turn that summarises what was removed; None where none fits, or it fails."""
        gone = [index for index in sorted(choice.gone) if choice.gone[index] in _PRUNED]
        weight = sum(self._counts[index].tokens for index in gone)
        left = min(SUMMARY_CAP, self._max // 8, self._max - self._tokens(choice.total))
        envelope = self._counter.message(Turn(role="user", content="")).tokens
        cap = min(int(left / max(1.0, self._factor)), weight // 2) - envelope
        if cap < SUMMARY_MIN:
            return None
        try:
            text = summarise([self._turns[index] for index in gone], self._counter, cap)
        except Exception as error:  # a summary is a courtesy: without it the turns just go
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
        return Edit(turns, measures, origins, changed is not None, self._cached_lost(changed))

    def _cached_lost(self, changed: int | None) -> int:
        """What the vendor's prompt cache holds from the first changed turn on."""
        anchor = self._session.ledger().anchor
        if anchor is None or changed is None:
            return 0
        before = self._session.fixed().plus(self._counts.between(0, changed))
        return max(0, anchor.cached - before.tokens(self._factor))

    def _messages(self, edit: Edit) -> list[Turn]:
        system = self._session.system
        head = [system.turn] if isinstance(system, SystemPrompt) else []
        return [*head, *edit.turns]

    def _removed(self, cleaned: Cleaned, choice: Choice) -> list[Removed]:
        found = {index: (self._sums[index], reason) for index, reason in choice.gone.items()}
        for index, reason in cleaned.stripped.items():
            if index not in found:
                kept = sums_of(cleaned.measures[index])
                found[index] = (self._sums[index].minus(kept), reason)
        return [
            Removed(
                index=index,
                role=self._turns[index].role,
                tokens=self._tokens(sums),
                reason=reason,
            )
            for index, (sums, reason) in sorted(found.items())
        ]

    def _after(self, edit: Edit) -> int:
        """The occupancy once the edit is made."""
        if self._session.is_empty_but_for(edit.turns):
            return 0
        total = self._total
        for sums in self._sums:
            total = total.minus(sums)
        for measure in edit.measures:
            total = total.plus(sums_of(measure))
        return self._tokens(total)

    def _tokens(self, sums: Sums) -> int:
        return max(0, sums.tokens(self._factor))

    def _fits(self, sums: Sums, max_tokens: int) -> bool:
        return self._tokens(sums) <= max_tokens

    def _why_not(self, after: int) -> str:
        start = tail_start(self._turns, self._keep)
        tail = self._tokens(self._counts.between(start))
        return (
            f"{after:,} tokens are left and {self._max:,} are allowed: the last {self._keep} user "
            f"turns with their replies take {tail:,} of them; what else stays is the system "
            "prompt, tools, sections and pending tool calls. Keep fewer turns, or allow more"
        )


_PRUNED = ("toolOutput", "dialogue")
