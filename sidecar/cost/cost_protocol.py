"""Params and results of the `cost/*` requests."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sidecar.counting.count_result import Method
from sidecar.messages.vendor_usage import Usage

CostKey = Literal[
    "model", "category", "session", "day", "week", "month", "block", "agent", "workspace",
    "branch", "cache-loss", "user", "team", "project",
]  # fmt: skip
_TEAM_ONLY: tuple[CostKey, ...] = ("user", "team", "project")
KEYS: tuple[CostKey, ...] = tuple(key for key in get_args(CostKey) if key not in _TEAM_ONLY)
TEAM_KEYS: tuple[CostKey, ...] = (
    "model", "category", "session", "day", "week", "month", "agent", "branch", "project", "user",
    "team",
)  # fmt: skip
"""The keys that team reports accept."""


def row_field(key: str) -> str:
    """Return the name of a key's field in `CostRow`."""
    return key.replace("-", "_")


PageKey = Literal["model", "agent", "session", "day", "week", "month", "file"]
Period = Literal["today", "week", "month", "all", "custom"]

DEFAULT_KEYS: tuple[CostKey, ...] = ("model", "category")


class CostRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A group of calls, such as all calls to one model. Keys that were not requested are null or
    absent.
    """

    model: str | None = None
    """The model, without a date at the end of its name if both names have the same prices."""
    category: str | None = None
    session: str | UnsetType | None = UNSET
    day: str | UnsetType | None = UNSET
    """A date in local time, such as `2026-11-21`."""
    week: str | UnsetType | None = UNSET
    """An ISO week, which starts on Monday, such as `2026-W47`."""
    month: str | UnsetType | None = UNSET
    """A month, such as `2026-11`."""
    block: str | UnsetType | None = UNSET
    """The local start time of a five-hour block, such as `2026-11-21 14:00`."""
    agent: str | UnsetType | None = UNSET
    """The coding agent that made the calls, or `protocol` for calls reported by a client."""
    workspace: str | UnsetType | None = UNSET
    branch: str | UnsetType | None = UNSET
    """The git branch that was checked out during the calls; null if unknown. In reports with the
    scope `team`, it is a hash or the label that `[team] branches` gives it.
    """
    cache_loss: str | UnsetType | None = UNSET
    """Why a cache was lost, such as `model switch`. The row has the calls that lost it, the tokens
    that they sent again, and what these cost more than a cache read. The rest of their cost, and
    all other calls, are in the row in which this is null.
    """
    user: str | UnsetType | None = UNSET
    """A user's hash. Only set in reports with the scope `team`."""
    team: str | UnsetType | None = UNSET
    """A team's name. Only set in reports with the scope `team`."""
    project: str | UnsetType | None = UNSET
    """The name of a project (`[team] labels`). Only set in reports with the scope `team`."""
    calls: int
    prompt_tokens: int
    """All input tokens: uncached input, cache reads and cache writes."""
    estimated_tokens: int | None
    """The total prompt size that was estimated before sending; null if nothing was estimated."""
    estimated_prompt_tokens: int | None
    """The actual prompt size of the calls with an estimate."""
    completion_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    """The cost of all calls with a price; null if no call has a price."""
    reported_cost_usd: float = 0.0
    """The part of `cost_usd` that vendors reported."""
    listed_cost_usd: float | None = None
    """What the calls with a reported cost would cost at list prices; null if unknown."""
    agent_cost_usd: float | None = None
    """The cost that agents computed. Used for calls without a known price; null if unknown."""
    unpriced: bool
    """Whether a call, or part of a call, has no known price and is excluded from `cost_usd`."""
    partial: bool = False
    """Whether `cost_usd` is a lower bound: it is `unpriced`, or the agent's files omit calls."""
    note: str
    text: str
    cost_text: str = ""
    """The cost as it appears at the end of `text`: `$0.000219`, `unpriced` or both."""


class CostTotals(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A report's totals. `cost_usd` excludes the tokens in `unpriced_tokens`."""

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
    """The number of tokens without a price, in calls that are partly or entirely unpriced."""
    cost_text: str
    """The cost as text, such as `$0.000219`, followed by a note about unpriced calls."""

    @property
    def prompt_tokens(self) -> int:
        """All input tokens."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def completion_tokens(self) -> int:
        return self.output_tokens


class CostTable(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A report as a table of text cells. The `total` row is empty if `rows` has only one row."""

    heads: list[str]
    names: int
    """The number of leading columns that contain names. All other columns contain numbers."""
    rows: list[list[str]]
    total: list[str]


class CostBar(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A bar of a chart."""

    label: str
    share: float
    """The length of the bar relative to the longest bar, from 0 to 1."""
    text: str
    """The cost, such as `$1.92`, or `unpriced`."""


class CostChart(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A bar chart of costs by day, model or agent. Days without calls are included."""

    by: CostKey
    title: str
    bars: list[CostBar]


class CostReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The costs of recorded calls. `text` lists all rows, followed by a total if there are
    several.
    """

    rows: list[CostRow]
    totals: CostTotals
    text: str
    basis: str = ""
    """How each agent's costs were determined: from API prices or from reported credits."""
    note: str = ""
    """A note that calls are still being read or priced; empty if the report is complete."""
    table: CostTable | None = None
    """The report as a table. This field, `charts` and `overview` require the param `charts`."""
    charts: list[CostChart] = []
    overview: str = ""
    """The table, the charts and `basis` as plain text."""


class CostRecordParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Records a finished call. `usage` is the vendor's unmodified usage object."""

    workspace: str | None = None
    session: str | None = None
    model: str
    category: str = "main"
    """`main`, `summary`, `subagent` or a category defined by the client."""
    branch: str | None = None
    """The git branch of the call; defaults to the one that is checked out in the workspace."""
    provider: str | None = None
    usage: dict[str, Any]
    """The usage, in any vendor's format or in the format of `Usage`."""
    estimated_tokens: int | None = None
    """The prompt size that was estimated before the call was sent."""
    request_id: str | None = None
    """The vendor's id for the call. A call whose id is already recorded is ignored."""
    at: datetime | None = None
    """The time of the call (RFC 3339); defaults to now."""


class CostRecorded(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of recording a call, including its cost."""

    id: str
    usage: Usage
    cost_usd: float | None
    """The cost of everything with a price; null if nothing has a price."""
    unpriced: bool
    """Whether any part of the call, such as a search, has no known price."""
    duplicate: bool
    """Whether a call with the same request id and provider had already been recorded."""


class CostFilesParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Requests the costs of prompt files."""

    workspace: str | None = None
    since: str | None = None
    """The start of the time range, as in `cost/detail`; defaults to 30 days ago."""
    until: str | None = None
    """The inclusive end of the time range, as in `cost/detail`; defaults to now."""
    uris: list[str] | None = None
    """The files to report; defaults to all prompt files in the workspace."""


class FileCost(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The cost of a prompt file, which agents send with every request."""

    uri: str
    tokens: int | None
    """The size of the file. Null if the file was not read, in which case `text` explains why."""
    requests: int
    """The number of requests in this workspace by agents that send the file."""
    cost_usd: float | None
    """The cost, based on how each call used the cache; null if no call has a price."""
    cached_percent: int | None
    """The percentage of requests that read the file from a cache; null if there are no requests."""
    text: str
    model: str | None = None
    """The model used to count `tokens`: either the most frequently used or the configured one."""
    method: Method | None = None
    """How `tokens` was counted."""
    unpriced: int = 0
    """The number of requests without a price, which `costUsd` excludes."""


class CostDetailParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Requests a report of recorded calls."""

    workspace: str | None = None
    session: str | None = None
    branch: str | None = None
    """Only calls on this git branch; an empty string selects calls whose branch is unknown."""
    scope: Literal["user", "team"] = "user"
    """`team` reports the calls in the team's store (`[team] store`)."""
    since: str | None = None
    """The start: a local day (`2026-11-21`), an RFC 3339 time, an age (`12h`, `7d` or `2w`),
    `today` or `yesterday`.
    """
    until: str | None = None
    """The inclusive end, in the same format as `since`. A day is included in full."""
    by: tuple[CostKey, ...] = DEFAULT_KEYS
    charts: bool = False
    """Whether to add a table and charts (by day, model and agent), and a plain-text version."""
    width: Annotated[int, Meta(ge=1)] | None = None
    """The most columns of a line in the plain-text version's table. A table that is wider gets
    shorter names, and then fewer columns of numbers.
    """


class CostPageParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Requests a page that shows a report of recorded calls."""

    workspace: str | None = None
    period: Period = "month"
    by: PageKey = "model"
    """The key to group by. `file` groups by prompt file."""
    since: str | None = None
    """The first day of the period, if it is `custom`."""
    until: str | None = None
    """The last day of the period, if it is `custom`."""
