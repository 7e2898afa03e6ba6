"""How files grew since a git revision: their texts as they were then, from git itself."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import click

from sidecar.cli.checking.reading import text_of
from sidecar.cli.checking.report import Growth

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sidecar.cli.checking.report import FileReport
    from sidecar.cli.checking.run import Checker


def growth(
    checker: Checker, folder: Path, base: str, reports: Mapping[str, FileReport]
) -> Iterator[Growth]:
    """What each changed file gained or lost since `base`; files with the same number are left out.

    `reports` are by path relative to `folder`, which is in a git work tree. A renamed file is
    compared with what it was. Raises click.UsageError where git does not know `base`.
    """
    changed = [(new, old) for new, old in _changed(folder, base) if new in reports]
    for (new, _), data in zip(changed, _contents(folder, base, changed), strict=True):
        text = text_of(data) if data is not None else ""
        before = checker.tokens(text) if text else 0
        report = reports[new]
        if before != report.tokens:
            yield Growth(report.path, before, report.tokens, report.method)


def _changed(folder: Path, base: str) -> Iterator[tuple[str, str | None]]:
    """Paths that differ from `base`, with the path they had there (None: they are new)."""
    # Resolved first: so that no revision is taken for an option or a path.
    commit = _git(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{tree}}"
    )
    fields = _git(
        folder, "diff", "--name-status", "-z", "-M", "--relative", commit.decode().strip(), "--"
    ).split(b"\0")
    names = iter(_path(field) for field in fields)
    for status in names:
        if status[:1] in ("R", "C"):
            old = next(names)
            yield next(names), old
        elif status:
            path = next(names)
            yield path, None if status == "A" else path
    new = _git(folder, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    yield from ((_path(path), None) for path in new if path)


def _contents(
    folder: Path, base: str, changed: Sequence[tuple[str, str | None]]
) -> Iterator[bytes | None]:
    """The bytes that each file had in `base`; None for what was not there."""
    wanted = [f"{base}:./{old}\n" for _, old in changed if old is not None]
    answer = _git(folder, "cat-file", "--batch", stdin="".join(wanted)) if wanted else b""
    at = 0
    for _, old in changed:
        if old is None:
            yield None
            continue
        header, _, _ = answer[at : at + 4096].partition(b"\n")
        at += len(header) + 1
        kind = header.rsplit(b" ", 2)
        if len(kind) != 3 or kind[1] != b"blob" or not kind[2].isdigit():
            yield None
            continue
        size = int(kind[2])
        yield answer[at : at + size]
        at += size + 1


def _git(folder: Path, *arguments: str, stdin: str = "") -> bytes:
    git = shutil.which("git")
    if git is None:
        raise click.UsageError("--diff needs git, and there is none on the PATH")
    ran = subprocess.run(  # noqa: S603 - git itself, a list of arguments, no shell
        [git, "-C", str(folder), "-c", "core.quotePath=false", *arguments],
        input=stdin.encode("utf-8", "surrogateescape"),
        capture_output=True,
        check=False,
    )
    if ran.returncode != 0:
        said = ran.stderr.decode("utf-8", "replace").strip() or "it is no revision known here"
        raise click.UsageError(f"--diff: git cannot compare with it: {said}")
    return ran.stdout


def _path(field: bytes) -> str:
    return field.decode("utf-8", "surrogateescape")
