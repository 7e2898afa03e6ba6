"""`check PATH…` and `count PATH…` without any option, which need nobody to read their arguments."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERBS = ("check", "count")


def is_plain(arguments: Sequence[str]) -> bool:
    """Whether they are such a verb and paths only (on Windows click expands those)."""
    verb, paths = arguments[:1], arguments[1:]
    options = any(path.startswith("-") and path != "-" for path in paths)
    return bool(paths) and verb[0] in _VERBS and not options and os.name != "nt"


def run_plain(verb: str, *paths: str) -> int:
    """Run the verb; the exit code. Interrupted, or with nobody who reads on, it ends as click's
    verbs do."""
    from sidecar.cli.output import echo, prepare

    prepare()
    try:
        return _run(verb, paths)
    except (EOFError, KeyboardInterrupt):
        echo("\nAborted!", err=True)
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # What Python flushes when it ends would fail, and be told, once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _run(verb: str, paths: Sequence[str]) -> int:
    if verb == "count":
        from sidecar.cli.counting import run

        return run(paths)
    from sidecar.cli.checking.verb import checked

    return checked(paths)
