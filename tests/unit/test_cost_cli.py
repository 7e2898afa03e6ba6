"""Tests `token-sidecar cost`: output and exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.others import AIDER
from sidecar.agents.reader_registry import reader_of
from sidecar.agents.session_events import Store, StoreRead
from sidecar.cli.cost import NO_CALLS, cost
from sidecar.cli.ledger_updates import NOT_ALL_READ
from sidecar.config.paths import config_file, state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostKey, CostRecordParams
from sidecar.cost.ledger import FILE_NAME
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prompt_file_costs import read_profile
from sidecar.text.printable import local_time_text
from tests.cases import read_rows
from tests.unit.cost_calls import call_of, price_list_of

PRICES = price_list_of(**{"house-1": {"input_mtok": 7}, "house-2": {"input_mtok": 8}})
PRICES[0]["models"][0]["context_window"] = 54_321


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cost, arguments)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[CostBook]:
    """Record three calls on two days in two workspaces. One of the calls has no price."""
    book = CostBook(state_dir())
    now = datetime.now(UTC)
    usage = {"prompt_tokens": 179, "completion_tokens": 8}
    haiku = "anthropic/claude-haiku-4.5"
    for model, at, folder, estimate in (
        (haiku, now - timedelta(days=1), "one", 150),
        (haiku, now, "two", None),
        ("nobody-knows-me", now, "two", None),
    ):
        book.record(
            CostRecordParams(
                model=model,
                usage=usage,
                workspace=(tmp_path / folder).as_uri(),
                branch="topic" if folder == "one" else None,
                session="s",
                at=at,
                estimated_tokens=estimate,
            )
        )
    yield book
    book.close()


@pytest.mark.usefixtures("book")
def test_a_range_may_begin_and_end_at_the_edges_of_the_calendar() -> None:
    for since, until, calls in (
        ("0001-01-01", "9999-12-31", 3),
        ("9999-12-31", "9999-12-31", 0),
        ("0001-01-01", "0001-01-01", 0),
    ):
        result = run("--since", since, "--until", until, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["totals"]["calls"] == calls


def test_an_empty_ledger() -> None:
    result = run()
    assert (result.exit_code, result.output) == (0, f"{NO_CALLS}\n")
    totals = json.loads(run("--json").output)["totals"]
    assert totals["calls"] == 0
    assert not (state_dir() / FILE_NAME).exists(), "looking makes no file"


@pytest.mark.usefixtures("book")
def test_filters_without_matching_calls() -> None:
    result = run("--agent", "codex")
    assert result.exit_code == 0
    assert result.output.startswith("No calls match")


@pytest.mark.parametrize(
    "command",
    [(), ("--json",), ("export",), ("files",), ("profile", "--json"), ("ship", "--dry-run")],
)
def test_a_report_that_lacks_a_session_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    session = home.session(tmp_path)
    session.reply()
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    os.utime(session.path, (at.timestamp(), at.timestamp()))
    reader = type(reader_of("claude-code"))

    def fail(_self: object, _store: Store, _state: bytes = b"") -> StoreRead:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read", fail)
        assert NOT_ALL_READ.format(local_time_text(at)) in run(*command).stderr
    assert "may be missing" not in run(*command).stderr


@pytest.mark.usefixtures("book")
@pytest.mark.parametrize("command", [(), ("--json",), ("--html", "-"), ("export",)])
def test_unknown_agent_is_an_error_that_names_a_similar_one(command: tuple[str, ...]) -> None:
    result = run(*command, "--agent", "claud-code")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.endswith("unknown agent claud-code; did you mean claude-code?\n")
    assert "unknown agent nobody; known agents: aider, amp, " in run("--agent", "nobody").stderr
    for name in ("claude-code", "protocol"):
        assert run("--agent", name, "--since", "2001-01-01", "--until", "2001-01-02").stderr == ""


@pytest.mark.usefixtures("book")
def test_plain_lines_without_a_terminal() -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "anthropic/claude-haiku-4.5 main 2 calls, 358 ~est=150 / 16 tokens, $0.000438",
        "nobody-knows-me main 1 calls, 179 / 8 tokens, unpriced",
        "total 3 calls, 537 / 24 tokens, $0.000438 + 1 call unpriced",
    ]
    assert "\x1b" not in result.output


@pytest.mark.usefixtures("book")
@pytest.mark.parametrize(("arguments", "said"), read_rows("cost", "covered_calls"))
def test_report_says_which_calls_it_covers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 0
    assert result.stderr.endswith(said.format(two=tmp_path / "two"))
    assert "Calls " not in result.stdout
    assert run(*arguments, "--json").stderr == ""


@pytest.mark.parametrize("bucket", ["cache_write", "cache_write_5m", "cache_write_1h"])
def test_tables_have_cache_writes_if_there_are_any(
    monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    book = CostBook(state_dir())
    at = datetime.now(UTC)
    plain = call_of(at=at, tokens=10)
    book.ledger.record_many([plain])
    charts = CostDetailParams(by=("agent", "model"), charts=True)
    assert "cache write" not in table_on_terminal(monkeypatch, "model")
    assert "Cache write" not in book.detail(charts).overview
    event = LedgerEvent(
        at=at,
        model="claude-opus-4-5",
        provider="anthropic",
        buckets=Buckets(output=5, **{bucket: 4_321}),
    )
    book.ledger.record_many([event])
    shown = table_on_terminal(monkeypatch, "model").splitlines()
    assert "cache write" in shown[0]
    assert any(line.startswith("opus-4-5") and line.count("4.32k") == 2 for line in shown)
    table = book.detail(charts).table
    assert table is not None
    at_column = table.heads.index("Cache write")
    assert [row[at_column] for row in (*table.rows, table.total)] == ["4,321", "0", "4,321"]
    assert {len(row) for row in (table.heads, *table.rows, table.total)} == {len(table.heads)}
    book.close()


@pytest.mark.usefixtures("book")
def test_json_is_rows_and_totals() -> None:
    data = json.loads(run("--json", "--by", "model").output)
    assert set(data) == {"rows", "totals"}
    assert [row["model"] for row in data["rows"]] == [
        "anthropic/claude-haiku-4.5",
        "nobody-knows-me",
    ]
    assert data["totals"]["unpricedTokens"] == 187


@pytest.mark.usefixtures("book")
def test_options_select_calls(tmp_path: Path) -> None:
    def calls(*arguments: str) -> int:
        found = json.loads(run("--json", *arguments).output)["totals"]["calls"]
        assert isinstance(found, int)
        return found

    assert calls("--since", "today") == 2
    assert calls("--since", "yesterday") == 3
    assert calls("--until", "yesterday") == 1
    assert calls("--since", "7d") == calls("--since", "48h") == 3
    assert calls("--workspace", str(tmp_path / "two")) == 2
    assert calls("--branch", "topic") == 1
    assert calls("--branch", "") == 2
    assert calls("--agent", "protocol") == 3
    assert calls("--agent", "claude-code") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--by", "price"], "cannot group by price; choose from model"),
        (["--since", "whenever"], "is not a valid time"),
        (["--nonsense"], "No such option"),
        (["export", "--format", "xml"], "Invalid value"),
        (["export", "--since", "whenever"], "is not a valid time"),
        (["--html", "/nowhere/at/all.html"], "cannot write /nowhere"),
        (["update-prices", "--url", "http://127.0.0.1:9/prices.json"], ": Connection refused"),
        (["update-prices", "--url", "nonsense"], "cannot download the price list from"),
    ],
)
def test_invalid_options_exit_with_2(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_cost_with_a_broken_configuration_exits_with_2() -> None:
    config_file().write_text("[[price]]\nmodels = 7\n")
    result = run()
    assert result.exit_code == 2
    assert "price" in result.output


def test_damaged_ledger_exits_with_2() -> None:
    state_dir().mkdir(parents=True)
    (state_dir() / FILE_NAME).write_bytes(b"no database at all" * 100)
    result = run("--json")
    assert result.exit_code == 2
    assert "damaged" in result.output
    assert "move it away" in result.output


@pytest.mark.parametrize(
    "arguments",
    [(), ("export",), ("files",), ("ship",), ("ship", "--dry-run"), ("--html", "-"), ("--team",)],
)
def test_configuration_problem_is_reported_once(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    endpoint = "" if arguments == ("ship",) else '[ledger]\notel-endpoint = "http://127.0.0.1:9"\n'
    config_file().write_text(f"unheard-of = 1\n{endpoint}")
    assert run(*arguments).stderr.count("unheard-of") == 1


@pytest.mark.usefixtures("book")
def test_prices_of_the_user_apply_to_past_calls() -> None:
    config_file().write_text('[[price]]\nmodels = ["nobody-*"]\ninput = 10.0\noutput = 0.0\n')
    data = json.loads(run("--json", "--by", "model").output)
    priced = {row["model"]: row["costUsd"] for row in data["rows"]}
    assert priced["nobody-knows-me"] == 0.00179
    assert data["totals"]["unpricedTokens"] == 0


def table_on_terminal(monkeypatch: pytest.MonkeyPatch, key: CostKey) -> str:
    from sidecar.cli import cost as module

    monkeypatch.setenv("COLUMNS", "120")
    runner = CliRunner()
    with runner.isolation() as (out, *_):
        book = CostBook(state_dir())
        params = CostDetailParams(by=(key,))
        module._print_table(book.detail(params), params)
        book.close()
        return out.getvalue().decode()


@pytest.mark.usefixtures("book")
def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = table_on_terminal(monkeypatch, "model")
    assert "358 ~est=150" in shown
    assert "unpriced" in shown
    assert re.search(r"(?m)^total .*≥<?\$[\d.]+$", shown), "a call has no price"
    assert "█" * 24 in shown
    assert "187 tokens have no known price" in shown


@pytest.mark.usefixtures("book")
def test_export_as_csv() -> None:
    result = run("export")
    assert result.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(result.output)))
    assert [row["inputTokens"] for row in rows] == ["179"] * 3
    assert [row["costUsd"] for row in rows] == ["0.000219", "0.000219", ""]
    assert [row["costSource"] for row in rows] == ["list", "list", "unpriced"]
    assert rows[0]["at"].endswith("Z")
    assert rows[0]["estimatedTokens"] == "150"


@pytest.mark.usefixtures("book")
def test_export_as_lines_of_json() -> None:
    lines = run("export", "--format", "jsonl", "--since", "today").output.splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [row["model"] for row in rows] == ["anthropic/claude-haiku-4.5", "nobody-knows-me"]
    assert [row["costUsd"] for row in rows] == [0.000219, None]


def record_agents_calls(workspace: Path) -> None:
    """Record two calls of an agent in a workspace, one elsewhere, and one from 31 days ago."""
    book, now = CostBook(state_dir()), datetime.now(UTC)
    here, elsewhere = workspace.as_uri(), (workspace / "../other").resolve().as_uri()
    for age, folder in ((1, here), (0, here), (0, elsewhere), (31, here)):
        at = now - timedelta(days=age)
        book.ledger.record(call_of("codex", at=at, workspace=folder, session="s"))
    book.close()


def test_a_profile_of_a_workspace_is_written_to_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "site"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    record_agents_calls(workspace)
    result = run("profile")
    assert result.exit_code == 0, result.output
    path = workspace / "usage-profile.json"
    assert result.stderr.endswith(f"Wrote {path}: 2 calls in 30 days.\n")
    (usage,) = read_profile(path).agents
    assert (usage.agent, usage.sessions, usage.main.uncached) == ("codex", 1, 2)
    assert json.loads(run("profile", "--json").stdout) == json.loads(path.read_text())


def test_the_days_and_the_file_of_a_profile_can_be_chosen(tmp_path: Path) -> None:
    record_agents_calls(tmp_path)
    target = tmp_path / "p.json"
    options = ("--workspace", str(tmp_path), "--days", "60", "--output", str(target))
    assert run("profile", *options).exit_code == 0
    profile = read_profile(target)
    assert (profile.days, profile.agents[0].calls) == (60, 3)
    result = run("profile", "--output", "/nowhere/at/all.json")
    assert (result.exit_code, "cannot write /nowhere/at/all.json" in result.output) == (2, True)


@pytest.fixture
def list_server() -> Iterator[str]:
    """Serve a price list at /prices.json, and some text at all other paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(PRICES).encode() if self.path == "/prices.json" else b"<html>"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_prices_are_updated_on_request(list_server: str, book: CostBook) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    book.record(CostRecordParams(model="house-1", provider="house", usage=usage))
    assert json.loads(run("--json").output)["totals"]["costUsd"] == 0.000438
    result = run("update-prices", "--url", f"{list_server}/prices.json", "--json")
    stored = state_dir() / "prices.json"
    assert json.loads(result.output) == {"models": 2, "file": str(stored)}
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert json.loads(run("--json").output)["totals"]["costUsd"] == 7.0


def test_newer_price_list_updates_windows(list_server: str) -> None:
    assert run("update-prices", "--url", f"{list_server}/prices.json").exit_code == 0
    # A process loads prices only once, so only a new process sees the downloaded list.
    command = [sys.executable, "-P", "-m", "sidecar", "count", "-", "--model", "house-1", "--json"]
    result = subprocess.run(command, input="hello", capture_output=True, text=True, check=True)
    [file] = json.loads(result.stdout)["files"]
    assert file["limit"] == 54_321


@pytest.mark.parametrize(
    ("config", "ledger", "reason"),
    [
        ("[[price]]\nmodels = 7\n", None, "price"),
        ("[cost\n", None, "config"),
        ("", b"no database at all" * 100, "damaged"),
        ("[[price]]\nmodels = 7\n", b"no database at all" * 100, "price"),
    ],
)
def test_prices_are_updated_although_recorded_calls_cannot_be_priced(
    list_server: str, config: str, ledger: bytes | None, reason: str
) -> None:
    config_file().write_text(config)
    state_dir().mkdir(parents=True)
    if ledger is not None:
        (state_dir() / FILE_NAME).write_bytes(ledger)
    result = run("update-prices", "--url", f"{list_server}/prices.json", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"models": 2, "file": str(state_dir() / "prices.json")}
    assert reason in result.stderr
    assert "keep their costs until `token-sidecar cost` prices them again" in result.stderr


def test_calls_that_could_not_be_priced_are_priced_by_the_next_report(
    book: CostBook, list_server: str
) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    book.record(CostRecordParams(model="house-1", provider="house", usage=usage))
    config_file().write_text("[[price]]\nmodels = 7\n")
    assert run("update-prices", "--url", f"{list_server}/prices.json").exit_code == 0
    config_file().write_text("")
    assert json.loads(run("--json").output)["totals"]["costUsd"] == 7.0


def test_invalid_price_list_replaces_nothing(list_server: str) -> None:
    assert run("update-prices", "--url", f"{list_server}/prices.json").exit_code == 0
    before = (state_dir() / "prices.json").read_bytes()
    result = run("update-prices", "--url", f"{list_server}/other")
    assert result.exit_code == 2
    assert "is not in genai-prices' format" in result.output
    assert [path.name for path in state_dir().iterdir()] == ["prices.json"]
    assert (state_dir() / "prices.json").read_bytes() == before


def test_reported_costs_are_marked(book: CostBook) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.5}
    book.record(CostRecordParams(model="reported", usage=usage))
    rows = json.loads(run("--json", "--by", "model").output)["rows"]
    assert {row["model"]: row["reportedCostUsd"] for row in rows}["reported"] == 0.5
    exported = run("export", "--format", "jsonl").output.splitlines()
    assert {json.loads(line)["costSource"] for line in exported} == {
        "reported",
        "list",
        "unpriced",
    }
    assert Decimal(str(json.loads(exported[-1])["costUsd"])) == Decimal("0.5")


def test_agents_figure_says_that_it_lacks_sessions(
    book: CostBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = call_of("opencode", at=datetime.now(UTC), tokens=1_000_000)
    with_figure = msgspec.structs.replace(common, session="a", agent_cost=Decimal("0.5"))
    book.ledger.record_many([with_figure, msgspec.structs.replace(common, session="b")])
    shown = " ".join(table_on_terminal(monkeypatch, "agent").split())
    assert "opencode: $0.50 at the agent's prices, counting only sessions with a cost in" in shown


def test_aiders_calls_of_the_project_it_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aider stores sessions only in the project, and no file mentions the project's path."""
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / "src").mkdir()
    (project / ".aider.chat.history.md").write_text(AIDER)
    monkeypatch.chdir(project / "src")
    rows = json.loads(run("--by", "agent", "--json").stdout)["rows"]
    assert [(row["agent"], row["calls"]) for row in rows] == [("aider", 3)]
