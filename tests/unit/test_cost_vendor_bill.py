"""Tests `token-sidecar cost reconcile`: three worked days, formats and admin APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from sidecar.cli.cost import cost
from sidecar.config.paths import state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.ledger_events import Buckets
from sidecar.cost.vendor_bill import APIS, Vendor, VendorBillError, read_bill, request_bill
from tests.unit.cost_calls import call_of

CASES = Path(__file__).resolve().parents[1] / "fixtures" / "vendor_bills"
FIRST_DAY = date(2026, 11, 3).toordinal() - date(1970, 1, 1).toordinal()


TOKENS = "usage_date_utc,model_version,usage_input_tokens_no_cache,usage_output_tokens\n{}\n"
COSTS = "usage_date_utc,model,cost_usd\n{}\n"
BUCKET = '{{"data": [{{"start_time": {}, "results": [{{{}}}]}}]}}'


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cost, ["reconcile", *arguments])


@pytest.fixture(autouse=True)
def ledger() -> None:
    """Record three days of calls to three models. Sonnet 4.5 costs $3 in and $15 out per million
    tokens, $0.30 per million cache reads and $3.75 per million five-minute cache writes.

    3 November: 100,000 in, 10,000 out ($0.45), and 100,000 cache reads, 100,000 writes ($0.405).
    4 November: 200,000 in, 20,000 out ($0.90), one minute before midnight UTC.
    5 November: Haiku 4.5 at $1 and $5: 500,000 in, 50,000 out ($0.75); gpt-5 at $1.25 and $10:
    400,000 in, 300,000 cached at $0.125, 30,000 out of which 20,000 reasoning ($0.8375).
    """
    book = CostBook(state_dir())
    try:
        for hour, day, model, provider, buckets in (
            (9, 3, "claude-sonnet-4-5-20250929", "anthropic", Buckets(100_000, output=10_000)),
            (
                10,
                3,
                "claude-sonnet-4-5",
                "anthropic",
                Buckets(cache_read=100_000, cache_write_5m=60_000, cache_write=40_000),
            ),
            (23, 4, "claude-sonnet-4-5", "anthropic", Buckets(200_000, output=20_000)),
            (0, 5, "claude-haiku-4-5", "anthropic", Buckets(500_000, output=50_000)),
            (
                12,
                5,
                "gpt-5-2025-08-07",
                "openai",
                Buckets(400_000, cache_read=300_000, output=10_000, reasoning=20_000),
            ),
        ):
            book.prices.load()
            at = datetime(2026, 11, day, hour, 59, tzinfo=UTC)
            book.ledger.record(
                call_of("claude-code", at=at, model=model, provider=provider, buckets=buckets)
            )
    finally:
        book.close()


def rows(result: Result) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads(result.stdout)
    return {(row["day"], row["model"]): row for row in found["rows"]}


def test_equal_tokens_and_amounts_agree() -> None:
    result = run("--from", str(CASES / "tokens.csv"), "--from", str(CASES / "costs.csv"))
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "anthropic, 2026-11-03 to 2026-11-05 (UTC): $2.50 recorded, $2.51 billed; 3 of 3 rows by "
        "day and model agree.\n"
    )


def test_every_planted_difference_is_found() -> None:
    """Another machine's tokens, a call under a subscription, and a discount."""
    tokens, costs = CASES / "tokens-planted.csv", CASES / "costs-planted.csv"
    result = run("--from", str(tokens), "--from", str(costs), "--json")
    assert result.exit_code == 1, result.output
    found = rows(result)
    missing = found["2026-11-03", "claude-sonnet-4-5"]
    # 50,000 uncached tokens and 4,000 output tokens of another machine: $0.15 + $0.06.
    assert missing["onlyBilledUsd"] == pytest.approx(0.21)
    assert (missing["onlyRecordedUsd"], missing["unexplainedUsd"]) == (0, 0)
    subscription = found["2026-11-04", "claude-sonnet-4-5"]
    assert subscription["onlyRecordedUsd"] == pytest.approx(0.90)
    assert (subscription["onlyBilledUsd"], subscription["unexplainedUsd"]) == (0, 0)
    discount = found["2026-11-05", "claude-haiku-4-5"]
    assert discount["unexplainedUsd"] == pytest.approx(-0.15), "a discount of 20 %"
    assert discount["billedTokens"] == discount["recordedTokens"] == 550_000
    unknown = found["2026-11-05", "claude-opus-4-6"]
    assert (unknown["calls"], unknown["recordedUsd"]) == (0, 0)
    assert unknown["onlyBilledUsd"] == pytest.approx(1.00)
    assert not any(row["agrees"] for row in found.values())

    text = run("--from", str(tokens), "--from", str(costs)).stdout.splitlines()
    assert text[2] == (
        "2026-11-05 claude-haiku-4-5: $0.75 recorded, $0.60 billed: $0.15 less than expected, "
        "unexplained"
    )
    assert text[5] == "Not recorded here: $1.21. Not billed: $0.90. Unexplained: -$0.15."


def test_a_report_of_costs_alone_is_compared_by_amount() -> None:
    found = rows(run("--from", str(CASES / "costs-planted.csv"), "--json"))
    assert found["2026-11-03", "claude-sonnet-4-5"]["unexplainedUsd"] == pytest.approx(0.215)
    assert found["2026-11-04", "claude-sonnet-4-5"]["onlyRecordedUsd"] == pytest.approx(0.90)
    assert found["2026-11-05", "claude-opus-4-6"]["onlyBilledUsd"] == pytest.approx(1.00)


def test_a_report_of_tokens_alone_is_compared_by_tokens() -> None:
    result = run("--from", str(CASES / "tokens-planted.csv"), "--json")
    found = rows(result)
    assert found["2026-11-05", "claude-haiku-4-5"]["agrees"]
    assert found["2026-11-03", "claude-sonnet-4-5"]["onlyBilledUsd"] == pytest.approx(0.21)
    assert json.loads(result.stdout)["billedUsd"] is None


def test_days_that_only_one_report_has_are_compared_by_what_it_has(tmp_path: Path) -> None:
    """Neither are the tokens of the other days missing, nor is their amount unexplained."""
    for name in ("tokens", "costs"):
        lines = (CASES / f"{name}.csv").read_text("utf-8").splitlines()
        first = [line for line in lines if not line.startswith(("2026-11-04", "2026-11-05"))]
        (tmp_path / f"{name}.csv").write_text("\n".join(first), "utf-8")
    for short, long in (("tokens", "costs"), ("costs", "tokens")):
        reports = (tmp_path / f"{short}.csv", CASES / f"{long}.csv")
        result = run(*(part for one in reports for part in ("--from", str(one))))
        assert result.exit_code == 0, result.stdout
        assert "3 of 3 rows" in result.stdout


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_openai_reports(kind: str) -> None:
    """Cached and reasoning tokens are parts of the input and the output."""
    reports = [str(CASES / f"openai-{name}.{kind}") for name in ("usage", "costs")]
    result = run("--from", reports[0], "--from", reports[1], "--json")
    found = rows(result)
    assert found["2026-11-05", "gpt-5"]["agrees"], result.output
    assert found["2026-11-05", "gpt-5"]["recordedUsd"] == pytest.approx(0.8375)
    assert found["2026-11-05", "other charges"]["onlyBilledUsd"] == pytest.approx(0.02)
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("day,model\n2026-11-03,x\n", "is not a report of usage or costs by anthropic or openai"),
        ("", "is not a report"),
        ("{", "is damaged"),
        ('{"data": [{"starting_at": "2026-11-03T00:00:00Z", "results": [{}]}]}', "neither tokens"),
        (
            '{"data": [{"starting_at": "2026-11-03T00:00:00Z", '
            '"results": [{"uncached_input_tokens": 1, "output_tokens": 1}]}]}',
            "not grouped by model",
        ),
        (COSTS.format("2026-11-03,Claude,x"), "'x' is not a number"),
        (COSTS.format("2026-11-03,Claude"), "'' is not a number"),
        (COSTS.format("2026-11-03,Claude,NaN"), "'NaN' is not a number"),
        (COSTS.format("2026-11-03,Claude,1e400"), "is implausible"),
        (COSTS.format("0001-01-01T00:00:00+14:00,Claude,1"), "is damaged"),
        (COSTS.format(f"2026-11-03,{'x' * 200_000},1"), "is damaged"),
        (TOKENS.format("2026-11-03,Claude,Infinity,1"), "'Infinity' is not a number"),
        (TOKENS.format("2026-11-03,Claude,-5,1"), "is implausible"),
        (BUCKET.format(10**18, '"model": "gpt-5", "input_tokens": 1'), "is damaged"),
        (BUCKET.format(0, '"model": "gpt-5", "input_tokens": -1'), "is damaged"),
        (BUCKET.format(0, '"amount": {"value": "Infinity"}'), "'Infinity' is not a number"),
        (BUCKET.format(0, "").replace("]}]", ']}], "has_more": true'), "save all pages"),
        (
            "start_time_iso,line_item,amount_value,amount_currency\n2026-11-03,gpt-5,1,eur\n",
            "in eur, not in USD",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "report"
    path.write_text(text, "utf-8")
    result = run("--from", str(path))
    assert result.exit_code == 2
    assert problem in result.stderr


def write_report(
    folder: Path, name: str, source: str, *days: str, old: str = "", new: str = ""
) -> str:
    """Write those lines of a report that start with one of the days. Return the path."""
    head, *lines = (CASES / source).read_text("utf-8").splitlines()
    kept = [line.replace(old, new) if old else line for line in lines if line.startswith(days)]
    (folder / name).write_text("\n".join([head, *kept, ""]), "utf-8")
    return str(folder / name)


def test_overlapping_reports_count_once(tmp_path: Path) -> None:
    """The same days, first as one report and again as two that share a day."""
    first = write_report(tmp_path, "first.csv", "costs.csv", "2026-11-03", "2026-11-04")
    second = write_report(tmp_path, "second.csv", "costs.csv", "2026-11-04", "2026-11-05")
    tokens = str(CASES / "tokens.csv")
    expected = run("--from", tokens, "--from", str(CASES / "costs.csv"), "--json")
    again = run(*(part for file in (tokens, first, second, first) for part in ("--from", file)), "--json")  # fmt: skip
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == json.loads(expected.stdout)


def test_rows_and_buckets_that_a_report_repeats_count_once(tmp_path: Path) -> None:
    """A page of the admin API that was saved twice, and exports that were joined."""
    lines = (CASES / "tokens.csv").read_text("utf-8").splitlines()
    (tmp_path / "joined.csv").write_text("\n".join([*lines, *lines[1:]]), "utf-8")
    page = json.loads((CASES / "anthropic-usage.json").read_text("utf-8"))
    (tmp_path / "pages.json").write_text(json.dumps([page, page]), "utf-8")
    for repeated, once in (("joined.csv", "tokens.csv"), ("pages.json", "anthropic-usage.json")):
        (mine, theirs) = (
            read_bill([(path.name, path.read_text("utf-8"))])
            for path in (tmp_path / repeated, CASES / once)
        )
        assert mine.lines == theirs.lines


def test_reports_of_different_keys_are_added(tmp_path: Path) -> None:
    reports = [
        write_report(tmp_path, f"{name}.csv", "tokens.csv", "2026-11-03", old="laptop", new=name)
        for name in ("desk", "work")
    ]
    one, both = (
        read_bill((path, Path(path).read_text("utf-8")) for path in paths)
        for paths in (reports[:1], reports)
    )

    inputs = [line.tokens.prompt for line in both.lines if line.tokens]
    assert inputs == [200_000, 100_000, 200_000], "the row of the key `ci` is in both"
    assert len(one.lines) == 2


@pytest.mark.parametrize("other", ["changed.csv", "anthropic-usage.json"])
def test_reports_that_contradict_each_other_are_refused(tmp_path: Path, other: str) -> None:
    """An export from before the end of the day, and one that does not tell keys apart."""
    changed = (CASES / "tokens.csv").read_text("utf-8").replace(",60000,", ",50000,")
    (tmp_path / "changed.csv").write_text(changed, "utf-8")
    (tmp_path / "anthropic-usage.json").write_bytes((CASES / "anthropic-usage.json").read_bytes())
    result = run("--from", str(CASES / "tokens.csv"), "--from", str(tmp_path / other))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "tokens.csv and " in result.stderr
    assert f"{other} both report claude-sonnet-4-5 on 2026-11-03" in result.stderr
    assert "leave one of them out" in result.stderr


def test_reports_of_two_vendors_are_refused() -> None:
    result = run("--from", str(CASES / "tokens.csv"), "--from", str(CASES / "openai-usage.csv"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "of different vendors" in result.stderr


def test_the_help_names_every_vendor_and_its_variable() -> None:
    text = " ".join(run("--help").stdout.split())
    assert f"[{'|'.join(APIS)}]" in text
    assert f"from {' or '.join(api.variable for api in APIS.values())}." in text


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
def test_the_key_of_the_api_must_be_set(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(APIS[vendor].variable, raising=False)
    result = run("--api", vendor)
    assert result.exit_code == 2
    assert f"the environment variable {APIS[vendor].variable} is not set" in result.stderr
    assert (
        run().exit_code == run("--api", vendor, "--from", str(CASES / "costs.csv")).exit_code == 2
    )


Requests = list[tuple[str, dict[str, list[str]], dict[str, str]]]


@contextmanager
def vendor_server(answers: dict[str, list[bytes]]) -> Iterator[tuple[str, Requests]]:
    """Serve answers by path, in order, as a vendor does. Other paths are forbidden."""
    requests: Requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            requests.append((parts.path, parse_qs(parts.query), dict(self.headers.items())))
            pages = answers.get(parts.path, [])
            self.send_response(200 if pages else 403)
            self.end_headers()
            self.wfile.write(pages.pop(0) if pages else b"{}")

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_anthropic_api_is_read_page_by_page() -> None:
    usage = json.loads((CASES / "anthropic-usage.json").read_text())
    first, second = ({**usage, "data": [bucket]} for bucket in usage["data"])
    first |= {"has_more": True, "next_page": "page_2"}
    costs = (CASES / "anthropic-costs.json").read_bytes()
    pages = {
        "/v1/organizations/usage_report/messages": [
            *(json.dumps(p).encode() for p in (first, second))
        ],
        "/v1/organizations/cost_report": [costs],
    }
    with vendor_server(pages) as (base, requests):
        bill = request_bill("anthropic", "admin-key", FIRST_DAY, FIRST_DAY + 1, base)
    saved = read_bill(
        (name, (CASES / name).read_text())
        for name in ("anthropic-usage.json", "anthropic-costs.json")
    )
    assert bill == saved
    assert sum(line.cost or 0 for line in bill.lines) == Decimal("1.755")
    assert [query.get("page") for _, query, _ in requests] == [None, ["page_2"], None]
    assert requests[0][1]["starting_at"] == ["2026-11-03T00:00:00Z"]
    assert requests[0][1]["ending_at"] == ["2026-11-05T00:00:00Z"]
    assert all(headers["x-api-key"] == "admin-key" for _, _, headers in requests)


def test_a_refused_key_is_named_without_its_value() -> None:
    with vendor_server({}) as (base, requests), pytest.raises(VendorBillError) as refused:
        request_bill("openai", "sk-secret", FIRST_DAY, FIRST_DAY, base)
    assert "refused the key in OPENAI_ADMIN_KEY" in str(refused.value)
    assert "sk-secret" not in str(refused.value)
    assert requests[0][2]["authorization"] == "Bearer sk-secret"
    assert requests[0][1]["start_time"] == [str(FIRST_DAY * 86_400)]
    with pytest.raises(VendorBillError, match="cannot be reached"):
        request_bill("openai", "sk-secret", FIRST_DAY, FIRST_DAY, base)
