"""Params and results of `cost/record` and `cost/detail`; it imports no database and no prices."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from sidecar.cost.rows import DEFAULT_KEYS, CostKey
from sidecar.counting.count import Method
from sidecar.messages.usage import Usage


class CostRecordParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`cost/record`: a call that was made, with the vendor's usage object as it came."""

    workspace: str | None = None
    session: str | None = None
    model: str
    category: str = "main"
    """`main`, `summary`, `sub-agent` or a word of the client's own."""
    provider: str | None = None
    usage: dict[str, Any]
    """In any vendor's form, or in the form of this protocol's `Usage`."""
    estimated_tokens: int | None = None
    """What the prompt was thought to hold before it was sent."""
    request_id: str | None = None
    """The vendor's id of the call: a second record of it counts nothing."""
    at: datetime | None = None
    """When the call was made (RFC 3339); now, by default."""


class CostRecorded(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of `cost/record`."""

    id: str
    usage: Usage
    cost_usd: float | None
    """Of all that has a price; null where nothing has one."""
    unpriced: bool
    """True where some of it, be it a search, has no known price."""
    duplicate: bool
    """True where the same request id of the same provider was recorded before."""


class CostFilesParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`cost/files`: the prompt files of a workspace."""

    workspace: str | None = None
    since: str | None = None
    """As in `cost/detail`; 30 days ago, by default."""
    uris: list[str] | None = None
    """Only these files."""


class FileCost(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A prompt file that rides along with every request of an agent, and what that has cost."""

    uri: str
    tokens: int | None
    """null where the file was named and not read; `text` says why."""
    requests: int
    """Of the agents that send the file, in this workspace."""
    cost_usd: float | None
    """At the prices of what each call's cache did; null where none has a price."""
    cached_percent: int | None
    """Of the requests, those that read a cache; null without any."""
    text: str
    model: str | None = None
    """What `tokens` are counted for: the model of most of those requests; without any, the one that
    the user chose."""
    method: Method | None = None
    """How they were counted, as in `Count`."""


class CostDetailParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`cost/detail`: which calls, and what the rows are grouped by."""

    workspace: str | None = None
    session: str | None = None
    since: str | None = None
    """Inclusive: a local day (`2026-11-21`), a time (RFC 3339), `today` or `yesterday`."""
    until: str | None = None
    """Inclusive, as `since`; a day is the whole day."""
    by: tuple[CostKey, ...] = DEFAULT_KEYS
    charts: bool = False
    """Give a table, charts by day, model and agent, and all of it in characters too."""
