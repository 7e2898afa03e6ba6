"""Growth of files since a git revision, whose contents git provides."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cli.checking.reading import text_of
from sidecar.cli.checking.report import FileReport, Growth
from sidecar.workspace import git

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.cli.checking.run import Checker


def growth(
    checker: Checker, folder: Path, base: str, reports: Mapping[str, FileReport]
) -> Iterator[Growth]:
    """Yield the growth of each changed file since `base`; files with unchanged counts are left out.

    Args:
        checker: Counts the old texts.
        folder: The root, in a git work tree.
        base: The revision.
        reports: The current reports by path relative to `folder`.

    Raises:
        click.UsageError: git does not know `base`.
    """
    changed = [one for one in _changed(folder, base) if one.path in reports]
    for one, data in zip(changed, _contents(folder, changed), strict=True):
        text = text_of(data) if data is not None else ""
        before = checker.tokens(text) if text else 0
        report = reports[one.path]
        if before != report.tokens:
            yield Growth(report.path, before, report.tokens, report.method)


class _Change(NamedTuple):
    """A file that differs from `base`, with its old object; None if it is new."""

    path: str
    blob: bytes | None


def _changed(folder: Path, base: str) -> Iterator[_Change]:
    """Yield the changed files. Object ids are used, since a name may contain line breaks."""
    # Resolved first, so that a revision cannot be taken for an option or a path.
    commit = _git(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{tree}}"
    )
    fields = iter(
        _git(
            folder, "diff", "--raw", "-z", "--no-abbrev", "-M", "--relative",
            commit.decode().strip(), "--",
        ).split(b"\0")
    )  # fmt: skip
    for header in fields:
        if not header:
            break
        _, _, blob, _, status = header.split(b" ")
        path = next(fields)
        if status[:1] in (b"R", b"C"):
            path = next(fields)
        yield _Change(os.fsdecode(path), blob if blob.strip(b"0") else None)
    new = _git(folder, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    yield from (_Change(os.fsdecode(path), None) for path in new if path)


def _contents(folder: Path, changed: Sequence[_Change]) -> Iterator[bytes | None]:
    """Yield the old bytes of each file; None if it did not exist."""
    wanted = b"".join(one.blob + b"\n" for one in changed if one.blob is not None)
    answer = _git(folder, "cat-file", "--batch", stdin=wanted) if wanted else b""
    at = 0
    for one in changed:
        if one.blob is None:
            yield None
            continue
        header, _, _ = answer[at : at + 4096].partition(b"\n")
        at += len(header) + 1
        kind = header.split(b" ")
        if len(kind) != 3:  # a submodule's commit, which is not in this repository
            yield None
            continue
        size = int(kind[2])
        yield answer[at : at + size] if kind[1] == b"blob" else None
        at += size + 1


def _git(folder: Path, verb: str, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        return git.run(folder, verb, *arguments, stdin=stdin)
    except git.GitError as error:
        why = str(error) or "it is no revision known here"
        import click

        raise click.UsageError(f"--diff: git cannot compare with it: {why}") from error
