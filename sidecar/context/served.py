"""Turns whose texts the model's server counts, where it cannot count a whole chat.

What the template puts around each is an estimate by formula, corrected by reported prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from sidecar.context.counter import Sums
from sidecar.context.sections import SystemPrompt
from sidecar.counting.messages import message_text

if TYPE_CHECKING:
    from sidecar.context.model_counts import ModelCounts
    from sidecar.context.session import Session
    from sidecar.counting.count import Measure
    from sidecar.messages.turns import Turn

SYSTEM = -1
"""What stands for the system prompt where turns are named by their index."""


def uncounted(session: Session) -> dict[int, str]:
    """The texts that only an estimate knows, by turn; those that a reported prompt held count
    with it and are not among them."""
    ledger, system = session.ledger(), session.system
    first = ledger.anchor.prompt_covers if ledger.anchor else 0
    turns = {
        index: message_text(msgspec.to_builtins(session.turns[index]))
        for index in range(first, len(session.turns))
        if _is_guess(ledger.counts[index])
    }
    if isinstance(system, SystemPrompt) and _is_guess(system.measure(session.counter)):
        turns[SYSTEM] = system.text
    return {index: text for index, text in turns.items() if text}


def texts_counted(session: Session, counted: Mapping[int, int]) -> None:
    """Take the server's counts of the texts of some turns, in tokens."""
    ledger, system = session.ledger(), session.system
    if SYSTEM in counted and isinstance(system, SystemPrompt):
        system.take(session.counter, _around(session, system.turn, counted[SYSTEM]))
    measures = list(ledger.counts.measures)
    turns = [index for index in counted if index != SYSTEM]
    for index in turns:
        measures[index] = _around(session, session.turns[index], counted[index])
    if turns:
        ledger.counts.recount_tail(min(turns), measures[min(turns) :])
    anchor = ledger.anchor
    if anchor is not None and anchor.kind == "usage" and anchor.adjust == Sums():
        _recount_reply(session, ledger, set(turns))


def _recount_reply(session: Session, ledger: ModelCounts, new: set[int]) -> None:
    """After a report: what the template adds, and the reply as the next request carries it."""
    anchor = ledger.anchor
    if anchor is None:
        return
    reply = range(anchor.prompt_covers, anchor.covers)
    if ledger.unexplained is None or ledger.unexplained[0] != anchor.prompt_covers:
        ledger.reported(session.own_count(anchor.prompt_covers))
    if new.intersection(reply) and all(ledger.counts[index].counted for index in reply):
        base = anchor.prompt + ledger.counts.between(reply.start, reply.stop).tokens()
        ledger.anchor = msgspec.structs.replace(
            anchor, base=base, reasoning=0, reply_estimate=Sums()
        )


def _around(session: Session, turn: Turn, counted: int) -> Measure:
    """A turn's measure, what stands around its text corrected by what was learned."""
    measure, ledger = session.counter.around(turn, counted), session.ledger()
    if ledger.unexplained is None or measure.error_percent is None:
        return measure
    tokens = max(counted, measure.tokens + round(ledger.correction))
    error = (measure.error_percent or 0.0) / 10
    return msgspec.structs.replace(measure, tokens=tokens, method="calibrated", error_percent=error)


def _is_guess(measure: Measure) -> bool:
    return measure.method in ("calibrated", "estimate") and not measure.counted
