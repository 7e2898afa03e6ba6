"""List the agents' files and folders to watch.

Agents that have not been used here are watched for the paths that their first use creates, without
loading their readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.agents.homes import has_files, possible_paths, project_files
from sidecar.agents.places import Places
from sidecar.agents.registry import agents_of, reader_of
from sidecar.agents.roots import Roots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.config.settings import Agents


def paths_to_watch(
    settings: Agents, folders: Iterable[str], places: Places | None = None
) -> tuple[str, ...]:
    """Return the paths to watch, existing or not. Blocking.

    Args:
        settings: The settings of agents.
        folders: The workspaces' folders.
        places: Where agents keep files; by default those of the current user.
    """
    places, roots = places or Places.of(settings), Roots.of(folders)
    paths: list[str] = []
    for agent in agents_of(settings):
        if has_files(places, agent, roots.paths):
            paths += (*reader_of(agent).folders(places), *project_files(agent, roots.paths))
        else:
            paths += possible_paths(places, agent, roots.paths)
    return tuple(dict.fromkeys(paths))
