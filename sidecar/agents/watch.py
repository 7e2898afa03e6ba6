"""Lists the agents' files and folders to watch.

For agents that have not been used, these are the paths that their first use creates. Their
readers are not loaded.
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
    """Return the paths to watch, whether or not they exist. Blocking.

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
