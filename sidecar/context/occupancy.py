"""The one place that says how many tokens are in a context.

Status, `context/usage`, pruning, preflight and reports all get their number here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.context.counter import Calibration, factor_of, is_learned, summed
from sidecar.context.results import (
    Breakdown,
    CalibrationInfo,
    ContextUsage,
    Part,
    SessionInfo,
)
from sidecar.context.sections import ToolSet
from sidecar.context.turns import parts

if TYPE_CHECKING:
    from sidecar.context.session import Session
    from sidecar.context.window import Window
    from sidecar.counting.count import Measure

LARGEST_SHOWN = 5


def occupancy(session: Session, calibration: Calibration | None = None) -> Measure:
    """What the next request would carry before the user adds to it (contract: Occupancy).

    The last request's whole prompt as it was reported, that reply's output without reasoning that
    is not sent back, and what was counted since; before any report, what was counted.
    """
    return summed(session.total(), session.counter.tokenizer, calibration)


def estimated_prompt(session: Session, calibration: Calibration | None = None) -> Measure:
    """The occupancy without any vendor's number: what an estimate made before sending says."""
    return summed(session.own_count(), session.counter.tokenizer, calibration)


def context_usage(
    session: Session,
    window: Window,
    *,
    warn_at: tuple[float, ...] = (0.8, 0.95),
    calibration: Calibration | None = None,
    cost_usd: float | None = None,
) -> ContextUsage:
    """The public answer to "how full is the context"; numbers are null while it holds nothing."""
    known = not session.is_empty
    measure = occupancy(session, calibration) if known else None
    tokens = measure.tokens if measure else None
    return ContextUsage(
        tokens=tokens,
        limit=window.limit.tokens,
        limit_source=window.limit.source,
        reserve=window.reserve,
        usable=window.usable,
        available=None if tokens is None else window.available(tokens),
        percent=None if tokens is None else window.percent(tokens),
        over=None if tokens is None else window.over(tokens),
        method=measure.method if measure else None,
        error_percent=measure.error_percent if measure else None,
        model=session.model,
        session=SessionInfo(
            id=session.id,
            source=session.source,
            updated_at=session.updated_at.isoformat().replace("+00:00", "Z"),
        ),
        breakdown=None if tokens is None else breakdown(session, tokens, calibration),
        largest=[] if tokens is None else largest(session, tokens, calibration),
        turns=len(session.turns),
        should_prune=None if tokens is None else should_prune(tokens, window, warn_at),
        compacted=session.compacted,
        calibration=calibration_info(calibration),
        cost_usd=cost_usd,
    )


def should_prune(tokens: int, window: Window, warn_at: tuple[float, ...]) -> bool:
    """Whether the last threshold is crossed; without thresholds, the whole window."""
    return tokens > window.usable * max(warn_at, default=1.0)


def calibration_info(calibration: Calibration | None) -> CalibrationInfo | None:
    """What the calibration holds, once it holds anything."""
    if not is_learned(calibration):
        return None
    return CalibrationInfo(
        factor=calibration.factor,
        samples=calibration.samples,
        error_percent=calibration.error_percent,
    )


def breakdown(session: Session, tokens: int, calibration: Calibration | None) -> Breakdown:
    """What takes the tokens. A reported number beyond what was counted shows as overhead; one
    below it means that not all turns are still sent, and is taken from the turns first."""
    factor = factor_of(calibration)
    counts = session.ledger().counts
    system = _tokens(session.system.measure(session.counter), factor) if session.system else 0
    tools = _tokens(session.tools.measure(session.counter), factor) if session.tools else 0
    sections = session.section_sums().tokens(factor)
    turns = counts.between(0).tokens(factor)
    left = tokens
    shown = []
    for part in (system, tools, sections, turns):
        shown.append(min(part, left))
        left -= shown[-1]
    return Breakdown(
        system=shown[0], tools=shown[1], sections=shown[2], turns=shown[3], overhead=left
    )


def largest(session: Session, tokens: int, calibration: Calibration | None) -> list[Part]:
    """The parts that take most, most tokens first; turns are numbered from 0, as in a plan."""
    factor = factor_of(calibration)
    counter = session.counter
    found = [
        Part(label=label, tokens=_tokens(part.measure(counter), factor))
        for label, part in (("system prompt", session.system), ("tools", session.tools))
        if part is not None
    ]
    found += [
        Part(label=f"section {section.name}", tokens=_tokens(section.measure(counter), factor))
        for section in session.sections
    ]
    counts = session.ledger().counts
    found += [
        Part(label=_turn_label(session, index), tokens=_tokens(counts[index], factor))
        for index, _ in counts.largest()
    ]
    fitting = [part for part in found if 0 < part.tokens <= tokens]
    return sorted(fitting, key=lambda part: -part.tokens)[:LARGEST_SHOWN]


def heaviest_tools(session: Session, number: int = 3) -> list[tuple[str, int]]:
    """(name, tokens) of the tools whose schemas weigh most; counts each schema when asked."""
    if not isinstance(session.tools, ToolSet):
        return []
    return session.tools.heaviest(session.counter, number)


def _turn_label(session: Session, index: int) -> str:
    turn = session.turns[index]
    names = [part.name for part in parts(turn) if part.name]
    return f"turn {index} ({turn.role}{': ' + ', '.join(names[:3]) if names else ''})"


def _tokens(measure: Measure, factor: float) -> int:
    soft = measure.method in ("calibrated", "estimate")
    return round(measure.tokens * factor) if soft else measure.tokens
