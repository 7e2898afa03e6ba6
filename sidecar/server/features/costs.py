"""Answers `cost/*`, and in the background prices calls, adds up their costs, ships them and reads a
team's spending.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from sidecar.config.paths import LEDGER_FILES, STORED_LIST
from sidecar.config.settings import Settings, Team
from sidecar.errors import SidecarError
from sidecar.models import catalogue
from sidecar.project.file_watcher import Changes, FileWatcher, FollowedPaths
from sidecar.server.protocol import Encoded, Feature
from sidecar.tasks import Scheduler, backoff
from sidecar.text.printable import local_time_text
from sidecar.workspace.agent_sessions import AgentSessionWatcher, ShowProgress
from sidecar.workspace.services import Services
from sidecar.workspace.spending import Spending, has_team_caps, read_team
from sidecar.workspace.views import NO_COST
from sidecar.workspace.workspace import Event, Workspace, workspace_remotes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.cost.cost_page import Choice
    from sidecar.cost.cost_protocol import (
        CostDetailParams,
        CostFilesParams,
        CostPageParams,
        CostRecorded,
        CostRecordParams,
        CostReport,
        FileCost,
    )
    from sidecar.cost.shipping import Collector, ShippingQueue
    from sidecar.cost.team import TeamStoreError
    from sidecar.text.pages import Page
    from sidecar.workspace.sessions import SessionsSnapshot
    from sidecar.workspace.spending import TeamOutage

logger = logging.getLogger(__name__)

NO_TEAM = "The team's store contains no matching calls."
INCOMPLETE = "Some session files of agents have not been read yet, so this report is incomplete."
INCOMPLETE_BEFORE = (
    "Some session files of agents have not been read yet: calls before {} may be missing."
)

MAIN = "main"
"""The category of calls made directly by a conversation."""


def _read_team(team: Team, spending: Spending, params: CostDetailParams) -> CostReport:
    from sidecar.cost.team import TeamStore

    with TeamStore(team, spending.book.prices) as store:
        costs = store.report(params)
    return costs if costs.rows else msgspec.structs.replace(costs, text=NO_TEAM, overview=NO_TEAM)


def _note(workspace: Workspace) -> str:
    if workspace.costs.read or workspace.path is None:
        return ""
    if workspace.costs.problem or workspace.costs.unread is None:
        return workspace.costs.problem or INCOMPLETE
    return INCOMPLETE_BEFORE.format(local_time_text(workspace.costs.unread.before))


def _begin_team_outage(
    services: Services, workspace: Workspace, error: TeamStoreError
) -> TeamOutage:
    """Show that the team's store is unavailable, until it has been read successfully."""
    is_new = workspace.costs.team_outage is None
    outage = workspace.costs.set_team_outage(is_unreachable=error.is_unreachable)
    if is_new:
        services.publish(Event("ledger", workspace))
    return outage


class CostRequests(Feature):
    """Answers `cost/*` on worker threads, with progress and cancellation."""

    def __init__(
        self,
        services: Services,
        show_progress: ShowProgress,
        agent_sessions: AgentSessionWatcher,
    ) -> None:
        self._services, self._show_progress = services, show_progress
        self._agent_sessions = agent_sessions
        self.handlers = {
            "cost/record": self._record,
            "cost/detail": self._detail,
            "cost/page": self._page,
            "cost/files": self._files,
        }

    async def _record(self, params: CostRecordParams) -> CostRecorded:
        services = self._services
        await services.configured.wait()
        workspace = services.workspace(params.workspace)
        sessions = services.known_sessions(workspace)
        session = sessions.id_to_bill(params.session) if sessions else params.session
        estimate = params.estimated_tokens
        if estimate is None and sessions and session and params.category == MAIN:
            await services.conversations(workspace).recount(session)
            estimate = sessions.sent_estimate(session)
        completed = msgspec.structs.replace(params, session=session, estimated_tokens=estimate)
        record = partial(services.spending(workspace).record, completed)
        recorded, spent = await services.workers.run(record)
        services.update_costs(workspace, spent)
        return recorded

    async def _detail(self, params: CostDetailParams) -> CostReport | Encoded:
        services = self._services
        await services.configured.wait()
        if params.scope == "team":
            return await self._team_detail(params)
        workspace = services.workspace(params.workspace)
        stop, spending = threading.Event(), services.spending(workspace)
        async with self._show_progress("Cost report") as report:

            def work(note: str) -> Encoded:
                costs = spending.detail(params, stop.is_set)
                if not costs.rows:
                    text = workspace.costs.problem or NO_COST
                    costs = msgspec.structs.replace(costs, text=text, overview=text)
                notes = " ".join(filter(None, (note, costs.note)))
                return Encoded.of(msgspec.structs.replace(costs, note=notes))

            await self._agent_sessions.ensure_all_read(workspace, report)
            try:
                return await services.workers.run(partial(work, _note(workspace)))
            except asyncio.CancelledError:
                stop.set()
                raise

    async def _team_detail(self, params: CostDetailParams) -> CostReport:
        from sidecar.cost.team import TeamStoreError

        workspace = self._services.find_workspace_or_first(params.workspace)
        team, spending = workspace.settings.team, self._services.spending(workspace)
        try:
            costs = await self._services.workers.run(partial(_read_team, team, spending, params))
        except TeamStoreError as error:
            if team.store is None or not error.is_unreachable:
                raise
            outage = _begin_team_outage(self._services, workspace, error)
            raise TeamStoreError(f"Team store {outage.text}") from None
        if workspace.costs.set_team(workspace.costs.team):  # an outage has ended
            self._services.publish(Event("ledger", workspace))
        return costs

    async def _page(self, params: CostPageParams) -> Page:
        services = self._services
        await services.configured.wait()
        workspace = services.workspace(params.workspace)
        async with self._show_progress("Cost report") as report:
            await self._agent_sessions.ensure_all_read(workspace, report)
            await services.agents.ensure_older_sessions(workspace)
            return await self._cost_page(workspace, params, _note(workspace))

    async def _cost_page(self, workspace: Workspace, params: CostPageParams, note: str) -> Page:
        from sidecar.cost.cost_page import Choice
        from sidecar.cost.cost_protocol import CostFilesParams
        from sidecar.cost.days import FIRST_DAY
        from sidecar.workspace.prompt_files import file_costs

        services = self._services
        choice = Choice(params.period, params.by, params.since or "", params.until or "")
        files: Sequence[FileCost] = ()
        if params.by == "file":
            since, until = choice.days(datetime.now().astimezone().date())
            times = CostFilesParams(since=since or FIRST_DAY, until=until)
            files = await file_costs(services, workspace, times)
        spending = services.spending(workspace)
        sessions = services.sessions(workspace).snapshot(every=True)
        return await services.workers.run(
            partial(_read_page, spending, choice, files, sessions, note)
        )

    async def _files(self, params: CostFilesParams) -> list[FileCost]:
        from sidecar.workspace.prompt_files import file_costs

        await self._services.configured.wait()
        workspace = self._services.workspace(params.workspace)
        async with self._show_progress("Prompt file costs") as report:
            await self._agent_sessions.ensure_all_read(workspace, report)
            return await file_costs(self._services, workspace, params)


def _read_page(
    spending: Spending,
    choice: Choice,
    files: Sequence[FileCost],
    sessions: SessionsSnapshot,
    note: str,
) -> Page:
    from sidecar.cost.cost_page import LedgerSource, panel

    book = spending.book
    with book.report_reader() as connection:
        now = datetime.now(UTC)
        source = LedgerSource(
            connection=connection,
            prices=book.prices,
            scope=spending.scope(),
            now=now,
            label_of=sessions.label,
            note=note,
        )
        return panel(source, choice, files)


DELAY_SECONDS = 0.5
"""Delay before recorded calls are priced again after a change of settings."""
PAUSE_RATIO = 3.0
"""How long to pause between batches of calls to price, relative to the time that a batch takes."""


class CallPricing(Feature):
    """Prices calls whose prices have changed, and shows progress."""

    def __init__(
        self, services: Services, scheduler: Scheduler, show_progress: ShowProgress
    ) -> None:
        self._services, self._scheduler = services, scheduler
        self._show_progress = show_progress
        self._stop = threading.Event()

    def on_event(self, event: Event) -> None:
        # Without a price list, calls cannot be priced. Another event follows when it is loaded.
        if event.what in ("settings", "shared ledger") and self._services.windows.ready:
            self._scheduler.schedule(("pricing",), DELAY_SECONDS, self._price)

    def close(self) -> None:
        """Stop. The next process continues where this one stopped."""
        self._stop.set()

    async def _price(self) -> None:
        workspace = next((root for root in self._services.roots if root.has_settings), None)
        if workspace is None:
            return
        repricing = await self._services.workers.run(
            partial(import_module, "sidecar.cost.repricing")
        )
        if await self._services.load_prices():  # another process has downloaded a new list
            self._services.publish(Event("settings"))
        ledger, stop = self._services.spending(workspace).book.ledger, threading.Event()
        self._stop = stop
        async with self._show_progress("Computing costs", stop) as report:
            work = partial(
                repricing.price_calls, ledger, stop,
                rest=PAUSE_RATIO, progress=partial(report, "pricing calls"),
            )  # fmt: skip
            try:
                is_changed = await self._services.workers.run(work)
            except asyncio.CancelledError:
                stop.set()
                raise
            except SidecarError as error:  # the next start continues
                logger.warning("cannot price recorded calls: %s", error)
                return
        if is_changed:
            self._services.publish(Event("calls"))


SUM_SECONDS = 0.5
"""Delay before costs are added up after a change to the ledger."""


class CostSums(Feature):
    """Adds up costs when calls, prices, caps, the shown session or the git branch change.

    The shown session's costs are added up each time, those of all sessions after a change of
    settings. There is one job per root, so that an unresponsive disk delays only one root.
    """

    def __init__(self, services: Services, scheduler: Scheduler, watcher: FileWatcher) -> None:
        self._services, self._scheduler = services, scheduler
        self._followed = FollowedPaths(watcher)
        self._summed: WeakKeyDictionary[Workspace, str] = WeakKeyDictionary()
        """The id of the session that each workspace showed when costs were last added up."""

    def on_event(self, event: Event) -> None:
        if event.what == "calls":
            for workspace in (event.workspace,) if event.workspace else self._workspaces():
                self._add_up_soon(workspace)
        elif event.what == "settings":
            self._watch_files()
            if self._services.windows.ready:  # otherwise, another event follows
                for workspace in self._workspaces():
                    add_up = partial(self._add_up, workspace, every=True)
                    self._scheduler.run_now(("spent", workspace), add_up)
        elif event.what == "context" and event.workspace is not None:
            self._context_changed(event.workspace)

    def _workspaces(self) -> list[Workspace]:
        return [root for root in self._services.roots if root.has_settings]

    def _context_changed(self, workspace: Workspace) -> None:
        """Add up costs if another agent's session is shown."""
        usage = workspace.context.usage
        if usage is None or usage.session is None or usage.session.source == "protocol":
            return
        if usage.session.id != self._summed.get(workspace, usage.session.id):
            self._add_up_soon(workspace)

    def _add_up_soon(self, workspace: Workspace, seconds: float = SUM_SECONDS) -> None:
        # Does not replace a job that is pending, because that may be for all sessions.
        add_up = partial(self._add_up, workspace)
        self._scheduler.schedule(("spent", workspace), seconds, add_up)

    async def _add_up(self, workspace: Workspace, *, every: bool = False) -> None:
        """Add up the costs of a workspace and of the shown session, and publish them."""
        session = self._summed[workspace] = workspace.shown_session
        spending = self._services.spending(workspace)
        # Errors are reported when a client requests costs.
        work = partial(spending.stored_sums, session, every=every)
        self._services.update_costs(workspace, await self._services.workers.run(work))

    def _watch_files(self) -> None:
        """Watch the ledger and the price list for changes elsewhere, and git for checkouts."""
        folders = tuple(str(root.path) for root in self._services.roots if root.path is not None)
        state = self._services.state.folder
        ledger = tuple(str(state / name) for name in (*LEDGER_FILES, STORED_LIST))
        self._followed.follow(
            "ledger", folders, lambda: (*ledger, *_head_files(folders)), self._files_changed
        )

    def _files_changed(self, changes: Changes) -> None:
        self._scheduler.schedule(("ledger",), SUM_SECONDS, self._read_changed_ledger)
        if changes is None or any(os.path.basename(path) == "HEAD" for path in changes):
            for workspace in self._services.roots:
                if workspace.costs.sums.calls:
                    self._add_up_soon(workspace)

    async def _read_changed_ledger(self) -> None:
        if not self._services.windows.ready:
            return  # all costs are added up once the prices are loaded
        spendings = [self._services.spending(workspace) for workspace in self._services.roots]
        try:
            changed = await self._services.workers.run(partial(_has_changed, spendings))
        except SidecarError:  # the error is reported when a client requests costs
            return
        if changed:
            for workspace in self._workspaces():
                self._add_up_soon(workspace, 0.0)
            # Another process may have downloaded new prices.
            self._services.publish(Event("shared ledger"))


def _has_changed(spendings: list[Spending]) -> bool:
    """Return whether another process has written to a ledger or downloaded new prices.

    Raises LedgerError.
    """
    ledgers = {spending.book.ledger for spending in spendings}
    # Do not stop at the first change, because each check resets the state of one ledger.
    changed = [ledger.changed_elsewhere() for ledger in ledgers]
    return any(changed) or catalogue.is_outdated()


def _head_files(folders: Iterable[str]) -> list[str]:
    from sidecar.agents.branches import head_file

    return [path for path in map(head_file, folders) if path is not None]


SHIP_SECONDS = 15.0
"""How often recorded calls are sent to a collector."""
LONGEST_SHIP_SECONDS = 900.0
"""Maximum delay after failed attempts to send calls."""
SHIP_BATCH = 100
"""Maximum number of calls in a request to a collector."""
SHIP_PAUSE_SECONDS = 1.0
"""Pause between requests, so that sending a large backlog does not slow down typing."""


class CallShipping(Feature):
    """Sends recorded calls to the user's collector, at low priority."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler
        self._failures = 0
        self._opened: tuple[Settings, ShippingQueue, Mapping[str, str]] | None = None
        self._warned: set[str] = set()

    def on_event(self, event: Event) -> None:
        if event.what != "settings" or self._workspace() is None:
            return
        if self._failures:  # the new settings may have fixed the cause
            self._failures = 0
            self._scheduler.run_now(("shipping",), self._ship)
        else:
            self._scheduler.schedule(("shipping",), SHIP_SECONDS, self._ship)

    def _workspace(self) -> Workspace | None:
        roots = self._services.roots
        return next((root for root in roots if root.settings.ledger.otel_endpoint), None)

    async def _ship(self) -> None:
        workspace = self._workspace()
        if workspace is None:
            return
        delay = LONGEST_SHIP_SECONDS  # used if the run raises an unexpected exception
        try:
            await self._ship_queued(workspace)
            self._failures, delay = 0, SHIP_SECONDS
            self._show_problem("")
        except SidecarError as error:
            # The ledger may have been replaced, or the token: the next run opens and reads them.
            self._opened = None
            self._failures += 1
            if self._failures == 1:
                logger.warning("cannot send calls to the collector: %s", error)
            self._show_problem(str(error))
            delay = SHIP_SECONDS + backoff(self._failures, SHIP_SECONDS, LONGEST_SHIP_SECONDS)
            delay = max(delay, getattr(error, "retry_after", 0.0))
        finally:
            self._scheduler.schedule(("shipping",), delay, self._ship)

    def _show_problem(self, problem: str) -> None:
        """Show why calls are not sent in the status of all workspaces."""
        for root in tuple(self._services.roots):
            if root.costs.set_shipping_problem(problem):
                self._services.publish(Event("ledger", root))

    async def _ship_queued(self, workspace: Workspace) -> None:
        run, settings = self._services.workers.run, workspace.settings
        shipping, repricing = [
            await run(partial(import_module, f"sidecar.cost.{name}"))
            for name in ("shipping", "repricing")
        ]
        if self._opened is None or self._opened[0] != settings:
            spending = self._services.spending(workspace)
            open_queue = partial(shipping.open_queue, spending.book, settings, workspace_remotes)
            queue = await run(open_queue)
            # A command that prints the token may ask the user, so it does not run every time.
            self._opened = settings, queue, await run(partial(shipping.read_headers, settings))
        _settings, queue, headers = self._opened
        # Calls without a price are not sent.
        await run(partial(repricing.price_new_calls, queue.ledger))
        resource = queue.identity.resource()
        async with shipping.open_collector(resource, settings, run, headers) as collector:
            shipped = await shipping.ship(
                queue, collector, run, limit=SHIP_BATCH, pause=SHIP_PAUSE_SECONDS
            )
            if shipped.rejected:
                self._warn_once("calls", shipped.reason)
            if reason := await shipping.send_day_report(queue, collector, run):
                self._warn_once("the totals of each day", reason)
            for root in tuple(self._services.roots):
                await self._ship_files(root, queue, collector)

    async def _ship_files(
        self, workspace: Workspace, queue: ShippingQueue, collector: Collector
    ) -> None:
        """Once a day, report the cost of a workspace's prompt files."""
        from sidecar.cost.cost_protocol import CostFilesParams
        from sidecar.cost.shipping import send_report
        from sidecar.workspace.prompt_files import file_costs, file_records

        run, uri = self._services.workers.run, workspace.uri
        if uri is None or await run(partial(queue.has_report, uri)):
            return
        opened = [root.uri for root in self._services.roots if root.uri is not None]
        workspaces = {*(await run(queue.reported_workspaces)), *opened}
        params = CostFilesParams()
        files = await file_costs(self._services, workspace, params, reported=workspaces)
        records = file_records(files, uri, queue.identity)
        if reason := await send_report(queue, collector, run, uri, records):
            self._warn_once("the costs of prompt files", reason)

    def _warn_once(self, what: str, reason: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("the collector rejected %s: %s", what, reason)


FIRST_SECONDS = 5.0
"""Delay before the team's store is read for the first time."""
INTERVAL_SECONDS = 300.0
"""How often the team's store is read again."""


class TeamSpending(Feature):
    """Reads the team's spending if the team has caps, and shows outages of the team's store."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler
        self._has_read = self._is_reported = False

    def on_event(self, event: Event) -> None:
        roots = self._services.roots
        if event.what == "settings" and (
            self._is_needed() or any(root.costs.team for root in roots)
        ):
            if self._has_read:
                self._scheduler.run_now(("team",), self._read)
            else:
                self._scheduler.schedule(("team",), FIRST_SECONDS, self._read)
        elif event.what == "ledger" and any(root.costs.team_outage for root in roots):
            self._scheduler.schedule(("team",), INTERVAL_SECONDS, self._read)

    async def _read(self) -> None:
        self._has_read = True
        for workspace in tuple(self._services.roots):
            after_outage = workspace.costs.team_outage is not None
            read = partial(read_team, workspace.settings, after_outage=after_outage)
            try:
                spent = await self._services.workers.run(read)
            except SidecarError as error:
                from sidecar.cost.team import TeamStoreError

                if isinstance(error, TeamStoreError) and workspace.settings.team.store:
                    _begin_team_outage(self._services, workspace, error)
                if not self._is_reported:
                    self._is_reported = True
                    logger.warning("cannot read the team's costs: %s", error)
                continue
            self._is_reported = False
            if workspace.costs.set_team(spent):
                self._services.publish(Event("ledger", workspace))
        if self._is_needed():
            self._scheduler.schedule(("team",), INTERVAL_SECONDS, self._read)

    def _is_needed(self) -> bool:
        return any(
            has_team_caps(root.settings) or root.costs.team_outage for root in self._services.roots
        )
