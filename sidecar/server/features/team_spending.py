"""Reads the team's spending if the team has caps."""

from __future__ import annotations

import logging
from functools import partial

from sidecar.errors import SidecarError
from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.services import Services
from sidecar.workspace.spending import has_team_caps, read_team
from sidecar.workspace.workspace import Event

logger = logging.getLogger(__name__)

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
                    self._services.begin_team_outage(workspace, error)
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
