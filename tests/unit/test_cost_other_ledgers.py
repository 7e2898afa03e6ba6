"""Tests exports, the queries in the DuckDB docs, and that `--also` counts no call twice."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import msgspec
import pytest
from click.testing import CliRunner, Result

from benchmarks.agents.claude import ClaudeHome
from sidecar.cli import main
from sidecar.cli.cost import cost
from sidecar.config.paths import config_file, state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.cache_losses import CacheLoss, LossCause
from sidecar.cost.ledger import FILE_NAME
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from tests.unit.cost_calls import call_of

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result


def record(folder: Path, *calls: LedgerEvent) -> Path:
    with closing(CostBook(folder)) as book:
        book.prices.load()
        for call in calls:
            book.ledger.record(call)
    return folder / FILE_NAME


def totals(*also: Path) -> tuple[int, int, float]:
    """Return the number of calls, the prompt tokens and the cost of a report."""
    options = [part for path in also for part in ("--also", str(path))]
    found = json.loads(run("cost", "--json", *options).stdout)["totals"]
    return found["calls"], found["inputTokens"], found["costUsd"]


@pytest.fixture
def laptop() -> Path:
    """Record three calls here: one with an id, and two equal ones without."""
    same = call_of(at=AT, tokens=300)
    return record(state_dir(), call_of("codex", at=AT, tokens=100, request_id="a"), same, same)


@pytest.fixture
def desktop(tmp_path: Path) -> Path:
    """Record two calls elsewhere. The session of one of them was synchronized to this machine."""
    later = call_of("codex", at=AT + timedelta(hours=1), tokens=5_000, request_id="b")
    loss = CacheLoss(2_000, LossCause.EXPIRED)
    return record(
        tmp_path / "desktop",
        call_of("codex", at=AT, tokens=100, request_id="a"),
        msgspec.structs.replace(later, branch="main", tier="batch", loss=loss),
    )


def test_a_copied_ledger_counts_nothing_twice(laptop: Path, tmp_path: Path) -> None:
    before = totals()
    assert before[:2] == (3, 700)
    copied = tmp_path / "copy.db"
    shutil.copy(laptop, copied)
    assert totals(copied, copied, laptop) == before


@pytest.mark.usefixtures("laptop")
def test_calls_of_another_machine_are_added_once(desktop: Path) -> None:
    content = desktop.read_bytes()
    calls, tokens, cost = totals(desktop, desktop)
    assert (calls, tokens) == (4, 5_700)
    assert cost == pytest.approx(700 * 1.25e-6 + 5_000 * 0.625e-6), "gpt-5, half price in a batch"
    assert totals()[0] == 3, "this machine's ledger is unchanged"
    assert desktop.read_bytes() == content
    by_branch = json.loads(run("cost", "--by", "branch", "--json", "--also", str(desktop)).stdout)
    assert {row["branch"]: row["calls"] for row in by_branch["rows"]}["main"] == 1


@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_exports_are_read_as_they_were_written(desktop: Path, tmp_path: Path, form: str) -> None:
    expected = totals(desktop)
    laptop_file, both = tmp_path / f"laptop.{form}", tmp_path / f"both.{form}"
    run("cost", "export", "--format", form, "--output", str(laptop_file))
    run("cost", "export", "--format", form, "--output", str(both), "--also", str(desktop))
    assert totals(laptop_file) == totals()
    assert totals(both) == expected
    assert "expired" in both.read_text()
    assert totals(both, desktop, laptop_file) == expected
    again = tmp_path / f"again.{form}"
    run("cost", "export", "--format", form, "--output", str(again), "--also", str(both))
    assert sorted(again.read_text().splitlines()) == sorted(both.read_text().splitlines())


def test_reported_costs_and_formula_like_names_survive_an_export(tmp_path: Path) -> None:
    """CSV quotes a cell that a spreadsheet would interpret as a formula."""
    record(
        state_dir(),
        call_of(at=AT, session="=1+1", model="-x", reported_cost=Decimal("0.25")),
        call_of(at=AT, session="'quoted", model="y", agent_cost=Decimal("0.5")),
    )
    exported = tmp_path / "calls.csv"
    run("cost", "export", "--output", str(exported))
    assert totals(exported)[0] == 2
    (state_dir() / FILE_NAME).unlink()
    assert totals(exported) == (2, 2_000, 0.75)


@pytest.mark.usefixtures("laptop")
def test_the_setting_names_files_for_every_report(desktop: Path) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(f"[ledger]\nalso = [{str(desktop)!r}]\n")
    assert totals()[0] == 4
    assert totals(desktop)[0] == 4
    page = run("cost", "--html", "-").stdout
    assert "5.7k" in page or "5,700" in page


def test_usage_adds_what_other_machines_spent_today(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    session = ClaudeHome(Path.home() / ".claude").session(root)
    session.user()
    session.reply()
    other = record(tmp_path / "other", call_of(at=datetime.now(UTC), tokens=8_000_000))
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text("[cost]\nsoft-cap-usd = 5.0\n")
    options = ("usage", "--workspace", str(root))
    assert "spent today exceeds" not in run(*options).stdout
    assert "spent today exceeds the soft cap of $5.00" in run(*options, "--also", str(other)).stdout


@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read as a ledger or an export"),
        (b"garbage", "its first line does not name the columns of an export"),
        (b"<html>Not found</html>\n", "its first line does not name the columns of an export"),
        (b"at,model\n2026-11-20,x\n", "cannot be read as a ledger or an export"),
        (b"{}\n", "cannot be read as a ledger or an export"),
        (b"\xff\xfe\x00", "cannot be read as a ledger or an export"),
        (b"SQLite format 3\x00 and no more", "cannot be read as a ledger or an export"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    result = run("cost", "--also", str(path), code=2)
    assert reason in " ".join(result.stderr.split())
    assert result.stdout == ""


@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("at", "0001-01-01T00:00:00+14:00"),
        ("model", "x" * 200_000),
        ("lostTokens", 10**20),
        ("agentCostUsd", "nan"),
    ],
)
def test_a_damaged_export_is_named(desktop: Path, tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "calls.csv"
    run("cost", "export", "--output", str(path), "--also", str(desktop))
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = [row | {name: value} for row in csv.DictReader(stream)]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    problem = run("cost", "--also", str(path), code=2).stderr
    assert f"{path} cannot be read as a ledger or an export" in problem
    assert "class" not in problem


@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize(
    "change",
    ["UPDATE event SET at = 'x'", "UPDATE event SET cost = 'x'", "UPDATE event SET at = 9e18"],
)
def test_a_damaged_ledger_is_named(desktop: Path, change: str) -> None:
    with closing(sqlite3.connect(desktop)) as connection:
        connection.execute(change)
        connection.commit()
    problem = run("cost", "--also", str(desktop), code=2).stderr
    assert f"{desktop} cannot be read as a ledger or an export" in problem
    assert "class" not in problem


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize("row", ["SELECT count(*) FROM endless", "SELECT n FROM endless"])
def test_a_ledger_with_an_endless_view_is_refused(desktop: Path, row: str) -> None:
    with closing(sqlite3.connect(desktop)) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(event)")]
        connection.execute("ALTER TABLE event RENAME TO real_event")
        values = ", ".join(f"real_event.{name}" for name in columns)
        connection.execute(
            "CREATE VIEW event AS WITH RECURSIVE endless(n) AS "  # noqa: S608
            f"(SELECT 1 UNION ALL SELECT n + 1 FROM endless) "
            f"SELECT {values} FROM real_event CROSS JOIN ({row})"
        )
        connection.commit()
    problem = run("cost", "--also", str(desktop), code=2).stderr
    assert f"{desktop} cannot be read as a ledger or an export" in problem
    assert "copy it from its machine again" in problem


@pytest.mark.usefixtures("laptop")
def test_a_ledger_of_another_version_says_what_to_do(desktop: Path) -> None:
    with closing(sqlite3.connect(desktop)) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert (
        "run `token-sidecar cost` with this version"
        in run("cost", "--also", str(desktop), code=2).stderr
    )


@pytest.mark.usefixtures("laptop")
def test_reading_a_copied_ledger_leaves_no_files_beside_it(desktop: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copies" / "desktop.db"
    copied.parent.mkdir()
    shutil.copy(desktop, copied)
    assert totals(copied)[0] == 4
    assert [*copied.parent.iterdir()] == [copied]


@pytest.fixture
def unfinished(desktop: Path, tmp_path: Path) -> Path:
    """Copy a ledger with its `-wal`, which has the newest call, while an editor has it open."""
    copied = tmp_path / "copies" / "ledger.db"
    copied.parent.mkdir()
    with closing(CostBook(desktop.parent)) as book:
        book.prices.load()
        with book.report_reader():  # keeps the new call out of the main file
            book.ledger.record(call_of(at=AT, tokens=7, request_id="newest"))
            for end in ("", "-wal"):
                shutil.copy(f"{desktop}{end}", f"{copied}{end}")
    return copied


@pytest.mark.usefixtures("laptop")
def test_the_newest_calls_of_a_copied_ledger_are_in_its_wal_file(unfinished: Path) -> None:
    content = [Path(f"{unfinished}{end}").read_bytes() for end in ("", "-wal")]
    assert totals(unfinished)[0] == 5
    assert [Path(f"{unfinished}{end}").read_bytes() for end in ("", "-wal")] == content
    Path(f"{unfinished}-wal").unlink()
    assert totals(unfinished)[0] == 4


@pytest.mark.usefixtures("laptop")
def test_a_wal_file_that_cannot_be_read_is_not_ignored(unfinished: Path) -> None:
    Path(f"{unfinished}-shm").symlink_to("elsewhere")  # SQLite cannot create its file
    problem = run("cost", "--also", str(unfinished), code=2).stderr
    assert f"{unfinished} cannot be read as a ledger or an export" in problem
    assert f"copy it and {unfinished.name}-wal" in " ".join(problem.split())


@pytest.mark.usefixtures("laptop")
def test_a_ledger_on_a_read_only_medium_is_read(desktop: Path) -> None:
    for path in desktop.parent.glob(f"{FILE_NAME}-*"):
        path.unlink()
    desktop.chmod(0o444)
    desktop.parent.chmod(0o555)
    try:
        assert totals(desktop)[0] == 4
    finally:
        desktop.parent.chmod(0o755)


PAGE = Path(__file__).parents[2] / "docs/how-to/duckdb.md"
VIEW, COPY, *QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
EVENTS = [
    LedgerEvent(
        at=datetime(2026, 11, 1 + number % 5, 23, 59, 59, 999_000, tzinfo=UTC),
        model=("claude-sonnet-4-5", "gpt-5", "/home/jane/models/own.gguf")[number % 3],
        provider=("anthropic", "openai", "nobody")[number % 3],
        agent="aider",
        workspace="file:///home/jane/project",
        session=f"/home/jane/project/{number % 4}",
        request_id=f"/home/jane/project/{number}",
        buckets=Buckets(input=number, cache_read=1_000, cache_write_5m=7, output=10, reasoning=3),
        reported_cost=Decimal("0.000000000001") if number == 0 else None,
    )
    for number in range(30)
]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> duckdb.DuckDBPyConnection:
    """DuckDB with the view of the docs, in a folder with the structure that they describe."""
    book = CostBook(state_dir())
    book.ledger.record_many(EVENTS)
    book.close()
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("shared/jane.csv", "jane.csv"):
        result = CliRunner().invoke(cost, ["export", "--output", name])
        assert result.exit_code == 0, result.output
    connection = duckdb.connect()
    connection.execute(VIEW)
    return connection


def test_costs_and_times_are_exact(shared: duckdb.DuckDBPyConnection) -> None:
    prices = Prices()
    expected = sum((prices.cost(event).usd or Decimal(0) for event in EVENTS), Decimal(0))
    query = 'SELECT count(*), sum(costUsd), sum(inputTokens), min(epoch_ms("at")) FROM calls'
    [(calls, usd, tokens, first)] = shared.execute(query).fetchall()
    assert (calls, usd, tokens) == (30, expected, sum(event.buckets.input for event in EVENTS))
    assert first == int(EVENTS[0].at.timestamp() * 1000)
    [(unpriced,)] = shared.execute("SELECT count(*) FROM calls WHERE costUsd IS NULL").fetchall()
    assert unpriced == 10


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_of_the_page_runs(shared: duckdb.DuckDBPyConnection, query: str) -> None:
    assert len(shared.execute(query).fetchall()) > 0


def test_the_shared_copy_has_no_path(shared: duckdb.DuckDBPyConnection) -> None:
    assert "/home/jane" in Path("shared/jane.csv").read_text("utf-8")
    shared.execute(COPY)
    copied = Path("shared/jane.csv").read_text("utf-8")
    assert "home" not in copied
    assert "own.gguf" in copied
    shared.execute(VIEW)
    [(calls,)] = shared.execute("SELECT count(*) FROM calls").fetchall()
    assert calls == 30


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "no/such/file")
    for form in ("jsonl", "csv"):
        result = CliRunner().invoke(cost, ["export", "--format", form, "--output", missing])
        assert (result.exit_code, "cannot write" in result.output) == (2, True)


@pytest.mark.usefixtures("shared")
def test_csv_can_be_written_to_a_file() -> None:
    printed = CliRunner().invoke(cost, ["export"]).stdout
    assert Path("jane.csv").read_text("utf-8") == printed
