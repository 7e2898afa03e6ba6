"""The admin APIs of the vendors whose bills can be compared with the ledger.

The command line also imports this module for its help, so it imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Vendor = Literal["anthropic", "openai"]


class ReportRequest(NamedTuple):
    path: str
    params: Mapping[str, str]


class VendorApi(NamedTuple):
    """A vendor's admin API."""

    base: str
    variable: str
    """The environment variable with the admin key."""
    requests: tuple[ReportRequest, ...]
    key_header: str
    key_prefix: str = ""
    headers: Mapping[str, str] = {}
    uses_unix_time: bool = False


APIS: Mapping[Vendor, VendorApi] = {
    "anthropic": VendorApi(
        "https://api.anthropic.com",
        "ANTHROPIC_ADMIN_API_KEY",
        (
            ReportRequest("/v1/organizations/usage_report/messages", {"group_by[]": "model"}),
            ReportRequest("/v1/organizations/cost_report", {"group_by[]": "description"}),
        ),
        "x-api-key",
        headers={"anthropic-version": "2023-06-01"},
    ),
    "openai": VendorApi(
        "https://api.openai.com",
        "OPENAI_ADMIN_KEY",
        (
            ReportRequest("/v1/organization/usage/completions", {"group_by": "model"}),
            ReportRequest("/v1/organization/costs", {"group_by": "line_item"}),
        ),
        "authorization",
        key_prefix="Bearer ",
        uses_unix_time=True,
    ),
}
