"""Computes how many tokens files have gained or lost since a git revision."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cli.checking.reading import decode_text
from sidecar.cli.checking.report import FileReport, Growth
from sidecar.workspace import git

if TYPE_CHECKING:
    from sidecar.cli.checking.run import Checker


def find_old_texts(folder: Path, base: str, paths: Container[str]) -> dict[str, str]:
    """Return what each changed file contained in a revision, or "" for a new or binary file.

    Args:
        folder: The root folder, which must be in a git work tree.
        base: The revision.
        paths: The files to compare, relative to the root folder.

    Raises:
        click.UsageError: git cannot compare the files with `base`.
    """
    changes = [change for change in _changed_files(folder, base) if change.path in paths]
    contents = zip(changes, _old_contents(folder, changes), strict=True)
    return {change.path: decode_text(data or b"") or "" for change, data in contents}


def find_growth(
    checker: Checker, old_texts: Mapping[str, str], base: str, reports: Mapping[str, FileReport]
) -> Iterator[Growth]:
    """Yield the growth of each file whose token count has changed since a revision.

    Args:
        checker: Counts the old texts.
        old_texts: What the changed files contained, by path relative to the root folder.
        base: The revision.
        reports: The current reports, by path relative to the root folder.
    """
    for path, text in old_texts.items():
        report = reports.get(path)
        before = checker.count_tokens(text)
        if report is not None and before != report.tokens:
            yield Growth(report.path, before, report.tokens, report.method, base)


class _Change(NamedTuple):
    """A changed file and the id of its old git object, which is None for a new file."""

    path: str
    blob: bytes | None


def _changed_files(folder: Path, base: str) -> Iterator[_Change]:
    # Resolve the revision first, so that git cannot mistake it for an option or a path.
    commit = _run_git(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{tree}}"
    )
    fields = iter(
        _run_git(
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
    new = _run_git(folder, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    yield from (_Change(os.fsdecode(path), None) for path in new if path)


def _old_contents(folder: Path, changes: Sequence[_Change]) -> Iterator[bytes | None]:
    """Yield each file's old contents, or None for a new file."""
    # Object ids are used because file names can contain line breaks.
    ids = b"".join(change.blob + b"\n" for change in changes if change.blob is not None)
    answer = _run_git(folder, "cat-file", "--batch", stdin=ids) if ids else b""
    at = 0
    for change in changes:
        if change.blob is None:
            yield None
            continue
        header, _, _ = answer[at : at + 4096].partition(b"\n")
        at += len(header) + 1
        kind = header.split(b" ")
        if len(kind) != 3:  # a submodule, whose commit is in another repository
            yield None
            continue
        size = int(kind[2])
        yield answer[at : at + size] if kind[1] == b"blob" else None
        at += size + 1


def _run_git(folder: Path, verb: str, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        return git.run(folder, verb, *arguments, stdin=stdin)
    except git.GitError as error:
        import click

        reason = str(error) or "the repository has no such revision"
        raise click.UsageError(f"--diff: git cannot compare the files: {reason}") from error
