"""Params and results of the `cost/*` requests."""

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
    """A group of calls with the same values of the grouping keys. Other keys are null or absent."""

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
    """The local start of a block of five hours, such as `2026-11-21 14:00`."""
    agent: str | UnsetType | None = UNSET
    """The coding agent that made the calls, or `protocol` for calls that a client reported."""
    workspace: str | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    """The hash of a user, with the scope `team`."""
    team: str | UnsetType | None = UNSET
    """The name of a team, with the scope `team`."""
    calls: int
    prompt_tokens: int
    """All input tokens: uncached, cache reads and cache writes."""
    estimated_tokens: int | None
    """The sum of the estimates made before sending; null if no call has one."""
    estimated_prompt_tokens: int | None
    """The actual prompt tokens of the calls with an estimate."""
    completion_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    """The cost of the calls with a price; null if no call has one."""
    reported_cost_usd: float = 0.0
    """The part of `cost_usd` that vendors reported."""
    listed_cost_usd: float | None = None
    """The list price of the calls in `reported_cost_usd`; null if it is unknown."""
    agent_cost_usd: float | None = None
    """The cost that agents computed, which is used for calls without a price; null if unknown."""
    unpriced: bool
    """Whether a call, or a part of a call, has no known price. `cost_usd` excludes it."""
    note: str
    text: str
    cost_text: str = ""
    """The cost at the end of `text`: `$0.000219`, `unpriced` or both."""


class CostTotals(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The totals of a report. Tokens without a price are in `unpriced_tokens`."""

    calls: int
    input_tokens: int
    """Uncached input tokens."""
    output_tokens: int
    """Output tokens, including reasoning."""
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_usd: float
    unpriced_tokens: int
    """Tokens of calls, or of parts of calls, without a price."""
    cost_text: str
    """The cost as text, such as `$0.000219`, followed by what is unpriced."""

    @property
    def prompt_tokens(self) -> int:
        """All input tokens."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


class CostTable(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A report as a table of texts. `total` is the last row; it is empty for a single row."""

    heads: list[str]
    names: int
    """The number of leading columns with names. The other columns contain numbers."""
    rows: list[list[str]]
    total: list[str]


class CostBar(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A bar of a chart."""

    label: str
    share: float
    """The length of the bar relative to the longest one, from 0 to 1."""
    text: str
    """The cost, such as `$1.92`, or `unpriced`."""


class CostChart(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A chart with a bar for each value of a key. Days without calls are included."""

    by: CostKey
    title: str
    bars: list[CostBar]


class CostReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The costs of recorded calls. `text` lists all rows, with a total if there are several."""

    rows: list[CostRow]
    totals: CostTotals
    text: str
    basis: str = ""
    """What the costs of each agent are based on: API prices or reported credits."""
    note: str = ""
    """A note if calls are still being read; otherwise empty."""
    table: CostTable | None = None
    """The report as a table. Like the fields below, it is only set if `charts` is requested."""
    charts: list[CostChart] = []
    overview: str = ""
    """The table and the charts as plain text, followed by `text`."""


class CostRecordParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Record a finished call, with the vendor's unchanged usage object."""

    workspace: str | None = None
    session: str | None = None
    model: str
    category: str = "main"
    """`main`, `summary`, `sub-agent` or the client's own category."""
    provider: str | None = None
    usage: dict[str, Any]
    """The usage in the form of any vendor or of this protocol's `Usage`."""
    estimated_tokens: int | None = None
    """The estimate of the prompt before it was sent."""
    request_id: str | None = None
    """The vendor's id of the call. A second record with the same id is ignored."""
    at: datetime | None = None
    """The time of the call (RFC 3339); by default, now."""


class CostRecorded(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of recording a call, with its cost."""

    id: str
    usage: Usage
    cost_usd: float | None
    """The cost of everything with a price; null if nothing has one."""
    unpriced: bool
    """Whether a part of the call, such as a search, has no known price."""
    duplicate: bool
    """Whether a call with this request id and provider was recorded before."""


class CostFilesParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Request the costs of prompt files, by default of all in the workspace."""

    workspace: str | None = None
    since: str | None = None
    """The start of the time range, as in `cost/detail`; by default, 30 days ago."""
    uris: list[str] | None = None
    """The files to report; by default, all prompt files."""


class FileCost(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The cost of a prompt file, which agents send with every request."""

    uri: str
    tokens: int | None
    """The size of the file. Null if the file was not read, in which case `text` says why."""
    requests: int
    """The number of requests in this workspace by agents that send the file."""
    cost_usd: float | None
    """The cost by the cache use of each call; null if no call has a price."""
    cached_percent: int | None
    """The percentage of requests that read the file from a cache; null without requests."""
    text: str
    model: str | None = None
    """The model that `tokens` is counted for: that of most requests, else the configured one."""
    method: Method | None = None
    """How `tokens` was counted."""


class CostDetailParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Request a report of recorded calls."""

    workspace: str | None = None
    session: str | None = None
    scope: Literal["user", "team"] = "user"
    """With `team`, the calls in the team's store (`[team] store`) are reported."""
    since: str | None = None
    """The start: a local day (`2026-11-21`), a time (RFC 3339), `today` or `yesterday`."""
    until: str | None = None
    """The inclusive end, in the form of `since`. A day means the whole day."""
    by: tuple[CostKey, ...] = DEFAULT_KEYS
    charts: bool = False
    """Whether to add a table, charts by day, model and agent, and both as plain text."""


class CostPageParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Request a page with a report of recorded calls."""

    workspace: str | None = None
    period: Period = "month"
    by: PageKey = "model"
    """`file` stands for prompt files."""
    since: str | None = None
    """The first day of the period `custom`."""
    until: str | None = None
    """The last day of the period `custom`."""
