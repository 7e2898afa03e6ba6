"""Runs git in a repository whose own configuration is hostile data: none of it is executed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sidecar.errors import SidecarError

TIMEOUT_SECONDS = 120.0
"""A FIFO in the place of an ignore or attributes file would keep git waiting for good."""

_PROGRAM = "git.exe" if os.name == "nt" else "git"
_OPTIONS = (
    "--no-pager",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.quotePath=false"),
    # A folder of the checkout that is laid out as a bare repository is not taken for one.
    *("-c", "safe.bareRepository=explicit"),
)
# Submodules have a configuration of their own, which git would act on in a process of its own.
_OF_VERB = {
    "diff": ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all"),
    "status": ("--ignore-submodules=all",),
}
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # for a git that does not know GIT_NO_LAZY_FETCH
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}


class GitError(SidecarError):
    """There is no git, or it refused; the text is its own."""

    kind = "config"


def run(folder: Path, verb: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """What git prints for a verb in `folder`. Blocks; raises GitError."""
    git = find_git(folder)
    if git is None:
        raise GitError("there is no git on the PATH")
    off = _filters_off(git, folder)
    ran = _call(git, folder, *off, verb, *_OF_VERB.get(verb, ()), *arguments, stdin=stdin)
    if ran.returncode != 0:
        raise GitError(ran.stderr.decode("utf-8", "replace").strip())
    return ran.stdout


def find_git(folder: Path) -> str | None:
    """The absolute path of the git on PATH, never one that the repository of `folder` holds."""
    own = _repository(folder)
    for entry in filter(os.path.isabs, os.get_exec_path()):
        path = Path(entry).resolve() / _PROGRAM
        if own and (path.is_relative_to(own) or path.resolve().is_relative_to(own)):
            continue
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return str(path)
    return None


def _repository(folder: Path) -> Path | None:
    """The top of the outermost work tree around a folder, else the folder itself.

    What the user's home lies in is no repository in this sense: None where nothing else is left.
    """
    folder = folder.resolve()
    home = Path("~").expanduser().resolve()
    around = [each for each in (folder, *folder.parents) if not home.is_relative_to(each)]
    tops = [each for each in around if (each / ".git").exists()]
    return tops[-1] if tops else next(iter(around), None)


def _filters_off(git: str, folder: Path) -> list[str]:
    """Options that empty each filter of the configuration: git has none against all of them.

    They run where git compares a file of the work tree with its blob.
    """
    listed = _call(git, folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.")
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    if any("=" in name for name in names):
        raise GitError("a filter in git's configuration has = in its name")
    return [word for name in names for word in ("-c", f"{name}=")]


def _call(
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
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git did not answer within {TIMEOUT_SECONDS:g} seconds") from error
    except OSError as error:
        raise GitError(f"git could not be run: {error.strerror}") from error


def tracked_files(folder: str) -> tuple[str, ...] | None:
    """Their paths below `folder`, relative to it; none outside of a work tree of git.

    None where git is missing or refuses to say. Blocking. Which of them are ignored git is not
    asked: a FIFO in the place of a `.gitignore` would hold it up.
    """
    if not _is_in_work_tree(Path(os.path.abspath(folder))):
        return ()
    from sidecar.workspace import git

    try:
        listed = git.run(Path(folder), "ls-files", "-z", "--cached")
    except git.GitError:
        return None
    return tuple(os.fsdecode(name).replace("/", os.sep) for name in listed.split(b"\0") if name)


def _is_in_work_tree(folder: Path) -> bool:
    return any(os.path.exists(each / ".git") for each in (folder, *folder.parents))
