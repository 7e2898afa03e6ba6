"""`token-sidecar check`: budgets on the command line, by the rules and numbers of the editor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.cli.checking.folders import Folders
    from sidecar.cli.checking.report import Report, Target
    from sidecar.config.options import Problem
    from sidecar.workspace.files import Skipped

STDIN = "-"
EXCEEDED = 1
WRONG = 2


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="How to report.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--diff", "base", metavar="BASE", help="Also report growth since this git revision.")
@click.option("--model", help="Count for this model where a rule names none.")
@click.option(
    "--stdin-name", metavar="PATH", default="-", help="Where standard input (`-`) belongs."
)
@click.option("--no-cache", is_flag=True, help="Remember nothing between runs.")
def check(
    paths: tuple[str, ...],
    form: str,
    as_json: bool,
    base: str | None,
    model: str | None,
    stdin_name: str,
    no_cache: bool,
) -> None:
    """Check files, and folders as .gitignore leaves them, against their token budgets.

    Exits 1 when a budget is exceeded, 2 when the configuration has mistakes.
    """
    import gc

    from sidecar.cli.checking import formats

    gc.disable()  # nothing here is cyclic, and looking for it is a good part of a short run
    report, problems = run(paths, model, base, stdin_name, remembering=not no_cache)
    for problem in problems:
        click.echo(f"token-sidecar: {problem}", err=True)
    write = {
        "text": formats.as_text,
        "json": formats.as_json,
        "sarif": formats.as_sarif,
        "github": formats.as_github,
    }["json" if as_json else form]
    if written := write(report):
        click.echo(written)
    for skipped in report.skipped:
        click.echo(f"token-sidecar: {skipped.path}: {skipped.reason}, skipped", err=True)
    wrong = any(problem.severity == "error" for problem in problems)
    wrong = wrong or any(skipped.failed for skipped in report.skipped)
    sys.exit(WRONG if wrong else EXCEEDED if report.exceeded else 0)


def run(
    paths: Sequence[str],
    model: str | None = None,
    base: str | None = None,
    stdin_name: str = STDIN,
    *,
    remembering: bool = True,
) -> tuple[Report, list[Problem]]:
    """The report on all paths, each by the configuration of its own root, and the mistakes in it.

    Raises click.UsageError when `base` is no revision.
    """
    from sidecar.cli.checking.report import Report

    by_root = _by_root([path for path in paths if path != STDIN])
    parts = [_root_report(root, own, model, base, remembering) for root, own in by_root.items()]
    if STDIN in paths:
        parts.append(_stdin_report(stdin_name, model))
    report = Report(
        files=tuple(file for part, _ in parts for file in part.files),
        growth=None
        if base is None
        else tuple(growth for part, _ in parts for growth in part.growth or ()),
        skipped=tuple(skipped for part, _ in parts for skipped in part.skipped),
    )
    return report, [problem for _, problems in parts for problem in problems]


def _root_report(
    root: Path, paths: list[str], model: str | None, base: str | None, remembering: bool
) -> tuple[Report, list[Problem]]:
    from sidecar.cli.checking.cache import Memory, recall, remember
    from sidecar.cli.checking.folders import Folders
    from sidecar.cli.checking.report import Report, Target
    from sidecar.cli.checking.run import Checker
    from sidecar.config.load import load
    from sidecar.workspace.files import Skipped

    loaded = load(root)
    memory = recall(root) if remembering else Memory()
    folders = Folders(memory.listings)
    checker = Checker(loaded.settings, model or loaded.settings.model, memory)
    named = list(_targets(root, paths, folders))
    targets = [target for target in named if isinstance(target, Target)]
    passed_over = [skipped for skipped in named if isinstance(skipped, Skipped)]
    whole = any(root.is_relative_to(os.path.abspath(path)) for path in paths)
    others = () if whole else _targets(root, [str(root)], folders)
    checked = checker.run(targets, (other for other in others if isinstance(other, Target)))
    growth = None
    if base is not None:
        from sidecar.cli.checking.growth import growth as grown

        reports = {made.target.relative: made.report for made in checked if made.report}
        growth = tuple(grown(checker, root, base, reports))
    if remembering and (checker.changed or folders.changed):
        checker.finish(targets)
        remember(root, memory)
    report = Report(
        files=tuple(made.report for made in checked if made.report),
        growth=growth,
        skipped=(*passed_over, *(made.skipped for made in checked if made.skipped)),
    )
    return report, list(loaded.problems)


def _stdin_report(name: str, model: str | None) -> tuple[Report, list[Problem]]:
    """What comes on standard input, by the rules for the path that it is said to have."""
    from sidecar.cli.checking.cache import Memory
    from sidecar.cli.checking.reading import binary, text_of
    from sidecar.cli.checking.report import Report, Target
    from sidecar.cli.checking.run import Checker
    from sidecar.config.load import find_root, load

    path = Path(os.path.abspath(name))
    root = find_root(path.parent)
    loaded = load(root)
    checker = Checker(loaded.settings, model or loaded.settings.model, Memory())
    target = Target(name, path.relative_to(root).as_posix())
    text = text_of(sys.stdin.buffer.read())
    if text is None:
        return Report(files=(), skipped=(binary(target),)), list(loaded.problems)
    made = checker.text(target, text)
    return Report(files=(made.report,) if made.report else ()), list(loaded.problems)


def _by_root(paths: Sequence[str]) -> dict[Path, list[str]]:
    """The paths by the root whose configuration holds for them."""
    from sidecar.config.load import find_root

    roots: dict[Path, list[str]] = {}
    for path in paths:
        roots.setdefault(find_root(Path(os.path.abspath(path))), []).append(path)
    return roots


def _targets(root: Path, paths: Sequence[str], folders: Folders) -> Iterator[Target | Skipped]:
    """Every file of the paths once, also named from the root, with `/` whatever the system."""
    from sidecar.cli.checking.report import Target

    top = f"{str(root).replace(os.sep, '/').rstrip('/')}/"
    seen: set[str] = set()
    for path in paths:
        start = os.path.normpath(path)
        absolute = os.path.abspath(start).replace(os.sep, "/")
        strip = 0 if start == os.curdir else len(os.path.join(start, ""))
        below = f"{absolute.rstrip('/')}/".removeprefix(top)
        for file in _files(start, folders):
            if not isinstance(file, str):
                yield file
                continue
            inside = file[strip:].replace(os.sep, "/")
            relative = below + inside if inside else absolute.removeprefix(top)
            if relative not in seen:
                seen.add(relative)
                yield Target(file, relative)


def _files(path: str, folders: Folders) -> Iterator[str | Skipped]:
    """A folder's files, or the file that is named itself."""
    from sidecar.workspace.files import File, find

    if os.path.isdir(path):
        yield from folders.below(path)
        return
    for found in find([path]):
        yield found.path if isinstance(found, File) else found
