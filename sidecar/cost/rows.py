"""Rows and totals of a cost report, as they go over the wire and as people read them."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from sidecar.cost.events import Buckets

Key = Literal["model", "category", "session", "day", "agent", "workspace"]
KEYS: tuple[Key, ...] = ("model", "category", "session", "day", "agent", "workspace")
DEFAULT_KEYS: tuple[Key, ...] = ("model", "category")


class CostRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The calls that have the keys asked for in common. Keys not asked for are null or absent."""

    model: str | None = None
    category: str | None = None
    session: str | UnsetType | None = UNSET
    day: str | UnsetType | None = UNSET
    """A local day, such as `2026-11-21`."""
    agent: str | UnsetType | None = UNSET
    """`protocol` for what a client reported, else the name of a coding agent."""
    workspace: str | UnsetType | None = UNSET
    calls: int
    prompt_tokens: int
    """All input: uncached, cache reads and cache writes."""
    estimated_tokens: int | None
    """Estimates made before sending, of the calls that carry one; null where none does."""
    estimated_prompt_tokens: int | None
    """What those same calls held."""
    completion_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    """Of the calls with a price; null where none has one."""
    reported_cost_usd: float = 0.0
    """The part of `cost_usd` that vendors themselves reported, not worked out from a list."""
    unpriced: bool
    """True where some call has no known price: `cost_usd` leaves it out."""
    note: str
    text: str


class CostTotals(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Totals of a report. `cost_usd` is of the calls with a price; the others' tokens are apart."""

    calls: int
    input_tokens: int
    """Uncached input."""
    output_tokens: int
    """Reasoning included."""
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_usd: float
    unpriced_tokens: int
    """Prompt and completion of the calls without a price."""
    cost_text: str
    """`$0.000219`, with what is unpriced named: nothing unpriced is ever shown as $0."""


class CostReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of `cost/detail`. `text`: the rows' texts, and a total below several."""

    rows: list[CostRow]
    totals: CostTotals
    text: str


class Tally:
    """What adds up to a row, and to the totals."""

    def __init__(self) -> None:
        self.calls = 0
        self.priced_calls = 0
        self.buckets = [0] * len(Buckets.__struct_fields__)
        self.estimated_calls = 0
        self.estimated = 0
        self.estimated_prompt = 0
        self.cost = Decimal(0)
        self.reported = Decimal(0)
        self.unpriced_tokens = 0

    def add(self, calls: int, buckets: Buckets, cost: Decimal | None) -> None:
        """Count these calls; a cost of None is unpriced."""
        self.calls += calls
        for index, number in enumerate(msgspec.structs.astuple(buckets)):
            self.buckets[index] += number
        if cost is None:
            self.unpriced_tokens += buckets.prompt + buckets.completion
        else:
            self.cost += cost
            self.priced_calls += calls

    def add_estimates(self, calls: int, estimated: int, prompt: int) -> None:
        """Count what these calls were thought to hold, and what they held."""
        self.estimated_calls += calls
        self.estimated += estimated
        self.estimated_prompt += prompt

    @property
    def sum(self) -> Buckets:
        """All tokens so far."""
        return Buckets(**dict(zip(Buckets.__struct_fields__, self.buckets, strict=True)))

    @property
    def unpriced(self) -> bool:
        """True where some call has no price."""
        return self.priced_calls < self.calls


def row(tally: Tally, keys: dict[Key, str | None]) -> CostRow:
    """A finished row of a report."""
    buckets, note = tally.sum, estimate_note(tally.estimated, tally.estimated_prompt)
    return CostRow(
        **keys,
        calls=tally.calls,
        prompt_tokens=buckets.prompt,
        estimated_tokens=tally.estimated if tally.estimated_calls else None,
        estimated_prompt_tokens=tally.estimated_prompt if tally.estimated_calls else None,
        completion_tokens=buckets.completion,
        cache_read_tokens=buckets.cache_read,
        cache_write_tokens=buckets.cache_writes,
        cost_usd=float(tally.cost) if tally.priced_calls else None,
        reported_cost_usd=float(tally.reported),
        unpriced=tally.unpriced,
        note=note,
        text=_row_text(tally, keys, note),
    )


def totals(tally: Tally) -> CostTotals:
    """The finished totals of a report."""
    buckets = tally.sum
    return CostTotals(
        calls=tally.calls,
        input_tokens=buckets.input,
        output_tokens=buckets.completion,
        cache_read_tokens=buckets.cache_read,
        cache_write_tokens=buckets.cache_writes,
        reasoning_tokens=buckets.reasoning,
        cost_usd=float(tally.cost),
        unpriced_tokens=tally.unpriced_tokens,
        cost_text=_cost_text(tally),
    )


def estimate_note(estimated: int, actual: int) -> str:
    """`~est=N` where the estimate is more than 10 % off what the same calls held, else ""."""
    return f"~est={estimated}" if abs(actual - estimated) * 10 > actual else ""


def amount(cost: Decimal) -> str:
    """`$0.000219`: six decimals; what would round to nothing shows its first two digits."""
    if 0 < cost < Decimal("0.0000005"):
        return f"${cost:.{1 - cost.adjusted()}f}"
    return f"${cost:.6f}"


def total_text(tally: Tally) -> str:
    """The last line of a report: `total 3 calls, 1200 / 80 tokens, $0.004219`."""
    return _line("total", tally, "")


def _row_text(tally: Tally, keys: dict[Key, str | None], note: str) -> str:
    return _line(" ".join(value or "(none)" for value in keys.values()), tally, note)


def _line(label: str, tally: Tally, note: str) -> str:
    """The contract's form: `LABEL N calls, PROMPT [~est=N ]/ COMPLETION tokens, $COST`."""
    buckets = tally.sum
    prompt = f"{buckets.prompt} {note}" if note else str(buckets.prompt)
    tokens = f"{prompt} / {buckets.completion} tokens"
    return f"{label} {tally.calls} calls, {tokens}, {_cost_text(tally)}"


def _cost_text(tally: Tally) -> str:
    if not tally.unpriced:
        return amount(tally.cost)
    if tally.priced_calls:
        return f"{amount(tally.cost)} + {tally.calls - tally.priced_calls} calls unpriced"
    return "unpriced"
