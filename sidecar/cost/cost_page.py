"""Renders the cost report as HTML, for a file or for a panel in an editor.

A file contains all periods and groupings. Readers switch between them without scripts. A panel
contains one period and one grouping. The editor requests a new panel when the user chooses
another.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from sidecar.cost.cache_losses import LossCause
from sidecar.cost.cost_protocol import CostKey, FileCost, PageKey, Period
from sidecar.cost.days import (
    SPANS,
    TimeRange,
    day_name,
    day_number,
    every_day,
    range_text,
    time_range,
)
from sidecar.cost.export import table_csv
from sidecar.cost.ledger import PROMPT_SQL, folder_name
from sidecar.cost.ledger_events import PROTOCOL
from sidecar.cost.prices import Prices
from sidecar.cost.reports import derived_note, describe_basis, tally_calls
from sidecar.cost.repricing import pending_note
from sidecar.cost.sums import Scope, Tallies, Tally, calls_condition, read_tallies
from sidecar.counting.count_result import method_mark
from sidecar.text.pages import (
    COLORS,
    STYLE,
    Page,
    Series,
    details_html,
    escape,
    lines,
    page_html,
    parts_bar,
    stacked_columns,
    table_html,
)
from sidecar.text.printable import (
    HOW_RECORDED,
    compact_number,
    cost_text,
    is_generated_id,
    percent_text,
)

PERIODS: dict[str, str] = {
    "today": "Today",
    "week": "This week",
    "month": "This month",
    "all": "All",
    "custom": "Custom",
}
KEYS: dict[str, str] = {
    "model": "Model",
    "agent": "Agent",
    "user": "User",
    "team": "Team",
    "session": "Session",
    "day": "Day",
    "week": "Week",
    "month": "Month",
    "file": "Prompt file",
}
_MOST_ROWS = 100
_MOST_POINTS = 300
_MOST_CALLS = 5_000
"""Maximum number of calls to read for the chart of context growth."""
_MOST_DAYS, _MOST_WEEKS = 45, 60
"""The spending chart has one column per day for at most `_MOST_DAYS` days, and one column per week
for at most `_MOST_WEEKS` weeks. For longer ranges, it has one column per month.
"""
_CSV_HEADS = (
    "calls", "input_tokens", "cache_write_tokens", "cache_read_tokens", "output_tokens", "cost_usd",
    "unpriced",
)  # fmt: skip
_HEADS = ("Calls", "Input", "Cache writes", "Cache reads", "Output", "Cost")
STANDING_PERIODS: tuple[Period, ...] = ("today", "week", "month", "all")
PAGE_KEYS: tuple[PageKey, ...] = ("model", "agent", "session", "day", "week", "month", "file")
_CHOICES = "".join(
    f"main:has(#{kind}-{key}:checked) .{kind}-{key}{{display:block}}"
    for kind, keys in (("period", PERIODS), ("by", KEYS))
    for key in keys
)
FILE_STYLE = f"""
.choice{{display:none}}{_CHOICES}
"""
"""Style rules that make a file show only the chosen period and grouping."""


Groups = dict[tuple[str, ...], Tally]
"""Groups of calls in display order, each with its tally."""


class SessionPrompts(NamedTuple):
    """The prompts of a session's main conversation."""

    sizes: list[float]
    """Their sizes in tokens, oldest first."""
    losses: Mapping[int, str] = MappingProxyType({})
    """Why calls lost their cache, by their position."""

    @property
    def losses_text(self) -> str:
        """Text such as `2 expired, 1 model switch`, or an empty string."""
        counts = Counter(self.losses.values()).most_common()
        return ", ".join(f"{count:,} {cause}" for cause, count in counts)

    def series(self, name: str) -> Series:
        """Return a line with at most `_MOST_POINTS` values.

        The prompts are split into sections of equal length. The line contains each section's
        maximum, and the last prompt.
        """
        *earlier, last = self.sizes
        every = max(1, -(-len(earlier) // (_MOST_POINTS - 1)))
        peaks = [max(earlier[start : start + every]) for start in range(0, len(earlier), every)]
        marks = {
            -(-at // every) if at == len(earlier) else at // every: cause
            for at, cause in self.losses.items()
        }
        return Series(name, [*peaks, last], set(), marks)


class TopGroups(NamedTuple):
    """The groups of calls to display, and a summary of the omitted groups."""

    shown: Groups
    others: int = 0
    """The number of groups that are omitted."""
    rest: Tally = Tally()
    """The tally of all calls in the omitted groups."""


@dataclass(frozen=True, kw_only=True)
class PageSource(ABC):
    """The source of a report's calls, such as a ledger."""

    keys: ClassVar[Sequence[PageKey | CostKey]] = PAGE_KEYS
    """The groupings that a file contains."""
    how_recorded: ClassVar[str]
    """Explains how calls are recorded. Shown if a report contains no calls."""

    now: datetime
    zone: tzinfo | None = None
    """The time zone that determines when a day begins. None means local time."""
    note: str = ""
    """What the caller says above the report."""

    @property
    def workspace(self) -> str | None:
        """The URI of the workspace that the report covers, or None if it covers all workspaces."""
        return None

    @property
    @abstractmethod
    def title(self) -> str:
        """The page's title."""

    @abstractmethod
    def state_note(self) -> str:
        """Return why the report is incomplete, or an empty string."""

    @abstractmethod
    def basis(self, times: TimeRange) -> str:
        """Return a note on how the costs in a time range were determined."""

    @abstractmethod
    def tallies(self, times: TimeRange, by: Sequence[CostKey]) -> Tallies:
        """Return the tallies of the calls in a time range, grouped by the given keys."""

    def costliest(self, times: TimeRange, by: Sequence[CostKey], most: int) -> TopGroups:
        """Return the groups with the highest cost.

        For calls without a value for a key, an empty string is used.

        Args:
            times: The time range.
            by: The keys to group by.
            most: The maximum number of groups.
        """
        return _first_groups(_by_cost(self.tallies(times, by).items()), most)

    @abstractmethod
    def recent_prompts(self, times: TimeRange) -> dict[tuple[str, str], SessionPrompts]:
        """Return the prompt sizes in the latest sessions, keyed by session and agent.

        Only calls of the category `main` are included.
        """

    @abstractmethod
    def session_labels(self, sessions: Sequence[str]) -> Mapping[str, str]:
        """Return the labels of sessions, keyed by session id."""


@dataclass(frozen=True, kw_only=True)
class LedgerSource(PageSource):
    """The calls in a ledger."""

    how_recorded: ClassVar[str] = HOW_RECORDED

    connection: sqlite3.Connection
    prices: Prices
    scope: Scope
    """Selects the calls to report, except for their time range, which depends on the period."""
    label_of: Callable[[str], str | None] = field(default=lambda _: None)
    """Returns a session's label. If it returns None, the report shows the session's id or first day
    instead.
    """

    @property
    def workspace(self) -> str | None:
        return self.scope.workspace

    @property
    def title(self) -> str:
        workspace = self.workspace
        return f"Cost of {folder_name(workspace)}" if workspace else "Cost of all workspaces"

    def state_note(self) -> str:
        return pending_note(self.connection)

    def basis(self, times: TimeRange) -> str:
        return describe_basis(self.connection, self.prices, self._scope_in(times))

    def tallies(self, times: TimeRange, by: Sequence[CostKey]) -> Tallies:
        return tally_calls(self.connection, self.prices, self._scope_in(times), by)

    def recent_prompts(self, times: TimeRange) -> dict[tuple[str, str], SessionPrompts]:
        return _recent_prompts(self.connection, self._scope_in(times))

    def session_labels(self, sessions: Sequence[str]) -> Mapping[str, str]:
        labels = {session: self.label_of(session) or session for session in sessions}
        unnamed = [session for session, label in labels.items() if is_generated_id(label)]
        return {**labels, **_first_days(self.connection, unnamed)}

    def _scope_in(self, times: TimeRange) -> Scope:
        return msgspec.structs.replace(self.scope, times=times)


class Choice(NamedTuple):
    """A report's period and grouping."""

    period: Period
    by: PageKey = "model"
    since: str = ""
    until: str = ""
    """If `period` is `custom`, `since` and `until` are its first and last day."""

    def days(self, today: date) -> tuple[str | None, str | None]:
        """Return the period's first and last day, or None where it has no start or end."""
        if self.period == "custom":
            return self.since or None, self.until or None
        starts = {
            "today": today,
            "week": today - timedelta(days=today.weekday()),
            "month": today.replace(day=1),
        }
        start = starts.get(self.period)
        return None if start is None else start.isoformat(), None


def panel(source: PageSource, choice: Choice, files: Sequence[FileCost] = ()) -> Page:
    """Return a panel that shows one period and one grouping.

    Args:
        source: The calls.
        choice: The period and the grouping.
        files: The costs of prompt files, if the grouping is `file`.

    Raises:
        BadParamsError: A date is invalid.
    """
    found = _Report(source, choice)
    parts = [
        _head_html(source),
        "<form>",
        _radios("Period", "period", PERIODS, PERIODS, choice.period),
        _dates_html(choice) if choice.period == "custom" else "",
        _radios("Group by", "by", KEYS, PAGE_KEYS, choice.by),
        "</form>",
        found.summary_html(),
    ]
    if found.total.calls:
        parts.append(
            _file_table(files, source.workspace)
            if choice.by == "file"
            else found.table_html(choice.by)
        )
    return Page(title=source.title, html="".join(parts))


def whole_page(
    source: PageSource,
    files: Mapping[Period, Sequence[FileCost]],
    *,
    since: str | None = None,
    until: str | None = None,
) -> str:
    """Return the page for a file, with all groupings. If no range is given, it covers all periods.

    Args:
        source: The calls.
        files: The costs of prompt files, keyed by period. If there are none, the page does not
            mention prompt files.
        since: The range's start.
        until: The range's end.
    """
    keys = [key for key in source.keys if key != "file" or any(files.values())]
    periods: tuple[Period, ...] = ("custom",) if since or until else STANDING_PERIODS
    parts = [_head_html(source), "<form>"]
    if len(periods) > 1:
        parts.append(_radios("Period", "period", PERIODS, periods, "month"))
    else:
        period = range_text(since, until, source.zone, source.now).removeprefix("from")
        parts.append(f"<p>From{escape(period)}.</p>")
        parts.append('<input type="radio" id="period-custom" checked hidden>')
    parts.append(f"{_radios('Group by', 'by', KEYS, keys, 'model')}</form>")
    for period in periods:
        choice = Choice(period, since=since or "", until=until or "")
        found = _Report(source, choice)
        parts.append(f'<div class="choice period-{period}">{found.summary_html()}')
        for key in keys if found.total.calls else ():
            table = (
                _file_table(files.get(period, []), source.workspace)
                if key == "file"
                else found.table_html(key)
            )
            parts.append(f'<div class="choice by-{key}">{table}</div>')
        parts.append("</div>")
    return page_html(source.title, "".join(parts), STYLE + FILE_STYLE)


def _head_html(source: PageSource) -> str:
    as_of = source.now.astimezone(source.zone).strftime("%Y-%m-%d %H:%M:%S")
    note = " ".join(filter(None, (source.note, source.state_note())))
    note = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<h1>{escape(source.title)}</h1><p>As of {as_of}</p>{note}"


def _radios(
    title: str, name: str, labels: Mapping[str, str], keys: Iterable[str], chosen: str
) -> str:
    items = "".join(
        f'<label><input type="radio" name="{name}" value="{key}" id="{name}-{key}"'
        f"{' checked' if key == chosen else ''}><span>{labels[key]}</span></label>"
        for key in keys
    )
    return f"<fieldset><legend>{title}</legend>{items}</fieldset>"


def _dates_html(choice: Choice) -> str:
    inputs = "".join(
        f'<label>{title}<input type="date" name="{name}" id="{name}" value="{escape(value)}">'
        "</label>"
        for name, title, value in (("since", "From", choice.since), ("until", "to", choice.until))
    )
    return f"<fieldset><legend>Dates</legend>{inputs}</fieldset>"


class _Report:
    def __init__(self, source: PageSource, choice: Choice) -> None:
        self._source, self._choice = source, choice
        days = choice.days(source.now.astimezone(source.zone).date())
        self._times = time_range(*days, source.zone, source.now)
        # One query provides the numbers for the cards, the chart, and the tables by model and by
        # time.
        self._by_day = source.tallies(self._times, ("model", "day"))
        self.total = sum(self._by_day.values(), Tally())

    def summary_html(self) -> str:
        """Return cards with the totals, notes on the costs, and charts."""
        total, choice = self.total, self._choice
        if not total.calls:
            period = "" if choice.period == "all" else f" {PERIODS[choice.period].lower()}"
            period = " in this range" if choice.period == "custom" else period
            return f"<p>No calls recorded{period}. {self._source.how_recorded}</p>"
        buckets = total.buckets
        cards = [
            ("Cost", cost_text(total.cost_usd, is_partial=total.is_partial)),
            ("Calls", f"{total.calls:,}"),
            ("Tokens", f"{buckets.prompt + buckets.completion:,}"),
        ]
        body = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cards)
        parts = [
            ("Input", buckets.input),
            ("Cache writes", buckets.cache_writes),
            ("Cache reads", buckets.cache_read),
            ("Output", buckets.completion),
        ]
        notes = [*filter(None, (self._source.basis(self._times), derived_note(total)))]
        if total.unpriced_tokens:
            notes.append(
                f"{total.unpriced_tokens:,} tokens have no known price and are not in the cost."
            )
        return (
            f'<dl class="cards">{body}</dl>{parts_bar(parts, "Tokens by kind")}'
            + "".join(f"<p>{escape(note)}</p>" for note in notes)
            + self._spend_html()
            + self._growth_html()
        )

    def table_html(self, key: CostKey) -> str:
        """Return a table with the cost of each group, a total row, and the numbers as CSV."""
        groups, others, rest = self._groups(key)
        shown, names = list(groups.values()), list(groups)
        most = max((tally.cost for tally in shown), default=Decimal(0)) or Decimal(1)
        shares = [float(tally.cost / most) for tally in shown]
        rows = [[*name, *_numbers(tally)] for name, tally in zip(names, shown, strict=True)]
        labels = self._session_names(names) if key == "session" else [name for name, *_ in names]
        cells = [
            [label or "(none)", *_cells(tally)] for label, tally in zip(labels, shown, strict=True)
        ]
        if others:
            label = f"{others:,} others"
            cells.append([label, *_cells(rest)])
            rows.append([label, *[""] * (len(names[0]) - 1), *_numbers(rest)])
            shares.append(0.0)
        title = f"By {KEYS[key].lower()}"
        total = ["Total", *_cells(self.total)]
        heads = [KEYS[key], *_HEADS]
        table = table_html(f"Cost {title.lower()}", heads, cells, total, kind="wide", shares=shares)
        keys = ["session", "agent"] if key == "session" else [key]
        text = table_csv([*keys, *_CSV_HEADS], rows)
        return _section(title, table, text, f"cost-by-{key}.csv")

    def _groups(self, key: CostKey) -> TopGroups:
        """Return the tally for each value of a key.

        The value for a session consists of its id and its agent. Times are sorted in descending
        order. All other values are sorted by cost, highest first.
        """
        if key in ("agent", "user", "team", "session"):
            by: Sequence[CostKey] = ("session", "agent") if key == "session" else (key,)
            return self._source.costliest(self._times, by, _MOST_ROWS)
        found: Groups = {}
        for (model, day), tally in self._by_day.items():
            name = (model or "",) if key == "model" else (SPANS[key](day_number(str(day))),)
            found[name] = found.get(name, Tally()) + tally
        groups = (
            _by_cost(found.items()) if key == "model" else dict(sorted(found.items(), reverse=True))
        )
        return _first_groups(groups, _MOST_ROWS)

    def _spend_html(self) -> str:
        spent: dict[str, dict[str, Tally]] = {}
        for (model, day), tally in self._by_day.items():
            if tally.cost:
                spent.setdefault(model or "", {})[str(day)] = tally
        known = {day for days in spent.values() for day in days}
        if len(known) < 2:
            return ""
        unit, labels = _columns(known)
        places = {label: place for place, label in enumerate(labels)}
        dearest = sorted(
            spent, key=lambda model: -sum(tally.cost for tally in spent[model].values())
        )
        series = []
        for number, name in enumerate(dearest):
            if number < COLORS:
                series.append(Series(name or "(none)", [0.0] * len(labels), set()))
            elif number == COLORS:
                series[-1] = series[-1]._replace(name="other models")
            for date_name, tally in spent[name].items():
                place = places[SPANS[unit](day_number(date_name))]
                series[-1].values[place] += float(tally.cost)
                if tally.is_partial:
                    series[-1].partial.add(place)
        title = f"Spend by {unit}"
        table = table_html(
            title,
            [unit.capitalize(), "Model", "Cost"],
            [
                [label, each.name, cost_text(each.values[at], is_partial=at in each.partial)]
                for at, label in enumerate(labels)
                for each in series
                if each.values[at]
            ],
        )
        chart = stacked_columns(labels, series, f"{title}, in USD by model")
        table = details_html(f"{self._choice.period}-spend", table)
        return f"<section><h2>{title}</h2>{chart}{table}</section>"

    def _growth_html(self) -> str:
        prompts = self._source.recent_prompts(self._times)
        if not prompts:
            return ""
        names = self._session_names(list(prompts))
        values = list(prompts.values())
        series = [each.series(name) for name, each in zip(names, values, strict=True)]
        ends = ("first call", "last call of the longest session")
        table = table_html(
            "Context growth",
            ["Session", "Calls", "Largest prompt", "Last prompt", "Lost caches"],
            [
                [
                    name,
                    f"{len(each.sizes):,}",
                    compact_number(round(max(each.sizes))),
                    compact_number(round(each.sizes[-1])),
                    each.losses_text,
                ]
                for name, each in zip(names, values, strict=True)
            ],
        )
        table = details_html(f"{self._choice.period}-growth", table)
        return (
            "<section><h2>Context growth</h2><p>Prompt tokens of each call in the latest sessions. "
            "A vertical line marks a call that lost its cache."
            f"</p>{lines(series, ends, 'Prompt tokens of each call, by session')}{table}</section>"
        )

    def _session_names(self, sessions: Sequence[tuple[str, ...]]) -> list[str]:
        """Return each session's display name: its label or id, followed by its agent."""
        labels = self._source.session_labels([session for session, _ in sessions if session])
        names = []
        for session, agent in sessions:
            owner = "conversation" if agent == PROTOCOL else agent
            name = labels.get(session) or session or "no session"
            is_named = f"{name} ".startswith(f"{owner} ")
            names.append(name if is_named else f"{name} · {owner}")
        return names


def _by_cost(tallies: Iterable[tuple[tuple[str | None, ...], Tally]]) -> Groups:
    groups = {tuple(value or "" for value in name): tally for name, tally in tallies}
    return dict(sorted(groups.items(), key=lambda each: (-each[1].cost, each[0])))


def _first_groups(groups: Groups, most: int) -> TopGroups:
    items = list(groups.items())
    others = [tally for _name, tally in items[most:]]
    return TopGroups(dict(items[:most]), len(others), sum(others, Tally()))


def _tokens(tally: Tally) -> tuple[int, ...]:
    buckets = tally.buckets
    return buckets.input, buckets.cache_writes, buckets.cache_read, buckets.completion


def _numbers(tally: Tally) -> list[object]:
    """Return a tally's numbers for a CSV row."""
    return [tally.calls, *_tokens(tally), tally.cost_usd, tally.unpriced]


def _cells(tally: Tally) -> list[str]:
    """Return a tally's numbers as text for a table row."""
    cost = cost_text(tally.cost_usd, is_partial=tally.is_partial)
    return [f"{tally.calls:,}", *map(compact_number, _tokens(tally)), cost]


def _section(title: str, table: str, text: str, file: str) -> str:
    link = f'<a download="{file}" href="data:text/csv;charset=utf-8,{quote(text)}">CSV</a>'
    return f'<section><div class="tools"><h2>{title}</h2>{link}</div>{table}</section>'


def _mark(file: FileCost) -> str:
    return method_mark(file.method or "estimate")


def _file_cost_text(file: FileCost) -> str:
    if not file.requests:
        return ""
    is_partial, is_estimate = bool(file.unpriced), bool(_mark(file))
    return cost_text(file.cost_usd, is_partial=is_partial, is_estimate=is_estimate)


def _file_table(files: Sequence[FileCost], workspace: str | None) -> str:
    if not files:
        return "<section><h2>By prompt file</h2><p>No prompt files in this workspace.</p></section>"
    rows = [
        [
            _file_name(file.uri, workspace),
            "" if file.tokens is None else f"{_mark(file)}{compact_number(file.tokens)}",
            f"{file.requests:,}",
            "" if file.cached_percent is None else percent_text(file.cached_percent),
            _file_cost_text(file),
        ]
        for file in files
    ]
    heads = ["Prompt file", "Tokens", "Requests", "From cache", "Cost"]
    table = table_html("Cost by prompt file", heads, rows)
    about = "<p>Estimated: the file's share of the input cost of the requests that contain it.</p>"
    text = table_csv(
        ["uri", "tokens", "requests", "cached_percent", "cost_usd"],
        [[one.uri, one.tokens, one.requests, one.cached_percent, one.cost_usd] for one in files],
    )
    return _section("By prompt file", about + table, text, "cost-by-file.csv")


def _file_name(uri: str, workspace: str | None) -> str:
    """Return a file's path, relative to the workspace or to the home folder if possible."""
    for folder, short in ((workspace, ""), (Path.home().as_uri(), "~/")):
        if folder is not None and uri.startswith(f"{folder.rstrip('/')}/"):
            return short + unquote(uri[len(folder.rstrip("/")) + 1 :])
    return unquote(urlsplit(uri).path)


def _columns(names: Iterable[str]) -> tuple[CostKey, list[str]]:
    """Return a chart's time unit, and its column names in order."""
    days = every_day(names)
    span = len(days)
    unit: CostKey = "day" if span <= _MOST_DAYS else "week" if span <= 7 * _MOST_WEEKS else "month"
    return unit, list(dict.fromkeys(map(SPANS[unit], days)))


def _recent_prompts(
    connection: sqlite3.Connection, scope: Scope
) -> dict[tuple[str, str], SessionPrompts]:
    """Return the prompts in the latest sessions, keyed by session and agent.

    Only calls of the category `main` are included.
    """
    where, values = calls_condition(scope)
    rows = connection.execute(
        f"SELECT session.name, agent, {PROMPT_SQL}, loss FROM event "  # noqa: S608
        "JOIN session ON session.id = event.session JOIN kind ON kind.id = kind "
        f"WHERE {where} AND category = 'main' ORDER BY at DESC LIMIT {_MOST_CALLS}",
        values,
    )
    prompts: dict[tuple[str, str], list[tuple[float, int | None]]] = {}
    for name, agent, prompt, loss in rows:
        if (name, agent) in prompts or len(prompts) < COLORS:
            prompts.setdefault((name, agent), []).append((float(prompt), loss))
    return {
        session: SessionPrompts(
            [prompt for prompt, _ in found[::-1]],
            {at: LossCause(loss).text for at, (_, loss) in enumerate(found[::-1]) if loss},
        )
        for session, found in prompts.items()
    }


def _first_days(connection: sqlite3.Connection, sessions: Sequence[str]) -> dict[str, str]:
    """Return the first day of each session, keyed by session id."""
    scope, first = Scope(sessions=tuple(sessions)), dict[str, int]()
    for name, day in read_tallies(connection, scope, ("session", "day")) if sessions else ():
        first[name] = min(day, first.get(name, day))
    return {name: day_name(day) for name, day in first.items()}
