"""Imports the modules for `shipper` once, before its processes are forked."""

from __future__ import annotations

import httpx  # noqa: F401

import sidecar.cost.team  # noqa: F401
from sidecar.cost.prices import Prices
from sidecar.cost.records import ShippedRecord, export_request
from tests.e2e.team import shipper  # noqa: F401

Prices().tariff("gpt-5", "openai")  # loads the price list
export_request([ShippedRecord(0, {"event.name": ""})], {})
