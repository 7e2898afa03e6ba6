"""Stops the server when the client process exits, even if the pipe stays open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sidecar.operating_system import is_alive, open_process

if TYPE_CHECKING:
    from sidecar.tasks import Scheduler

POLL_SECONDS = 3.0


def watch_process(process_id: int | None, ended: Callable[[], None], scheduler: Scheduler) -> None:
    """Call `ended` on the event loop when the process has exited.

    A process that is not found is not watched, because the client may run on another machine
    or in a container.
    """
    if process_id is None or not is_alive(process_id):
        return
    loop = asyncio.get_running_loop()
    if (descriptor := open_process(process_id)) is not None:
        loop.add_reader(descriptor, _on_ended, loop, descriptor, ended)
        return

    def poll() -> None:
        if is_alive(process_id):
            scheduler.schedule(("client process",), POLL_SECONDS, poll)
        else:
            ended()

    scheduler.schedule(("client process",), POLL_SECONDS, poll)


def _on_ended(loop: asyncio.AbstractEventLoop, descriptor: int, ended: Callable[[], None]) -> None:
    loop.remove_reader(descriptor)
    os.close(descriptor)
    ended()
