"""Compares the ledger with a vendor's own report of usage and cost.

Anthropic and OpenAI report what they billed, by UTC day and model: as CSV files from their consoles
and as JSON from their admin APIs. docs/reference/sources.md lists where the formats are described.
A report of usage has tokens, and a report of costs has amounts. Together they tell whether a
difference comes from tokens or from prices.
"""

from __future__ import annotations

import csv
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from io import StringIO
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from sidecar import typed
from sidecar.cost.days import DAY_MS, day_name, local_day
from sidecar.cost.ledger import SUMS
from sidecar.cost.ledger_events import Buckets
from sidecar.cost.prices import Prices, cost_of
from sidecar.cost.sums import Tally
from sidecar.errors import SidecarError
from sidecar.models.names import parse, undated_name
from sidecar.text.printable import counted, usd_text

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

OTHER = "other charges"
"""The model of amounts that the vendor bills without naming a model, such as web searches."""

_SECONDS = 30.0
_LARGEST_PAGE = 64 * 1024 * 1024
_MOST_PAGES = 1_000
_CENT = Decimal("0.01")
_EXACT = Decimal("0.000001")
"""The precision of amounts in JSON, in USD."""
_LARGEST = 10**15
"""The largest plausible number of tokens or amount of a day and model."""
_LAST_SECOND = 253_402_300_799
"""The last second of the year 9999."""

_Key = tuple[bool, int, str]
"""Whether a line has an amount, its day and its model."""
_Owner = tuple[tuple[str, str], ...]
_OWNERS = ("api_key", "api_key_id", "workspace", "workspace_id", "project_id")

_Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
_DAMAGES = (msgspec.DecodeError, ValueError, ArithmeticError, csv.Error)
"""What reading a damaged report raises."""


class VendorBillError(SidecarError):
    """A vendor's report cannot be read. The message explains why."""

    kind = "endpoint"


class BillLine(NamedTuple):
    """A row of a vendor's report."""

    day: int
    """The UTC day, counted from 1970-01-01."""
    model: str
    tokens: Buckets | None = None
    """The billed tokens, or None if the row has only an amount."""
    cost: Decimal | None = None
    """The billed amount in USD, or None if the row has only tokens."""
    precision: Decimal = _EXACT
    """The unit to which `cost` is rounded."""
    owner: _Owner = ()
    """The billed key, workspace and project, with the names of their columns, if reported."""


class VendorBill(NamedTuple):
    """What a vendor billed. Days are UTC days."""

    vendor: Vendor
    lines: Sequence[BillLine]
    token_days: range
    """The days whose tokens are reported."""
    cost_days: range
    """The days whose amounts are reported."""

    @property
    def first_day(self) -> int:
        return min(days[0] for days in (self.token_days, self.cost_days) if days)

    @property
    def last_day(self) -> int:
        return max(days[-1] for days in (self.token_days, self.cost_days) if days)


class Difference(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One day and model. Amounts are in USD, and null if they are unknown."""

    day: str
    model: str
    calls: int
    """The calls in the ledger."""
    recorded_tokens: int
    billed_tokens: int | None
    recorded_usd: float
    billed_usd: float | None
    only_billed_usd: float
    """The part of the bill for tokens that the ledger does not have."""
    only_recorded_usd: float
    """The part of the recorded cost for tokens that the vendor did not bill."""
    unexplained_usd: float
    """What remains of the difference, for example because the vendor's prices differ."""
    unpriced: bool
    """Whether a recorded call has no known price, so its cost is missing from `recordedUsd`."""
    agrees: bool
    text: str


class Reconciliation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The comparison of a vendor's report with the ledger, by UTC day and model."""

    vendor: Vendor
    first_day: str
    last_day: str
    rows: list[Difference]
    recorded_usd: float
    billed_usd: float | None
    only_billed_usd: float
    only_recorded_usd: float
    unexplained_usd: float
    agrees: bool
    text: str


# Reading reports


class _CacheWrites(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: _Count = 0
    ephemeral_1h_input_tokens: _Count = 0


class _Searches(msgspec.Struct, frozen=True):
    web_search_requests: _Count = 0


class _Amount(msgspec.Struct, frozen=True):
    value: Decimal = Decimal(0)
    currency: str = "usd"


class _Result(msgspec.Struct, frozen=True):
    """A result of either vendor's usage or cost report."""

    model: str | None = None
    uncached_input_tokens: _Count | None = None
    cache_read_input_tokens: _Count = 0
    cache_creation: _CacheWrites = _CacheWrites()
    server_tool_use: _Searches = _Searches()
    input_tokens: _Count | None = None
    input_cached_tokens: _Count = 0
    input_cache_write_tokens: _Count = 0
    output_tokens: _Count = 0
    amount: _Amount | Decimal | None = None
    currency: str = "usd"
    line_item: str | None = None
    api_key_id: str | None = None
    workspace_id: str | None = None
    project_id: str | None = None


class _Bucket(msgspec.Struct, frozen=True):
    results: list[_Result]
    starting_at: datetime | None = None
    start_time: Annotated[int, msgspec.Meta(ge=0, le=_LAST_SECOND)] | None = None

    @property
    def day(self) -> int:
        if self.starting_at is not None:
            return local_day(self.starting_at, UTC)
        return (self.start_time or 0) * 1_000 // DAY_MS


class _Page(msgspec.Struct, frozen=True):
    data: list[_Bucket]
    has_more: bool = False
    next_page: str | None = None


def read_bill(reports: Iterable[tuple[str, str]]) -> VendorBill:
    """Read reports of one vendor, for example one of its tokens and one of its costs.

    What several reports have in common counts once.

    Args:
        reports: The name and the text of each report, which may be CSV or JSON.

    Raises:
        VendorBillError: A report has an unknown format, or they are of different vendors or
            contradict each other.
    """
    vendors, lines = set[Vendor](), _DistinctLines()
    token_days, cost_days = set[int](), set[int]()
    for name, text in reports:
        try:
            vendor, covered, found = _read_json(text) if _is_json(text) else _read_csv(text)
        except _DAMAGES as error:
            raise VendorBillError(f"{name} is damaged: {error}") from error
        if vendor is None:
            raise VendorBillError(
                f"{name} is not a report of usage or costs by {' or '.join(APIS)}; export one "
                "from the vendor's console, or save the answer of its admin API"
            )
        vendors.add(vendor)
        has_costs = any(line.cost is not None for line in found)
        (cost_days if has_costs else token_days).update(covered)
        lines.add(name, found)
    if len(vendors) != 1 or not (token_days or cost_days):
        problem = "are of different vendors" if len(vendors) > 1 else "have no days"
        raise VendorBillError(f"the reports {problem}")
    return VendorBill(vendors.pop(), lines.lines, _span(token_days), _span(cost_days))


class _DistinctLines:
    """The lines of several reports, each of them once."""

    def __init__(self) -> None:
        self.lines = list[BillLine]()
        self._groups = dict[tuple[_Key, _Owner], list[BillLine]]()
        self._reports = defaultdict[_Key, dict[str, set[str]]](dict)

    def add(self, name: str, lines: Sequence[BillLine]) -> None:
        """Add the lines of a report that no other report has.

        Raises:
            VendorBillError: Another report has other numbers for a day, model and owner, or tells
                owners apart by something else.
        """
        groups = defaultdict[tuple[_Key, _Owner], list[BillLine]](list)
        for line in lines:
            groups[(line.cost is not None, line.day, line.model), line.owner].append(line)
        columns = {column for line in lines for column, _ in line.owner}
        for (key, owner), group in groups.items():
            known = self._groups.setdefault((key, owner), group)
            for other, other_columns in self._reports[key].items():
                if Counter(map(str, known)) != Counter(map(str, group)) or columns != other_columns:
                    raise VendorBillError(
                        f"{other} and {name} both report {key[2]} on {day_name(key[1])}, and "
                        "their numbers differ or only one of them lists keys; leave one of them "
                        "out, or export these days again as one report"
                    )
            if known is group:
                self.lines += group
        for key, _ in groups:
            self._reports[key][name] = columns


def _span(days: set[int]) -> range:
    return range(min(days), max(days) + 1) if days else range(0)


_Report = tuple[Vendor | None, set[int], list[BillLine]]


def _is_json(text: str) -> bool:
    return text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[")


def _read_json(text: str) -> _Report:
    is_list = text.lstrip("\ufeff \t\r\n").startswith("[")
    pages = typed.decode(text, list[_Page]) if is_list else [typed.decode(text, _Page)]
    if pages and pages[-1].has_more:
        raise ValueError("it continues on another page; save all pages as a list in one file")
    return _read_pages(pages)


def _read_pages(pages: Iterable[_Page]) -> _Report:
    buckets = _without_repeated(bucket for page in pages for bucket in page.data)
    is_anthropic = any(bucket.starting_at is not None for bucket in buckets)
    is_openai = any(bucket.start_time is not None for bucket in buckets)
    if is_anthropic == is_openai:
        return None, set(), []
    lines = [_result_line(bucket.day, result) for bucket in buckets for result in bucket.results]
    return "anthropic" if is_anthropic else "openai", {bucket.day for bucket in buckets}, lines


def _without_repeated(buckets: Iterable[_Bucket]) -> list[_Bucket]:
    """Return buckets without those of a page that was saved twice."""
    return list({str(bucket): bucket for bucket in buckets}.values())


def _result_line(day: int, result: _Result) -> BillLine:
    named = {name: getattr(result, name, None) for name in _OWNERS}
    return _unowned_line(day, result)._replace(owner=_owner(named))


def _owner(values: Mapping[str, str | None]) -> _Owner:
    return tuple((name, value) for name in _OWNERS if (value := values.get(name)))


def _unowned_line(day: int, result: _Result) -> BillLine:
    amount = result.amount
    if isinstance(amount, _Amount):
        model, _, _ = (result.line_item or "").partition(",")
        return BillLine(day, _model_key(model), cost=_in_usd(amount.value, amount.currency))
    if amount is not None:  # Anthropic's amounts are in cents
        cents = _in_usd(amount, result.currency)
        return BillLine(day, _model_key(result.model or ""), cost=cents / 100)
    if result.uncached_input_tokens is not None:
        tokens = Buckets(
            input=result.uncached_input_tokens,
            cache_read=result.cache_read_input_tokens,
            cache_write_5m=result.cache_creation.ephemeral_5m_input_tokens,
            cache_write_1h=result.cache_creation.ephemeral_1h_input_tokens,
            output=result.output_tokens,
            web_searches=result.server_tool_use.web_search_requests,
        )
    elif result.input_tokens is not None:
        cached, written = result.input_cached_tokens, result.input_cache_write_tokens
        tokens = Buckets(
            input=max(0, result.input_tokens - cached - written),
            cache_read=cached,
            cache_write_5m=written,
            output=result.output_tokens,
        )
    else:
        raise ValueError("a result has neither tokens nor an amount")
    if result.model is None:
        raise ValueError("its usage is not grouped by model")
    return BillLine(day, _model_key(result.model), tokens)


def _in_usd(amount: Decimal, currency: str) -> Decimal:
    if currency.lower() != "usd":
        raise ValueError(f"its amounts are in {currency}, not in USD")
    return _plausible(amount)


def _plausible(number: Decimal) -> Decimal:
    if not number.is_finite():
        raise ValueError(f"'{number}' is not a number")
    if abs(number) > _LARGEST:
        raise ValueError(f"{number:.6g} is implausible")
    return number


def _number(text: str) -> Decimal:
    try:
        return _plausible(Decimal(text))
    except InvalidOperation:
        raise ValueError(f"'{text[:40]}' is not a number") from None


def _read_csv(text: str) -> _Report:
    rows = csv.DictReader(StringIO(text.lstrip("\ufeff")))
    columns = set(rows.fieldnames or ())
    for vendor, needed, line_of in _CSV_FORMATS:
        if needed <= columns:
            distinct = {str(row): row for row in rows}.values()
            cells = [{name: value or "" for name, value in row.items()} for row in distinct]
            lines = [line_of(row)._replace(owner=_owner(row)) for row in cells]
            return vendor, {line.day for line in lines}, lines
    return None, set(), []


def _anthropic_tokens(row: Mapping[str, str]) -> BillLine:
    tokens = Buckets(
        input=_whole(row["usage_input_tokens_no_cache"]),
        cache_read=_whole(row.get("usage_input_tokens_cache_read")),
        cache_write_5m=_whole(row.get("usage_input_tokens_cache_write_5m")),
        cache_write_1h=_whole(row.get("usage_input_tokens_cache_write_1h")),
        output=_whole(row["usage_output_tokens"]),
        web_searches=_whole(row.get("web_search_count")),
    )
    return BillLine(_day_of(row["usage_date_utc"]), _model_key(row["model_version"]), tokens)


def _anthropic_costs(row: Mapping[str, str]) -> BillLine:
    day, model = _day_of(row["usage_date_utc"]), _model_key(row["model"])
    return BillLine(day, model, cost=_number(row["cost_usd"]), precision=_CENT)


def _openai_tokens(row: Mapping[str, str]) -> BillLine:
    cached = _whole(row.get("input_cached_tokens"))
    written = _whole(row.get("input_cache_write_tokens"))
    tokens = Buckets(
        input=max(0, _whole(row["input_tokens"]) - cached - written),
        cache_read=cached,
        cache_write_5m=written,
        output=_whole(row["output_tokens"]),
    )
    return BillLine(_day_of(row["start_time_iso"]), _model_key(row["model"]), tokens)


def _openai_costs(row: Mapping[str, str]) -> BillLine:
    model, _, _ = row["line_item"].partition(",")
    amount = _in_usd(_number(row["amount_value"]), row.get("amount_currency") or "usd")
    return BillLine(_day_of(row["start_time_iso"]), _model_key(model), cost=amount)


_CSV_FORMATS: tuple[tuple[Vendor, set[str], Callable[[Mapping[str, str]], BillLine]], ...] = (
    (
        "anthropic",
        {"usage_date_utc", "model_version", "usage_input_tokens_no_cache", "usage_output_tokens"},
        _anthropic_tokens,
    ),
    ("anthropic", {"usage_date_utc", "model", "cost_usd"}, _anthropic_costs),
    ("openai", {"start_time_iso", "model", "input_tokens", "output_tokens"}, _openai_tokens),
    ("openai", {"start_time_iso", "line_item", "amount_value"}, _openai_costs),
)
"""The vendor, the columns that identify a CSV file, and the function that reads a row."""


def _whole(text: str | None) -> int:
    number = _number(text) if text else Decimal(0)
    if number < 0:
        raise ValueError(f"{number} is implausible as a number of tokens")
    return int(number)


def _day_of(text: str) -> int:
    return local_day(datetime.fromisoformat(text), UTC)


def _model_key(name: str) -> str:
    """Return the name under which both sides list a model: `claude-opus-4-6` for `Claude Opus 4.6`.

    Dates are left out, because some reports name a model without its date.
    """
    bare = undated_name(parse(re.sub(r"\s+", "-", name.strip())).bare)
    return (bare.replace(".", "-") if bare.startswith("claude") else bare) or OTHER


# Requesting reports


def request_bill(vendor: Vendor, key: str, first_day: int, last_day: int, base: str) -> VendorBill:
    """Request a vendor's reports of usage and costs for these UTC days.

    Args:
        vendor: The vendor.
        key: The organization's admin key.
        first_day: The first UTC day, counted from 1970-01-01.
        last_day: The last UTC day, inclusive.
        base: The server, such as `https://api.anthropic.com`.

    Raises:
        VendorBillError: The server refused the key, cannot be reached, or answered otherwise than
            documented.
    """
    import httpx

    from sidecar.endpoints.http import describe_failure, make_client, without_secrets

    api, lines = APIS[vendor], list[BillLine]()
    headers = {**api.headers, api.key_header: api.key_prefix + key, "accept-encoding": "identity"}
    with make_client(httpx.Client, base_url=base, headers=headers, timeout=_SECONDS) as client:
        try:
            for path, params in api.requests:
                span = _days_params(api, first_day, last_day)
                lines += _read_pages(_request_pages(client, path, {**params, **span}))[2]
        except httpx.HTTPStatusError as error:
            raise _refused(error.response.status_code, api, base) from error
        except httpx.HTTPError as error:
            raise VendorBillError(describe_failure(error, without_secrets(base))) from error
        except _DAMAGES as error:
            where = without_secrets(base)
            raise VendorBillError(f"{where} sent a report that cannot be read: {error}") from error
    days = range(first_day, last_day + 1)
    return VendorBill(vendor, lines, days, days)


def _days_params(api: VendorApi, first_day: int, last_day: int) -> dict[str, str]:
    if api.uses_unix_time:
        start, end = (str(day * DAY_MS // 1_000) for day in (first_day, last_day + 1))
        return {"start_time": start, "end_time": end, "bucket_width": "1d", "limit": "31"}
    start, end = (f"{day_name(day)}T00:00:00Z" for day in (first_day, last_day + 1))
    return {"starting_at": start, "ending_at": end, "bucket_width": "1d", "limit": "31"}


def _request_pages(client: Any, path: str, params: dict[str, str]) -> Iterator[_Page]:
    for _ in range(_MOST_PAGES):
        data = bytearray()
        with client.stream("GET", path, params=params) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_raw():
                data += chunk
                if len(data) > _LARGEST_PAGE:
                    raise ValueError("it is larger than 64 MB")
        page = typed.decode(data, _Page)
        yield page
        if not page.has_more or not page.next_page:
            return
        params = {**params, "page": page.next_page}
    raise ValueError(f"it has more than {_MOST_PAGES:,} pages")


def _refused(status: int, api: VendorApi, base: str) -> VendorBillError:
    from sidecar.endpoints.http import without_secrets

    where = without_secrets(base)
    if status in (401, 403):
        return VendorBillError(
            f"{where} refused the key in {api.variable}; reports need an organization's admin key"
        )
    return VendorBillError(f"{where} returned HTTP {status}")


# Comparing


Recorded = Mapping[tuple[int, str], Tally]
"""What the ledger has, by UTC day and model. Tokens are in the categories of the vendors."""


def read_recorded(connection: sqlite3.Connection, bill: VendorBill) -> Recorded:
    """Return what the ledger has of a bill's vendor and days."""
    sums = ", ".join(f"sum(part.{name})" for name in SUMS)
    rows = connection.execute(
        f"SELECT part.at / {DAY_MS} AS utc_day, kind.model, {sums} FROM event_sums AS part "  # noqa: S608
        "JOIN kind ON kind.id = part.kind JOIN provider ON provider.id = kind.provider "
        "WHERE part.at >= ? AND part.at < ? AND provider.name = ? GROUP BY utc_day, kind.model",
        (bill.first_day * DAY_MS, (bill.last_day + 1) * DAY_MS, bill.vendor),
    )
    found: dict[tuple[int, str], Tally] = {}
    for day, model, *numbers in rows:
        key, tally = (day, _model_key(model)), Tally.of_row((*numbers, 0))
        tally = msgspec.structs.replace(tally, buckets=_billed_form(tally.buckets))
        found[key] = found.get(key, Tally()) + tally
    return found


def _billed_form(tokens: Buckets) -> Buckets:
    """Return tokens in the categories of the vendors' reports."""
    return Buckets(
        input=tokens.input,
        cache_read=tokens.cache_read,
        cache_write_5m=tokens.cache_write_5m + tokens.cache_write,
        cache_write_1h=tokens.cache_write_1h,
        output=tokens.completion,
        web_searches=tokens.web_searches,
    )


def reconcile(bill: VendorBill, recorded: Recorded, prices: Prices) -> Reconciliation:
    """Compare a bill with the ledger.

    Tokens that only one side has explain a part of a difference: their list price on that day. The
    rest is unexplained. If the bill has no tokens, a model that both sides have is compared by its
    amount alone, and so is a day whose tokens are not reported.

    Args:
        bill: The vendor's report.
        recorded: The ledger's calls, from `read_recorded`.
        prices: The prices of tokens that only one side has.
    """
    billed: dict[tuple[int, str], list[BillLine]] = defaultdict(list)
    for line in bill.lines:
        billed[line.day, line.model].append(line)
    rows = []
    for key in sorted({*billed, *recorded}):
        has_tokens, has_costs = key[0] in bill.token_days, key[0] in bill.cost_days
        if not (has_tokens or has_costs):
            continue
        lines = billed.get(key, [])
        mine = recorded.get(key, Tally())
        tokens = sum((line.tokens for line in lines if line.tokens), Buckets())
        is_by_tokens = has_tokens and key[1] != OTHER
        cost = sum((line.cost for line in lines if line.cost is not None), Decimal(0))
        row = _compare(
            key,
            mine,
            tokens if is_by_tokens else None,
            cost if has_costs else None,
            sum((line.precision / 2 for line in lines if line.cost is not None), _EXACT),
            partial(_price_of, prices, bill.vendor, key),
        )
        if mine.calls or tokens.prompt or tokens.completion or cost:
            rows.append(row)
    return _summarize(bill, rows, has_costs=bool(bill.cost_days))


def _price_of(prices: Prices, vendor: Vendor, key: tuple[int, str], tokens: Buckets) -> Decimal:
    """Return the list price of a day's tokens, without the higher prices of long prompts."""
    day, model = key
    tariff = prices.tariff(model, vendor)
    if tariff is None:
        return Decimal(0)
    at = datetime(1970, 1, 1, 12, tzinfo=UTC) + timedelta(days=day)
    return cost_of(tariff.prices(at, "", 0), tokens).usd or Decimal(0)


def _compare(
    key: tuple[int, str],
    mine: Tally,
    tokens: Buckets | None,
    cost: Decimal | None,
    tolerance: Decimal,
    price_of: Callable[[Buckets], Decimal],
) -> Difference:
    day, model = key
    only_billed = only_recorded = Decimal(0)
    if tokens is not None:
        more, less = _parts_above(tokens, mine.buckets), _parts_above(mine.buckets, tokens)
        only_billed, only_recorded = price_of(more), price_of(less)
    elif cost is not None and not mine.calls:
        only_billed = cost
    elif cost is not None and not cost:
        only_recorded = mine.cost
    difference = Decimal(0) if cost is None else cost - mine.cost
    unexplained = Decimal(0) if cost is None else difference - only_billed + only_recorded
    if abs(unexplained) <= tolerance:
        unexplained = Decimal(0)
    has_same_tokens = tokens is None or tokens == mine.buckets
    row = Difference(
        day=day_name(day),
        model=model,
        calls=mine.calls,
        recorded_tokens=mine.buckets.prompt + mine.buckets.completion,
        billed_tokens=None if tokens is None else tokens.prompt + tokens.completion,
        recorded_usd=float(mine.cost),
        billed_usd=None if cost is None else float(cost),
        only_billed_usd=float(only_billed),
        only_recorded_usd=float(only_recorded),
        unexplained_usd=float(unexplained),
        unpriced=mine.unpriced,
        agrees=has_same_tokens and not (only_billed or only_recorded or unexplained),
        text="",
    )
    return msgspec.structs.replace(row, text=_row_text(row))


def _parts_above(first: Buckets, second: Buckets) -> Buckets:
    """Return, for each category, by how many tokens `first` exceeds `second`."""
    return Buckets.of(max(0, number) for number in msgspec.structs.astuple(first - second))


def _row_text(row: Difference) -> str:
    billed = ""
    if row.billed_usd is not None:
        billed = f", {usd_text(row.billed_usd)} billed"
    parts = []
    if row.billed_tokens is not None and row.billed_tokens != row.recorded_tokens:
        parts.append(f"{row.recorded_tokens:,} tokens recorded, {row.billed_tokens:,} billed")
    if row.only_billed_usd:
        parts.append(f"{usd_text(row.only_billed_usd)} not recorded here")
    if row.only_recorded_usd:
        parts.append(f"{usd_text(row.only_recorded_usd)} not billed")
    if row.unexplained_usd:
        sign = "more" if row.unexplained_usd > 0 else "less"
        parts.append(f"{usd_text(abs(row.unexplained_usd))} {sign} than expected, unexplained")
    if row.unpriced:
        parts.append("some recorded calls have no price")
    found = "; ".join(parts) or "agrees"
    return f"{row.day} {row.model}: {usd_text(row.recorded_usd)} recorded{billed}: {found}"


def _summarize(bill: VendorBill, rows: list[Difference], *, has_costs: bool) -> Reconciliation:
    def total(amounts: Iterable[float | None]) -> Decimal:
        return sum((Decimal(str(amount)) for amount in amounts if amount), Decimal(0))

    first, last = day_name(bill.first_day), day_name(bill.last_day)
    recorded = total(row.recorded_usd for row in rows)
    billed = total(row.billed_usd for row in rows)
    only_billed = total(row.only_billed_usd for row in rows)
    only_recorded = total(row.only_recorded_usd for row in rows)
    unexplained = total(row.unexplained_usd for row in rows)
    same = sum(row.agrees for row in rows)
    lines = [row.text for row in rows if not row.agrees]
    amounts = f"{usd_text(recorded)} recorded"
    if has_costs:
        amounts += f", {usd_text(billed)} billed"
    lines.append(
        f"{bill.vendor}, {first} to {last} (UTC): {amounts}; {same:,} of "
        f"{counted(len(rows), 'row')} by day and model agree."
    )
    if same < len(rows):
        lines.append(
            f"Not recorded here: {usd_text(only_billed)}. Not billed: {usd_text(only_recorded)}. "
            f"Unexplained: {usd_text(unexplained)}."
        )
    if only_billed:
        lines.append("Calls of other machines and programs are billed, but not recorded here.")
    if only_recorded:
        lines.append(
            "Calls under a subscription or of another organization are recorded, but not on this "
            "bill."
        )
    if unexplained:
        lines.append(
            "Prices that differ from the list cause an unexplained rest; set them with [[price]] "
            "in your own configuration."
        )
    return Reconciliation(
        vendor=bill.vendor,
        first_day=first,
        last_day=last,
        rows=rows,
        recorded_usd=float(recorded),
        billed_usd=float(billed) if has_costs else None,
        only_billed_usd=float(only_billed),
        only_recorded_usd=float(only_recorded),
        unexplained_usd=float(unexplained),
        agrees=same == len(rows),
        text="\n".join(lines),
    )
