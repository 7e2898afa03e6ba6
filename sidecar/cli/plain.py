"""`check PATH…` and `count PATH…` without any option, which need nobody to read their arguments."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from sidecar.cli.streams import echo, forgive

_VERBS = ("check", "count")


def is_plain(arguments: Sequence[str]) -> bool:
    """Whether they are such a verb and paths only (on Windows click expands those)."""
    verb, paths = arguments[:1], arguments[1:]
    options = any(path.startswith("-") and path != "-" for path in paths)
    return bool(paths) and verb[0] in _VERBS and not options and os.name != "nt"


def run_plain(verb: str, *paths: str) -> int:
    """Run the verb; the exit code. Interrupted, or with nobody who reads on, it ends as click's
    verbs do."""
    forgive()
    try:
        if verb == "count":
            return _count(paths)
        code = _again(paths)
        return _check(paths) if code is None else code
    except (EOFError, KeyboardInterrupt):
        echo("\nAborted!", err=True)
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # What Python flushes when it ends would fail, and be told, once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _count(paths: Sequence[str]) -> int:
    from sidecar.cli.counting import run
    from sidecar.cli.output import prepare

    prepare()
    return run(paths)


def _check(paths: Sequence[str]) -> int:
    from sidecar.cli.checking.verb import checked
    from sidecar.cli.output import prepare

    prepare()
    return checked(paths)


def _again(paths: Sequence[str]) -> int | None:
    """Print what the last run printed, where that still holds; its exit code."""
    from sidecar.cli.checking.again import again

    if not (printed := again(paths)):
        return None
    echo(printed.out)
    for line in printed.err:
        echo(line, err=True)
    return printed.code
