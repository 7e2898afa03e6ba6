"""Rows and totals of a cost report, as they go over the wire and as people read them."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sidecar.cost.events import Buckets
from sidecar.text.printable import counted, printable

if TYPE_CHECKING:
    from sidecar.cost.prices import Cost

CostKey = Literal["model", "category", "session", "day", "agent", "workspace"]
KEYS: tuple[CostKey, ...] = ("model", "category", "session", "day", "agent", "workspace")
DEFAULT_KEYS: tuple[CostKey, ...] = ("model", "category")


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
    listed_cost_usd: float | None = None
    """What that part would cost by the price list; null where nothing was reported, or no one
    price holds for it."""
    agent_cost_usd: float | None = None
    """What agents that keep such a figure say that these calls cost, by lists of their own: it
    stands in for calls without a price. Null where none says so."""
    unpriced: bool
    """True where some call, or a part of one, has no known price: `cost_usd` leaves it out."""
    note: str
    text: str
    cost_text: str = ""
    """`$0.000219`, `unpriced` or both, as `text` ends."""


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
    """Prompt and completion of the calls without a price, and of the others what has none."""
    cost_text: str
    """`$0.000219`, with what is unpriced named: nothing unpriced is ever shown as $0."""

    @property
    def prompt_tokens(self) -> int:
        """All input."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


class CostTable(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A report as a table, ready to be shown; `total` is its last row, empty for a single one."""

    heads: list[str]
    names: int
    """How many columns, from the first on, hold names; the others hold numbers."""
    rows: list[list[str]]
    total: list[str]


class CostBar(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One bar of a chart."""

    label: str
    share: float
    """Of the longest bar, 0 to 1."""
    text: str
    """`$1.92`, or `unpriced`."""


class CostChart(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One bar for each value of a key; days are all there, from the first to the last."""

    by: CostKey
    title: str
    bars: list[CostBar]


class CostReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of `cost/detail`. `text`: the rows' texts, and a total below several."""

    rows: list[CostRow]
    totals: CostTotals
    text: str
    basis: str = ""
    """What the costs of agents' calls are by: API prices, or credits as reported."""
    note: str = ""
    """What is missing yet: calls that are still being read."""
    table: CostTable | None = None
    """With `charts` asked for, as all below."""
    charts: list[CostChart] = []
    overview: str = ""
    """Table and charts in characters, and the rows' texts."""


class Tally:
    """What adds up to a row, and to the totals."""

    def __init__(self) -> None:
        self.calls = 0
        self.priced_calls = 0
        self.partly_priced = False
        self.buckets = [0] * len(Buckets.__struct_fields__)
        self.estimated_calls = 0
        self.estimated = 0
        self.estimated_prompt = 0
        self.cost = Decimal(0)
        self.reported = Decimal(0)
        self.agent = Decimal(0)
        """By the agents' own lists."""
        self.listed: Decimal | None = None
        """What the reported calls would cost by the price list."""
        self._unlisted = False
        self.unpriced_tokens = 0

    def add(self, calls: int, buckets: Buckets, cost: Cost) -> None:
        """Count these calls, and what of them has a price."""
        self.calls += calls
        for index, number in enumerate(msgspec.structs.astuple(buckets)):
            self.buckets[index] += number
        self.unpriced_tokens += cost.unpriced_tokens
        if cost.usd is not None:
            self.cost += cost.usd
            self.priced_calls += calls
            self.partly_priced = self.partly_priced or not cost.whole

    def compare(self, listed: Decimal | None) -> None:
        """Add what some reported calls would cost by the list; None: the list has no say."""
        self._unlisted = self._unlisted or listed is None
        self.listed = None if self._unlisted or listed is None else (self.listed or 0) + listed

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
        """True where some call, or a part of one, has no price."""
        return self.partly_priced or self.priced_calls < self.calls


def row(tally: Tally, keys: dict[CostKey, str | None]) -> CostRow:
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
        listed_cost_usd=None if tally.listed is None else float(tally.listed),
        agent_cost_usd=float(tally.agent) if tally.agent else None,
        unpriced=tally.unpriced,
        note=note,
        text=_row_text(tally, keys, note),
        cost_text=_cost_text(tally),
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


def _row_text(tally: Tally, keys: dict[CostKey, str | None], note: str) -> str:
    return _line(printable(" ".join(value or "(none)" for value in keys.values())), tally, note)


def _line(label: str, tally: Tally, note: str) -> str:
    """The contract's form: `LABEL N calls, PROMPT [~est=N ]/ COMPLETION tokens, $COST`."""
    buckets = tally.sum
    prompt = f"{buckets.prompt} {note}" if note else str(buckets.prompt)
    tokens = f"{prompt} / {buckets.completion} tokens"
    return f"{label} {tally.calls} calls, {tokens}, {_cost_text(tally)}"


def _cost_text(tally: Tally) -> str:
    if not tally.unpriced:
        return amount(tally.cost)
    if not tally.priced_calls:
        return "unpriced"
    left = tally.calls - tally.priced_calls
    missing = [counted(left, "call")] * bool(left) + ["parts"] * tally.partly_priced
    return f"{amount(tally.cost)} + {' and '.join(missing)} unpriced"
