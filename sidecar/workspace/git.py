"""Runs git without executing programs configured in the repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sidecar.errors import SidecarError
from sidecar.operating_system import NO_WINDOW, PROGRAM_SUFFIX

TIMEOUT_SECONDS = 120.0
"""Time limit for git. For example, git would wait forever if `.gitignore` were a FIFO."""

_PROGRAM = f"git{PROGRAM_SUFFIX}"
_OPTIONS = (
    "--no-pager",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.quotePath=false"),
    # Ignore subfolders that look like bare repositories.
    *("-c", "safe.bareRepository=explicit"),
)
# Skip submodules: git would run another process with the submodule's configuration.
_VERB_OPTIONS = {
    "diff": ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all"),
    "status": ("--ignore-submodules=all",),
}
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # for versions of git without GIT_NO_LAZY_FETCH
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}


class GitError(SidecarError):
    """git is missing or has failed. The message is git's error message if there is one."""

    kind = "config"


def run(folder: Path, verb: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run a git command in a folder and return its output. Raises GitError."""
    git = find_git(folder)
    if git is None:
        raise GitError("git is not on the PATH")
    off = _filter_options(git, folder)
    ran = _run_git(git, folder, *off, verb, *_VERB_OPTIONS.get(verb, ()), *arguments, stdin=stdin)
    if ran.returncode != 0:
        raise GitError(ran.stderr.decode("utf-8", "replace").strip())
    return ran.stdout


def find_git(folder: Path) -> str | None:
    """Return the git executable's path. Executables inside the repository are ignored."""
    own = _find_repository(folder)
    for entry in filter(os.path.isabs, os.get_exec_path()):
        path = Path(entry).resolve() / _PROGRAM
        if own and (path.is_relative_to(own) or path.resolve().is_relative_to(own)):
            continue
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return str(path)
    return None


def _find_repository(folder: Path) -> Path | None:
    """Return the outermost work tree that contains the folder. Defaults to the folder itself.

    Work trees that contain the user's home folder are ignored. Returns None if the folder itself
    is or contains the home folder.
    """
    folder = folder.resolve()
    home = Path("~").expanduser().resolve()
    around = [each for each in (folder, *folder.parents) if not home.is_relative_to(each)]
    tops = [each for each in around if (each / ".git").exists()]
    return tops[-1] if tops else next(iter(around), None)


def _filter_options(git: str, folder: Path) -> list[str]:
    """Return options that disable all filters in git's configuration.

    git runs filters when it compares a file with its blob. There is no option to disable all
    filters at once.
    """
    listed = _run_git(git, folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.")
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    if any("=" in name for name in names):
        raise GitError("a filter name in git's configuration contains =")
    return [word for name in names for word in ("-c", f"{name}=")]


def _run_git(
    git: str, folder: Path, *arguments: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(  # noqa: S603 - git by its absolute path, a list, no shell
            [git, "-C", str(folder), *_OPTIONS, *arguments],
            env=os.environ | _ENVIRONMENT,
            input=stdin,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
            creationflags=NO_WINDOW,
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git did not answer within {TIMEOUT_SECONDS:g} seconds") from error
    except OSError as error:
        raise GitError(f"git could not be run: {error.strerror}") from error


def tracked_files(folder: str) -> tuple[str, ...] | None:
    """Return the tracked files in a folder, as relative paths. This function blocks.

    Returns an empty tuple outside a work tree, or None if git fails.
    """
    if not _is_in_work_tree(Path(os.path.abspath(folder))):
        return ()
    try:
        listed = run(Path(folder), "ls-files", "-z", "--cached")
    except GitError:
        return None
    return tuple(os.fsdecode(name).replace("/", os.sep) for name in listed.split(b"\0") if name)


def _is_in_work_tree(folder: Path) -> bool:
    return any(os.path.exists(each / ".git") for each in (folder, *folder.parents))
