"""Which of the agents' files to watch.

Only readers of agents that have been used here are loaded. Of the others the paths that their first
use creates are watched for.
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
    """Return the files and folders of the agents, existing or not, for some workspaces' folders.

    Blocking. `places` are those of the user who runs this process by default.
    """
    places, roots = places or Places.of(settings), Roots.of(folders)
    paths: list[str] = []
    for agent in agents_of(settings):
        if has_files(places, agent, roots.paths):
            paths += (*reader_of(agent).folders(places), *project_files(agent, roots.paths))
        else:
            paths += possible_paths(places, agent, roots.paths)
    return tuple(dict.fromkeys(paths))
