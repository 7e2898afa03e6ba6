"""Params and results of `cost/record` and `cost/detail`; it imports no database and no prices."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from sidecar.cost.rows import DEFAULT_KEYS, Key
from sidecar.endpoints.usage import Usage


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
    """null where no price is known."""
    duplicate: bool
    """True where the same request id of the same provider was recorded before."""


class CostDetailParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`cost/detail`: which calls, and what the rows are told apart by."""

    workspace: str | None = None
    session: str | None = None
    since: str | None = None
    """Inclusive: a local day (`2026-11-21`), a time (RFC 3339), `today` or `yesterday`."""
    until: str | None = None
    """Inclusive, as `since`; a day is the whole day."""
    by: tuple[Key, ...] = DEFAULT_KEYS
