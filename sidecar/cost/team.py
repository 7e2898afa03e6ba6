"""Reads the team's store, a ClickHouse database with the schema in `contrib/team`. Blocking."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from sidecar.cost.days import END_MS, TimeRange, day_name, time_range
from sidecar.cost.events import Buckets
from sidecar.cost.page import PageSource
from sidecar.cost.reports import SPANS, Tallies, Tally, add_charts, build_report, ordered_keys
from sidecar.endpoints.http import warn_if_readable, without_secrets
from sidecar.errors import BadParamsError, SidecarError, how_to_install
from sidecar.text.pages import COLOURS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from sidecar.config.settings import Team
    from sidecar.cost.protocol import CostDetailParams, CostKey, CostReport, PageKey
    from sidecar.cost.records import Record
    from sidecar.cost.shipping import QueuedCall, ShippingQueue

_CONNECT_SECONDS, _QUERY_SECONDS = 5, 30
_IDS_PER_QUERY = 5_000
_DAY_NS = 86_400_000_000_000
_UNIT_DAYS = {"Day": 1, "Week": 7, "Month": 28, "Quarter": 89, "Year": 365}
"""The days in the shortest interval of each unit."""
_RETENTION = re.compile(rf"toInterval({'|'.join(_UNIT_DAYS)})\((\d+)\)")

_COLUMNS: Mapping[CostKey, str] = {
    "model": "model",
    "category": "category",
    "agent": "agent",
    "user": "user",
    "team": "team",
    "session": "if(session = 0, '', lower(hex(session)))",
    "day": "toUInt32(day)",
    "week": "toUInt32(day)",
    "month": "toUInt32(day)",
}
"""SQL expressions for the keys. The names of weeks and months are formatted in Python."""
_BUCKETS = ("input", "cache_read", "cache_write", "output", "reasoning")
_SUMS = (
    *_BUCKETS, "calls", "estimated_calls", "estimated", "estimated_prompt", "cost", "reported",
    "priced_calls", "partly_priced_calls", "unpriced",
)  # fmt: skip
BASIS = "The team's store, by UTC day; users and sessions are hashes."


class TeamStoreError(SidecarError):
    """The team's store cannot be read. The message explains why."""

    kind = "endpoint"
    retryable = True


class TeamStore:
    """The ClickHouse server in the user's settings."""

    def __init__(self, team: Team) -> None:
        """Connect to the server.

        Raises:
            TeamStoreError: The settings are incomplete, or the server is unreachable.
        """
        if team.store is None:
            raise TeamStoreError(
                "no team store is configured; set [team] store in your own configuration"
            )
        self._where = without_secrets(team.store)
        parts = urlsplit(team.store)
        password = ""
        if team.store_password_env is not None:
            password = os.environ.get(team.store_password_env, "")
            if not password:
                raise TeamStoreError(
                    f"the environment variable {team.store_password_env} ([team] "
                    "store-password-env) is not set; set it where your editor and shell start"
                )
            warn_if_readable(team.store, "the password of the team's store")
        try:
            import clickhouse_connect
        except ImportError as error:
            raise TeamStoreError(
                f"reading the team's store requires additional packages; {how_to_install('team')}"
            ) from error
        is_secure = parts.scheme == "https"
        with self._translated():
            self._client = clickhouse_connect.get_client(
                host=parts.hostname or "",
                port=parts.port or (8443 if is_secure else 8123),
                secure=is_secure,
                username=team.store_user or "default",
                password=password,
                connect_timeout=_CONNECT_SECONDS,
                send_receive_timeout=_QUERY_SECONDS,
                autogenerate_session_id=False,
            )

    def __enter__(self) -> TeamStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def report(self, params: CostDetailParams, agent: str | None = None) -> CostReport:
        """Return the costs of the whole team, or of one agent's calls. Days are in UTC.

        Raises:
            BadParamsError: The params do not apply to a team's records.
            TeamStoreError: The store cannot be read.
        """
        times = time_range(params.since, params.until, None)
        keys = ordered_keys(params.by, team=True)

        def report_by(keys: Sequence[CostKey]) -> CostReport:
            found = self.tallies(times, keys, agent=agent, session=params.session)
            return build_report(keys, found, BASIS)

        return add_charts(report_by, keys) if params.charts else report_by(keys)

    def tallies(
        self,
        times: TimeRange,
        keys: Sequence[CostKey],
        *,
        agent: str | None = None,
        session: str | None = None,
    ) -> Tallies:
        """Return the sums of the calls on whole days, grouped by keys.

        Raises:
            BadParamsError: The time range does not consist of whole days.
            TeamStoreError: The store cannot be read.
        """
        where, values = _condition(times, agent=agent, session=session)
        columns = ", ".join(_COLUMNS[key] for key in keys)
        sums = ", ".join(f"sum({name})" for name in _SUMS)
        positions = ", ".join(str(index + 1) for index in range(len(keys)))
        found = self._query(
            f"SELECT {columns}, {sums} FROM llm.daily WHERE {where} GROUP BY {positions}",  # noqa: S608
            values,
        )
        tallies: Tallies = {}
        for row in found:
            names = tuple(map(_name_of, keys, row))
            tallies[names] = tallies.get(names, Tally()) + _tally_of(row[len(keys) :])
        return tallies

    def recent_prompts(
        self, times: TimeRange, agent: str | None, sessions: int
    ) -> dict[tuple[str, str], list[float]]:
        """Return the prompt sizes of main calls in the latest sessions, by session and agent."""
        where, values = _condition(times, agent=agent)
        where = f"{where} AND category = 'main'"
        found = self._query(
            "SELECT lower(hex(session)), agent, groupArray((at, prompt)) FROM ("  # noqa: S608
            "SELECT session, agent, category, toDate(at) AS day, at, "
            "input + cache_read + cache_write AS prompt FROM llm.calls WHERE session IN ("
            f"SELECT session FROM llm.daily WHERE {where} GROUP BY session "
            f"ORDER BY max(last_at) DESC LIMIT {int(sessions)}) "
            "ORDER BY version DESC LIMIT 1 BY call_id"  # FINAL would read all calls
            f") WHERE {where} GROUP BY session, agent ORDER BY max(at) DESC",
            values,
        )
        return {
            (session, name): [float(prompt) for _at, prompt in sorted(calls)]
            for session, name, calls in found
        }

    def spent_this_month(self, team: str | None, now: datetime) -> Decimal:
        """Return the amount that a team, or all teams, spent in the UTC month of `now`, in USD."""
        ((spent,),) = self._query(
            "SELECT sum(cost) FROM llm.daily WHERE toStartOfMonth(day) = {month:Date} "
            "AND ({team:String} IN (team, ''))",
            {"month": f"{now:%Y-%m}-01", "team": team or ""},
        )
        return Decimal(spent)

    def missing(self, queue: ShippingQueue) -> list[int]:
        """Return the row ids of accepted calls that the store lacks or has with different numbers.

        First, the totals of each day are compared. Single calls are only compared for days
        whose totals differ. Days that the store no longer keeps are ignored.
        """
        ((engine,),) = self._query(
            "SELECT engine_full FROM system.tables WHERE database = 'llm' AND name = 'calls'", {}
        )
        retention = _RETENTION.search(engine)
        kept_days = int(retention[2]) * _UNIT_DAYS[retention[1]] if retention else 0
        first_day = time.time_ns() // _DAY_NS - kept_days + 1 if kept_days else 0
        found = self._query(
            "SELECT toUInt32(toDate(at)) AS day, count(), sum(input + cache_read + cache_write), "
            "sum(output + reasoning), sum(cost) FROM llm.calls FINAL "
            "WHERE installation = {installation:String} GROUP BY day",
            {"installation": queue.identity.installation},
        )
        stored = {day: _Totals(*totals) for day, *totals in found}
        local = dict[int, _Totals]()
        for call in queue.accepted_calls():
            day = _day_of(call)
            local[day] = local.get(day, _Totals()).plus(_totals_of(call.record))
        days = {
            day for day, totals in local.items() if day >= first_day and stored.get(day) != totals
        }
        doubtful = (
            [call for call in queue.accepted_calls() if _day_of(call) in days] if days else []
        )
        return [row for part in _parts(doubtful, _IDS_PER_QUERY) for row in self._differing(part)]

    def _differing(self, calls: Sequence[QueuedCall]) -> Iterator[int]:
        """Yield the row ids of calls that the store lacks or has with different numbers.

        A call is not missing if another installation of the same user has sent it.
        """
        ids = [call.record.attributes["token_sidecar.call.id"] for call in calls]
        found = self._query(
            "SELECT lower(hex(call_id)), source, 1, input + cache_read + cache_write, "
            "output + reasoning, cost FROM llm.calls FINAL "
            "WHERE call_id IN (SELECT toFixedString(unhex(arrayJoin({ids:Array(String)})), 16))",
            {"ids": ids},
        )
        stored = {
            name: _Totals(*totals) for name, source, *totals in found if source == "token-sidecar"
        }
        for name, call in zip(ids, calls, strict=True):
            if stored.get(str(name)) != _totals_of(call.record):
                yield call.row

    def _query(self, text: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        with self._translated():
            rows: Sequence[Sequence[Any]] = self._client.query(text, dict(values)).result_rows
        return rows

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from clickhouse_connect.driver.exceptions import ClickHouseError

        try:
            yield
        except (ClickHouseError, OSError) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise TeamStoreError(
                f"the team's store {self._where} cannot be read; check store, store-user and "
                f"store-password-env in [team]: {reason}"
            ) from error


@dataclass(frozen=True, kw_only=True)
class TeamSource(PageSource):
    """A team's calls as the source of a page. Days are in UTC, as in the store."""

    keys: ClassVar[Sequence[PageKey | CostKey]] = (
        "model", "agent", "user", "team", "session", "day", "week", "month"
    )  # fmt: skip
    how_recorded: ClassVar[str] = "Each developer's machine sends its calls to the store."

    store: TeamStore
    agent: str | None = None
    """If set, only the calls of this agent are reported."""

    @property
    def title(self) -> str:
        return "Cost of the team"

    @property
    def basis(self) -> str:
        return BASIS

    def tallies(self, times: TimeRange, by: Sequence[CostKey]) -> Tallies:
        return self.store.tallies(times, by, agent=self.agent)

    def recent_prompts(self, times: TimeRange) -> dict[tuple[str, str], list[float]]:
        return self.store.recent_prompts(times, self.agent, COLOURS)

    def session_labels(self, sessions: Sequence[str]) -> Mapping[str, str]:
        return {session: session for session in sessions}


class _Totals(NamedTuple):
    calls: int = 0
    prompt: int = 0
    completion: int = 0
    cost: Decimal = Decimal(0)

    def plus(self, other: _Totals) -> _Totals:
        return _Totals(*map(_sum, self, other))


def _sum(first: Any, second: Any) -> Any:
    return first + second


def _totals_of(record: Record) -> _Totals:
    attributes = record.attributes
    return _Totals(
        1,
        int(attributes["gen_ai.usage.input_tokens"]),
        int(attributes["gen_ai.usage.output_tokens"]),
        Decimal(attributes.get("token_sidecar.cost_usd", 0)),
    )


def _day_of(call: QueuedCall) -> int:
    return call.record.nanoseconds // _DAY_NS


def _parts(calls: Sequence[QueuedCall], size: int) -> Iterable[Sequence[QueuedCall]]:
    return (calls[start : start + size] for start in range(0, len(calls), size))


def _condition(
    times: TimeRange, *, agent: str | None = None, session: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition that selects days, an agent and a session, and its parameters."""
    if times.start_ms > 0 or times.end_ms < END_MS:
        raise BadParamsError("reports of the team cover whole days; use dates, such as 2026-11-21")
    terms = ["day BETWEEN {first:Date} AND {last:Date}"]
    last = min(times.last_day, _LAST_DATE)
    values: dict[str, Any] = {"first": day_name(times.first_day), "last": day_name(last)}
    for name, value in (("agent", agent), ("session", session)):
        if value is not None:
            terms.append(f"{_COLUMNS[name]} = {{{name}:String}}")  # type: ignore[index]
            values[name] = value
    return " AND ".join(terms), values


_LAST_DATE = 65_535
"""The last day that ClickHouse's type Date can represent, in 2149."""


def _name_of(key: CostKey, value: Any) -> str | None:
    return SPANS[key](value) if key in SPANS else str(value) or None


def _tally_of(numbers: Sequence[Any]) -> Tally:
    sums = dict(zip(_SUMS, numbers, strict=True))
    buckets = Buckets(**{name: sums.pop(name) for name in _BUCKETS})
    amounts: dict[str, Any] = {name: Decimal(sums.pop(name)) for name in ("cost", "reported")}
    unpriced = sums.pop("unpriced")
    return Tally(**sums, **amounts, buckets=buckets, unpriced_tokens=unpriced)
