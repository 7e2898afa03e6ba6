"""Reads the team's store, a ClickHouse database with the schema in `contrib/team`, over HTTP.

All methods block.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from sidecar import typed
from sidecar.config.settings import Team
from sidecar.cost.cost_page import PageSource, SessionPrompts, TopGroups
from sidecar.cost.cost_protocol import CostDetailParams, CostKey, CostReport, PageKey
from sidecar.cost.days import END_MS, SPANS, TimeRange, day_name, time_range
from sidecar.cost.ledger_events import Buckets
from sidecar.cost.prices import Prices
from sidecar.cost.reports import add_charts, build_report, ordered_keys
from sidecar.cost.sums import Tallies, Tally
from sidecar.endpoints.http import (
    TEAM_AUTHORITY,
    ClientSettingsError,
    describe_failure,
    make_team_client,
    warn_if_readable,
    without_secrets,
)
from sidecar.errors import BadParamsError, SidecarError
from sidecar.text.pages import COLORS
from sidecar.text.printable import counted, printable

_CONNECT_SECONDS, _QUERY_SECONDS = 5, 30
_MOST_MACHINES = 5
"""How many machines to name if the store lacks their calls."""
_CODE = re.compile(r"Code: (\d+)")
_REFUSED_CODES = frozenset({192, 193, 194, 497, 516})
"""ClickHouse's error codes for an unknown user, a wrong password and missing permissions."""
_SCHEMA_CODES = frozenset({10, 16, 46, 47, 60, 81})
"""ClickHouse's error codes for unknown databases, tables, columns and functions."""
_TIMEOUT_CODES = frozenset({159, 160, 209})

_COLUMNS: Mapping[CostKey, str] = {
    "model": "model",
    "category": "category",
    "agent": "agent",
    "branch": "branch",
    "project": "project",
    "user": "user",
    "team": "team",
    "session": "if(session = 0, '', lower(hex(session)))",
    "day": "toUInt32(day)",
    "week": "toUInt32(day)",
    "month": "toUInt32(day)",
}
"""SQL expressions for the cost keys. For weeks and months, the query returns days, which Python
combines.
"""
_BUCKETS = ("input", "cache_read", "cache_write", "output", "reasoning")
_SUMS = (
    *_BUCKETS, "calls", "estimated_calls", "estimated", "estimated_prompt", "cost", "reported",
    "priced_calls", "partly_priced_calls", "unpriced",
)  # fmt: skip
BASIS = (
    "From the team's store. Days are in UTC. Sessions, branches without a label, and users whose "
    "names you may not read are shown as hashes."
)


class TeamStoreError(SidecarError):
    """The team's store cannot be read. The message explains why."""

    kind = "endpoint"
    retryable = True

    def __init__(self, message: str, *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.is_unreachable = is_unreachable
        """Whether reading failed because the server is unreachable."""


class TeamStore:
    """The ClickHouse server in the user's settings."""

    def __init__(self, team: Team, prices: Prices | None = None) -> None:
        """Prepare to query the server.

        Args:
            team: The settings.
            prices: Determines which dated names of models are reported without their dates;
                by default, no name is changed.

        Raises:
            TeamStoreError: The settings are incomplete or invalid.
        """
        if team.store is None:
            raise TeamStoreError(
                "no team store is configured; set [team] store in your own configuration"
            )
        import httpx

        self._prices = prices
        self._where = without_secrets(team.store)
        parts = urlsplit(team.store)
        password = ""
        if team.store_password_env is not None:
            password = os.environ.get(team.store_password_env, "")
            if not password:
                raise TeamStoreError(
                    f"the environment variable {team.store_password_env} ([team] "
                    "store-password-env) is not set; set it in the environment of your editor or "
                    "shell"
                )
            warn_if_readable(team.store, "the password of the team's store")
        user = team.store_user or "default"
        try:
            self._client = make_team_client(
                httpx.Client,
                team.store,
                team.ca_file,
                headers={
                    "X-ClickHouse-User": user,
                    "X-ClickHouse-Key": password,
                    "Accept-Encoding": "identity",
                    "User-Agent": "token-sidecar",
                },
                timeout=httpx.Timeout(_QUERY_SECONDS, connect=_CONNECT_SECONDS),
            )
        except ClientSettingsError as error:
            raise TeamStoreError(str(error)) from None
        host = parts.netloc.rpartition("@")[2]
        if parts.port is None:
            host += ":8443" if parts.scheme == "https" else ":8123"
        self._url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/"

    def __enter__(self) -> TeamStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def report(self, params: CostDetailParams, agent: str | None = None) -> CostReport:
        """Return the whole team's costs, or the costs of one agent's calls. Days are in UTC.

        Raises:
            BadParamsError: The params do not apply to a team's records.
            TeamStoreError: The store cannot be read.
        """
        times = time_range(params.since, params.until, UTC)
        keys = ordered_keys(params.by, team=True)

        def tallies_by(*keys: CostKey) -> Tallies:
            return self.tallies(times, keys, agent=agent, session=params.session)

        report = build_report(keys, tallies_by(*keys), BASIS)
        if params.charts:
            report = add_charts(report, keys, tallies_by, params.width or 0)
        return msgspec.structs.replace(report, note=self.missing_note())

    def tallies(
        self,
        times: TimeRange,
        keys: Sequence[CostKey],
        *,
        agent: str | None = None,
        session: str | None = None,
    ) -> Tallies:
        """Return sums of the calls in a time range, grouped by `keys`.

        Raises:
            BadParamsError: The time range does not consist of whole days.
            TeamStoreError: The store cannot be read.
        """
        where, values = _condition(times, agent=agent, session=session)
        columns = ", ".join(self._columns(keys, values))
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

    def costliest(
        self, times: TimeRange, keys: Sequence[CostKey], most: int, agent: str | None
    ) -> TopGroups:
        """Return the groups with the highest cost, and the total of all other groups.

        Raises:
            BadParamsError: The time range does not consist of whole days.
            TeamStoreError: The store cannot be read.
        """
        where, values = _condition(times, agent=agent)
        names = [f"name{index}" for index in range(len(keys))]
        columns = self._columns(keys, values)
        named = ", ".join(
            f"{column} AS {name}" for column, name in zip(columns, names, strict=True)
        )
        sums = ", ".join(f"sum(d.{name}) AS {name}" for name in _SUMS)
        found = self._query(
            f"SELECT {', '.join(f'any({name})' for name in names)}, count(), "  # noqa: S608
            f"{', '.join(f'sum({name})' for name in _SUMS)} FROM ("
            f"SELECT {named}, {sums}, "
            f"row_number() OVER (ORDER BY cost DESC, {', '.join(names)}) AS place "
            f"FROM llm.daily AS d WHERE {where} GROUP BY {', '.join(names)}"
            ") GROUP BY least(place, {most:UInt32} + 1) AS slot ORDER BY slot",
            {**values, "most": most},
        )
        groups, others = found[:most], found[most:]
        count = len(keys)
        shown = {tuple(map(str, row[:count])): _tally_of(row[count + 1 :]) for row in groups}
        rest = [TopGroups(shown, row[count], _tally_of(row[count + 1 :])) for row in others]
        return rest[0] if rest else TopGroups(shown)

    def recent_prompts(
        self, times: TimeRange, agent: str | None, sessions: int
    ) -> dict[tuple[str, str], list[float]]:
        """Return the prompt sizes in the latest sessions, keyed by session and agent.

        Only calls of the category `main` are included.
        """
        where, values = _condition(times, agent=agent)
        where = f"{where} AND category = 'main'"
        found = self._query(
            "SELECT lower(hex(session)), agent, groupArray((at, prompt)) FROM ("  # noqa: S608
            "SELECT session, agent, category, toDate(at) AS day, at, "
            "input + cache_read + cache_write AS prompt FROM llm.calls WHERE session IN ("
            f"SELECT session FROM llm.daily WHERE {where} GROUP BY session "
            f"ORDER BY max(last_at) DESC LIMIT {int(sessions)}) "
            # LIMIT BY is faster than FINAL, which would read all calls.
            "ORDER BY version DESC LIMIT 1 BY call_id"
            f") WHERE {where} GROUP BY session, agent ORDER BY max(at) DESC",
            values,
        )
        return {
            (session, name): [float(prompt) for _at, prompt in sorted(calls)]
            for session, name, calls in found
        }

    def spent_this_month(self, team: str | None, now: datetime) -> Decimal:
        """Return the USD that a team, or all teams, spent in the UTC month that contains `now`."""
        ((spent,),) = self._query(
            "SELECT sum(cost) FROM llm.daily WHERE toStartOfMonth(day) = {month:Date} "
            "AND ({team:String} IN (team, ''))",
            {"month": f"{now:%Y-%m}-01", "team": team or ""},
        )
        return Decimal(spent)

    def missing_note(self) -> str:
        """Return which machines' calls the store lacks, and what to do, or an empty string.

        Raises:
            TeamStoreError: The store cannot be read.
        """
        found = self._query(
            "SELECT left(user, 12), left(installation, 12), toString(min(day)), sum(missing) "
            "FROM llm.missing GROUP BY user, installation ORDER BY sum(missing) DESC",
            {},
        )
        lines = [
            f"{counted(calls, 'call')} of user {user} since {day} (machine {machine})"
            for user, machine, day, calls in found[:_MOST_MACHINES]
        ]
        if not lines:
            return ""
        more = f", and of {counted(len(found) - len(lines), 'more machine')}"
        return (
            f"The store lacks {', '.join(lines)}{more if len(found) > len(lines) else ''}. "
            "Run `token-sidecar cost ship --since DAY` on the machine."
        )

    def check(self) -> None:
        """Check that the store can be read.

        Raises:
            TeamStoreError: The store cannot be read, or its retention period is not recognized.
        """
        self._query("SELECT day FROM llm.daily LIMIT 1", {})
        ((first,),) = self._query("SELECT day FROM llm.first_kept_day", {})
        if first is None:
            raise TeamStoreError(
                "the retention of llm.calls is not recognized; give it in days, weeks, months, "
                "quarters or years, such as `MODIFY TTL toDateTime(at) + INTERVAL 90 DAY`"
            )

    def _columns(self, keys: Sequence[CostKey], values: dict[str, Any]) -> list[str]:
        """Return SQL expressions for keys, and add their parameters to `values`."""
        columns = [_COLUMNS[key] for key in keys]
        if "model" in keys and (names := self._undated_names):
            values |= {"dated": list(names), "undated": list(names.values())}
            index = keys.index("model")
            columns[index] = (
                "transform(model, {dated:Array(String)}, {undated:Array(String)}, model)"
            )
        if "user" in keys and (users := self._user_names):
            values |= {"users": list(users), "names": list(users.values())}
            index = keys.index("user")
            columns[index] = "transform(user, {users:Array(String)}, {names:Array(String)}, user)"
        return columns

    @cached_property
    def _user_names(self) -> dict[str, str]:
        """Users' names by hash. Empty if the user of the store may not read them."""
        try:
            rows = self._query("SELECT user, name FROM llm.names FINAL", {})
        except TeamStoreError:  # if the store cannot be read at all, the next query says why
            return {}
        return {user: printable(name) for user, name in rows if name}

    @cached_property
    def _undated_names(self) -> dict[str, str]:
        """The names of models whose dates a report leaves out, without their dates."""
        if self._prices is None:
            return {}
        rows = self._query("SELECT DISTINCT model FROM llm.daily WHERE match(model, '[-@]20')", {})
        names = {model: self._prices.priced_name(model, "") for (model,) in rows}
        return {
            model: name
            for model, name in names.items()
            if name != model and model.isprintable() and not set(model) & {"'", "\\"}
        }

    def _query(self, text: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Return the rows of a query. Decimals are exact.

        Values are sent as a form, because lists of ids are too long for a URL.
        """
        import httpx

        form = {"query": f"{text} FORMAT JSONCompact", "wait_end_of_query": "1"}
        form |= {f"param_{name}": _literal(value) for name, value in values.items()}
        store = f"the team's store {self._where}"
        try:
            answer = self._client.post(
                self._url, files={name: (None, value) for name, value in form.items()}
            )
        except httpx.ReadTimeout:
            raise _timeout_error(store) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            reason = describe_failure(error, store, TEAM_AUTHORITY)
            raise TeamStoreError(
                f"{reason}; check [team] store and that ClickHouse is running", is_unreachable=True
            ) from None
        if answer.status_code != 200:
            raise _error_of(answer.status_code, answer.text, store)
        try:
            return _rows(answer.content)
        except (ValueError, RecursionError):
            raise TeamStoreError(
                f"{store} does not answer like ClickHouse; check [team] store", is_unreachable=True
            ) from None


class _Column(msgspec.Struct, frozen=True):
    type: str


class _Result(msgspec.Struct, frozen=True):
    meta: list[_Column]
    data: list[list[Any]]


def _rows(answer: bytes) -> list[list[Any]]:
    """Return the rows of a result in the format JSONCompact.

    ClickHouse writes 64-bit integers as strings or as numbers, depending on its version.
    """
    result = typed.convert(json.loads(answer, parse_float=Decimal), _Result)
    readers = [_reader_of(column.type) for column in result.meta]
    return [[read(value) for read, value in zip(readers, row, strict=True)] for row in result.data]


def _reader_of(kind: str) -> Callable[[Any], Any]:
    if kind.startswith("Decimal"):
        return Decimal
    return int if kind.startswith(("Int", "UInt")) else lambda value: value


def _literal(value: Any) -> str:
    """Return a query parameter's value in ClickHouse's escaped format."""
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
    if isinstance(value, int):
        return str(value)
    quoted = (each.replace("\\", "\\\\").replace("'", "\\'") for each in value)
    return "[" + ",".join(f"'{each}'" for each in quoted) + "]"


def _timeout_error(store: str) -> TeamStoreError:
    return TeamStoreError(
        f"{store} did not answer within {_QUERY_SECONDS} s; try again, or choose fewer days"
    )


def _error_of(status: int, text: str, store: str) -> TeamStoreError:
    """Return an error that says why the store refused a query and what to do.

    ClickHouse's message is not shown to the user.
    """
    code = int(found[1]) if (found := _CODE.search(text)) else 0
    if code in _TIMEOUT_CODES:
        return _timeout_error(store)
    if code in _REFUSED_CODES or status in (401, 403):
        return TeamStoreError(
            f"{store} refused the login; check store-user and store-password-env in [team]"
        )
    if code in _SCHEMA_CODES:
        return TeamStoreError(
            f"{store} lacks a part of the current schema; load contrib/team/schema.sql"
        )
    if code:
        return TeamStoreError(f"{store} failed with error {code}; see the server's log")
    return TeamStoreError(
        f"{store} returned HTTP {status}; check [team] store and that ClickHouse is running",
        is_unreachable=True,
    )


@dataclass(frozen=True, kw_only=True)
class TeamSource(PageSource):
    """The calls in the team's store, as the source of a report. Days are in UTC."""

    keys: ClassVar[Sequence[PageKey | CostKey]] = (
        "model", "agent", "user", "team", "session", "day", "week", "month"
    )  # fmt: skip
    how_recorded: ClassVar[str] = "Each developer's machine sends its calls to the store."

    store: TeamStore
    agent: str | None = None
    """If set, only this agent's calls are reported."""

    @property
    def title(self) -> str:
        return "Cost of the team"

    def state_note(self) -> str:
        return self.store.missing_note()

    def basis(self, times: TimeRange) -> str:  # noqa: ARG002
        return BASIS

    def tallies(self, times: TimeRange, by: Sequence[CostKey]) -> Tallies:
        return self.store.tallies(times, by, agent=self.agent)

    def costliest(self, times: TimeRange, by: Sequence[CostKey], most: int) -> TopGroups:
        return self.store.costliest(times, by, most, self.agent)

    def recent_prompts(self, times: TimeRange) -> dict[tuple[str, str], SessionPrompts]:
        found = self.store.recent_prompts(times, self.agent, COLORS)
        return {session: SessionPrompts(prompts) for session, prompts in found.items()}

    def session_labels(self, sessions: Sequence[str]) -> Mapping[str, str]:
        return {session: session for session in sessions}


def _condition(
    times: TimeRange, *, agent: str | None = None, session: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Return an SQL condition for days, an agent and a session, and the condition's parameters."""
    if times.start_ms > 0 or times.end_ms < END_MS:
        raise BadParamsError("team reports cover whole days; use dates, such as 2026-11-21")
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
