"""Params and results of the `cost/*` requests. Imports neither the database nor the prices."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from sidecar.counting.count import Method
from sidecar.messages.usage import Usage

CostKey = Literal[
    "model", "category", "session", "day", "week", "month", "block", "agent", "workspace",
    "user", "team",
]  # fmt: skip
_TEAM_ONLY: tuple[CostKey, ...] = ("user", "team")
KEYS: tuple[CostKey, ...] = tuple(key for key in get_args(CostKey) if key not in _TEAM_ONLY)
TEAM_KEYS: tuple[CostKey, ...] = (
    "model", "category", "session", "day", "week", "month", "agent", "user", "team",
)  # fmt: skip
"""Keys of reports with the scope `team`."""
PageKey = Literal["model", "agent", "session", "day", "week", "month", "file"]
Period = Literal["today", "week", "month", "all", "custom"]
DEFAULT_KEYS: tuple[CostKey, ...] = ("model", "category")


class CostRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Calls with the same values of the grouping keys; other keys are null or absent."""

    model: str | None = None
    category: str | None = None
    session: str | UnsetType | None = UNSET
    day: str | UnsetType | None = UNSET
    """A local day, such as `2026-11-21`."""
    week: str | UnsetType | None = UNSET
    """An ISO week, which begins on Monday, such as `2026-W47`."""
    month: str | UnsetType | None = UNSET
    """A month, such as `2026-11`."""
    block: str | UnsetType | None = UNSET
    """Five hours from the hour of their first call on, by their local start: `2026-11-21 14:00`."""
    agent: str | UnsetType | None = UNSET
    """The coding agent that made the calls, or `protocol` for calls that a client reported."""
    workspace: str | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    """With the scope `team`: the hash of a user."""
    team: str | UnsetType | None = UNSET
    """With the scope `team`: the name of a team."""
    calls: int
    prompt_tokens: int
    """All input: uncached, cache reads and cache writes."""
    estimated_tokens: int | None
    """Sum of the estimates made before sending; null if no call has one."""
    estimated_prompt_tokens: int | None
    """Actual prompt tokens of the calls with an estimate."""
    completion_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    """Cost of the calls with a price; null if none has one."""
    reported_cost_usd: float = 0.0
    """The part of `cost_usd` that vendors reported, instead of being computed from a list."""
    listed_cost_usd: float | None = None
    """Cost of that part by the price list; null if nothing was reported, or no single price
    applies."""
    agent_cost_usd: float | None = None
    """Cost of these calls by the agents' own price lists, used for calls without a price; null if
    no agent reports one."""
    unpriced: bool
    """True if a call, or a part of one, has no known price; `cost_usd` excludes it."""
    note: str
    text: str
    cost_text: str = ""
    """The end of `text`: `$0.000219`, `unpriced` or both."""


class CostTotals(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Totals of a report. `cost_usd` covers the calls with a price, `unpriced_tokens` the rest."""

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
    """Tokens of calls without a price, and of parts of calls without one."""
    cost_text: str
    """`$0.000219`, plus what is unpriced. Unpriced calls are never shown as $0."""

    @property
    def prompt_tokens(self) -> int:
        """All input."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


class CostTable(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A report as a table of texts; `total` is its last row, empty if there is only one row."""

    heads: list[str]
    names: int
    """Number of leading columns with names; the others hold numbers."""
    rows: list[list[str]]
    total: list[str]


class CostBar(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One bar of a chart."""

    label: str
    share: float
    """Length relative to the longest bar, 0 to 1."""
    text: str
    """`$1.92`, or `unpriced`."""


class CostChart(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One bar per value of a key. Days without calls are included."""

    by: CostKey
    title: str
    bars: list[CostBar]


class CostReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Costs of recorded calls; `text` lists all rows, with a total if there are several."""

    rows: list[CostRow]
    totals: CostTotals
    text: str
    basis: str = ""
    """What the costs of agents' calls are based on: API prices or reported credits."""
    note: str = ""
    """Says so if calls are still being read."""
    table: CostTable | None = None
    """This and the fields below are set if `charts` was requested."""
    charts: list[CostChart] = []
    overview: str = ""
    """Table and charts as plain text, and the rows' texts."""


class CostRecordParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A finished call with the vendor's unchanged usage object."""

    workspace: str | None = None
    session: str | None = None
    model: str
    category: str = "main"
    """`main`, `summary`, `sub-agent` or the client's own category."""
    provider: str | None = None
    usage: dict[str, Any]
    """In any vendor's form, or in the form of this protocol's `Usage`."""
    estimated_tokens: int | None = None
    """Estimate of the prompt, made before it was sent."""
    request_id: str | None = None
    """The vendor's id of the call. A second record with the same id is ignored."""
    at: datetime | None = None
    """Time of the call (RFC 3339); now by default."""


class CostRecorded(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The recorded call with its cost."""

    id: str
    usage: Usage
    cost_usd: float | None
    """Cost of everything with a price; null if nothing has one."""
    unpriced: bool
    """True if a part of the call, such as a search, has no known price."""
    duplicate: bool
    """True if this request id of this provider was recorded before."""


class CostFilesParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The prompt files to report; all of the workspace by default."""

    workspace: str | None = None
    since: str | None = None
    """As in `cost/detail`; 30 days ago by default."""
    uris: list[str] | None = None
    """Only these files."""


class FileCost(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The cost of a prompt file, which agents send with every request."""

    uri: str
    tokens: int | None
    """Null if the file was not read; `text` says why."""
    requests: int
    """Requests of the agents that send the file, in this workspace."""
    cost_usd: float | None
    """Cost by each call's cache use; null if no call has a price."""
    cached_percent: int | None
    """Percentage of requests that read the file from a cache; null without requests."""
    text: str
    model: str | None = None
    """The model that `tokens` are counted for: that of most requests; without requests, the user's
    model."""
    method: Method | None = None
    """As in `Count`."""


class CostDetailParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The calls to report, and how to group them."""

    workspace: str | None = None
    session: str | None = None
    scope: Literal["user", "team"] = "user"
    """`team` reports the calls of everybody in the team's store ([team] store), by UTC day."""
    since: str | None = None
    """Inclusive: a local day (`2026-11-21`), a time (RFC 3339), `today` or `yesterday`."""
    until: str | None = None
    """Inclusive, in the form of `since`; a day means the whole day."""
    by: tuple[CostKey, ...] = DEFAULT_KEYS
    charts: bool = False
    """Add a table, charts by day, model and agent, and both as plain text."""


class CostPageParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The calls to show on a page, and how to group them."""

    workspace: str | None = None
    period: Period = "month"
    by: PageKey = "model"
    """`file` stands for prompt files."""
    since: str | None = None
    """First day of the period `custom`; other periods ignore it."""
    until: str | None = None
    """Last day of the period `custom`."""
