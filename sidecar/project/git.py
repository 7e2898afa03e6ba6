"""Runs git without executing programs configured in the repository, and lists its files."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sidecar.errors import SidecarError
from sidecar.operating_system import NO_WINDOW, PROGRAM_SUFFIX

TIMEOUT_SECONDS = 30.0
"""Time limit for git. A hostile `.gitignore` can keep git busy for ever."""
SLOW_SECONDS = 1.0
"""Time after which `.gitignore` files are examined, because git waits for ever for a FIFO."""

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
LOCAL_VARIABLES = frozenset(
    {
        *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_CONFIG_COUNT"),
        *("GIT_CONFIG_PARAMETERS", "GIT_DIR", "GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE"),
        *("GIT_INDEX_FILE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_NO_REPLACE_OBJECTS"),
        *("GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE"),
        *("GIT_WORK_TREE",),
    }
)
"""The variables that belong to one repository (`git rev-parse --local-env-vars`).

git sets some of them in hooks. They would make git read another repository's files.
"""
_PATHSPEC_VARIABLES = frozenset(
    f"GIT_{kind}_PATHSPECS" for kind in ("LITERAL", "GLOB", "NOGLOB", "ICASE")
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # for versions of git without GIT_NO_LAZY_FETCH
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",  # because messages are compared
}
_NO_REPOSITORY = b"not a git repository (or any "


class GitError(SidecarError):
    """git is missing or has failed. The message is git's error message if there is one."""

    kind = "config"


def run(folder: Path, verb: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run a git command in a folder and return its output. Raises GitError."""
    ran = _run_verb(folder, verb, *arguments, stdin=stdin)
    if ran.returncode != 0:
        raise GitError(_message(ran))
    return ran.stdout


def resolve_tree(folder: Path, base: str) -> str:
    """Return the id of the tree of a revision that a folder's files are compared with.

    `main...HEAD` stands for the commit where HEAD branched off, as in `git diff`.

    Raises:
        GitError: There is no such revision. The message says what to do.
    """
    name, dots, end = base.partition("...")
    if end not in ("", "HEAD") or ".." in name:
        first = name.partition("..")[0] or "main"
        raise GitError(
            f"files are compared as they are on disk; name one revision, such as {first} "
            f"or {first}...HEAD"
        )
    if dots:
        commit = _rev_parse(folder, f"{name or 'HEAD'}^{{commit}}")
        ran = _run_verb(folder, "merge-base", commit, "HEAD")
        if ran.returncode != 0:
            reason = _message(ran) or f"{name} and HEAD have no common commit"
            raise GitError(reason + _shallow_hint(folder))
        name = ran.stdout.decode().strip()
    return _rev_parse(folder, f"{name}^{{tree}}")


def _rev_parse(folder: Path, name: str) -> str:
    # With --end-of-options, git cannot mistake a name for an option or a path.
    ran = _run_verb(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    if ran.returncode != 0:
        reason = _message(ran) or "the repository has no such revision"
        raise GitError(reason + _shallow_hint(folder))
    return ran.stdout.decode().strip()


def _shallow_hint(folder: Path) -> str:
    """Say how to get the revisions that a shallow clone lacks."""
    if _run_verb(folder, "rev-parse", "--is-shallow-repository").stdout.strip() != b"true":
        return ""
    return (
        "; this is a shallow clone, so set `fetch-depth: 0` for actions/checkout, or run "
        "`git fetch --unshallow`"
    )


def _run_verb(
    folder: Path, verb: str, *arguments: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    git = find_git(folder)
    if git is None:
        raise GitError("git is not on the PATH; install git")
    off = _filter_options(git, folder)
    top = find_top(folder.absolute())
    if top is not None and not os.path.lexists(top / ".GIT"):
        # The disk distinguishes case. With the wrong setting, git would omit a new `agents.md`
        # beside `AGENTS.md`.
        off += ["-c", "core.ignoreCase=false"]
    return _run_git(git, folder, *off, verb, *_VERB_OPTIONS.get(verb, ()), *arguments, stdin=stdin)


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
    left_out = LOCAL_VARIABLES | _PATHSPEC_VARIABLES
    kept = {key: value for key, value in os.environ.items() if key not in left_out}
    command = [git, "-C", str(folder), *_OPTIONS, *arguments]
    try:
        with subprocess.Popen(  # noqa: S603 - git by its absolute path, a list, no shell
            command,
            env=kept | _ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            creationflags=NO_WINDOW,
        ) as process:
            try:
                out, err = _communicate(process, folder, stdin)
            except BaseException:
                process.kill()
                raise
    except OSError as error:
        raise GitError(f"git could not be run: {error.strerror}") from error
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _communicate(
    process: subprocess.Popen[bytes], folder: Path, stdin: bytes
) -> tuple[bytes, bytes]:
    try:
        return process.communicate(stdin, SLOW_SECONDS)
    except subprocess.TimeoutExpired:
        _check_exclude_files(folder)
    try:
        return process.communicate(timeout=TIMEOUT_SECONDS - SLOW_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git did not answer within {TIMEOUT_SECONDS:g} seconds") from error


def _check_exclude_files(folder: Path) -> None:
    """Raise GitError if git waits for a FIFO or a device."""
    above = [parent / ".gitignore" for parent in (folder, *folder.absolute().parents)]
    below = (Path(at, ".gitignore") for at, _, names in os.walk(folder) if ".gitignore" in names)
    for path in (folder / ".git/info/exclude", *above, *below):
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise GitError(f"{path} is not a regular file; delete it")


def _message(ran: subprocess.CompletedProcess[bytes]) -> str:
    """Return git's error message on one line."""
    lines = ran.stderr.decode("utf-8", "replace").splitlines()
    return " ".join(filter(None, map(str.strip, lines)))


def repository_path(path: str) -> str:
    """Return a path relative to the root of its repository, with `/` as the separator.

    Outside of a repository, the path is returned unchanged.
    """
    absolute = Path(os.path.abspath(path))
    top = find_top(absolute)
    return path if top is None else absolute.relative_to(top).as_posix()


def find_top(folder: Path) -> Path | None:
    """Return the innermost folder that contains `.git`, at or above a folder."""
    around = (folder, *folder.parents)
    return next((each for each in around if os.path.lexists(each / ".git")), None)


def remote_urls(folder: Path) -> list[str]:
    """Return the URLs of a repository's remotes, or an empty list outside of a repository.

    This function blocks.
    """
    try:
        listed = os.fsdecode(run(folder, "remote", "--verbose"))
    except GitError:
        return []
    # A line is `origin<TAB>URL (fetch)`.
    urls = (line.partition("\t")[2].rpartition(" (")[0] for line in listed.splitlines())
    return list(dict.fromkeys(urls))


class GitFile(NamedTuple):
    """A file that git lists, with its path relative to the listed folder."""

    path: str
    is_tracked: bool
    is_skipped: bool = False
    """Whether a sparse checkout leaves the file out."""


class GitListing(NamedTuple):
    """The files in a folder of a work tree, and whether git ignores the folder as a whole."""

    files: list[GitFile]
    is_ignored: bool


def list_files(folder: str) -> GitListing | None:
    """List the tracked files, and the untracked files that git does not ignore.

    Other repositories inside the folder, such as submodules and linked worktrees, are left out.
    This function blocks.

    Returns:
        The files, or None if the folder is not inside a work tree.

    Raises:
        GitError: git is missing or refuses to list the files.
    """
    real = Path(os.path.realpath(folder))
    top = find_top(real)
    if top is None or ".git" in (below := real.relative_to(top)).parts:
        return None
    if not _is_work_tree(top):
        return None
    # git runs in `top`, because a subfolder may look like a bare repository.
    prefix = "" if real == top else f"{below.as_posix()}/"
    within = ["--", f":(literal){prefix}"] if prefix else []
    listed = run(top, "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard", *within)
    files = list(dict.fromkeys(_parse_files(listed, os.fsencode(prefix))))
    is_ignored = bool(prefix) and all(file.is_tracked for file in files) and _ignores(top, prefix)
    return GitListing(files, is_ignored)


def index_files(folder: str) -> list[str]:
    """Return the files that tell git what a folder's files are. This function blocks.

    The list is empty outside of a repository, or if git refuses to work.
    """
    top = find_top(Path(os.path.realpath(folder)))
    if top is None:
        return []
    names = [word for name in ("index", "info/exclude") for word in ("--git-path", name)]
    try:
        found = run(top, "rev-parse", *names)
    except GitError:
        return []
    return [str(top / os.fsdecode(name)) for name in (*found.splitlines(), b".gitignore")]


def _parse_files(listed: bytes, prefix: bytes) -> Iterator[GitFile]:
    for entry in filter(None, listed.split(b"\0")):
        tag, name = entry[:1], entry[2:].removeprefix(prefix)
        if name and not name.endswith(b"/"):  # not another repository
            path = os.fsdecode(name).replace("/", os.sep)
            yield GitFile(path, is_tracked=tag != b"?", is_skipped=tag == b"S")


def _is_work_tree(top: Path) -> bool:
    ran = _run_verb(top, "rev-parse", "--is-inside-work-tree", "--git-path", "index")
    if ran.returncode == 0:
        answer, _, index = ran.stdout.partition(b"\n")
        is_work_tree = answer == b"true"
        has_index = os.path.exists(top / os.fsdecode(index.removesuffix(b"\n")))
        if has_index and not is_work_tree:
            raise GitError("`core.bare` or `core.worktree` in its configuration is wrong")
        if is_work_tree and not has_index:
            _check_has_no_commit(top)
        return is_work_tree
    # A folder called .git without an index tracks no files, so it hides none.
    is_damaged = any(os.path.exists(each / ".git/index") for each in (top, *top.parents))
    if _NO_REPOSITORY in ran.stderr and not is_damaged:
        return False
    raise GitError(_message(ran))


def _check_has_no_commit(top: Path) -> None:
    if _run_verb(top, "rev-parse", "--verify", "--quiet", "HEAD").returncode == 0:
        raise GitError("the repository has no index; run `git reset`")


def _ignores(top: Path, prefix: str) -> bool:
    ran = _run_verb(top, "check-ignore", "--quiet", "--no-index", "--", f"./{prefix}")
    if ran.returncode not in (0, 1):
        raise GitError(_message(ran))
    return ran.returncode == 0
