"""`token-sidecar check`: check files against their budgets, with the editor's rules and counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from sidecar.cli.output import echo, warn, warn_of

if TYPE_CHECKING:
    from sidecar.cli.checking.report import Report
    from sidecar.cli.counters import ChooseCounter
    from sidecar.config.options import Origin, Problem
    from sidecar.config.settings import Settings

STDIN = "-"
EXCEEDED = 1
WRONG = 2
GIT_FAILED = "git cannot list tracked files, so every file in .gitignore is skipped"


class ProjectLocation(NamedTuple):
    """The project's configuration file and root given by the user; None to search for them."""

    config: Path | None = None
    root: Path | None = None


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="Format of the report.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option("--diff", "base", metavar="BASE", help="Also report growth since this git revision.")
@click.option("--model", help="Model to count for where a budget names none.")
@click.option(
    "--stdin-name",
    metavar="PATH",
    default="-",
    help="Path whose budgets apply to standard input (`-`).",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read the configuration from FILE instead of the project's own.",
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Root folder of the project.",
)
@click.option("--no-cache", is_flag=True, help="Neither read nor write the cache of counts.")
def check(
    paths: tuple[str, ...],
    form: str,
    as_json: bool,
    base: str | None,
    model: str | None,
    stdin_name: str,
    config: Path | None,
    root: Path | None,
    no_cache: bool,
) -> None:
    """Check files against their token budgets.

    Folders are searched as git sees them: ignored files are skipped unless git tracks them. A path
    inside the current project uses that project's configuration, any other path its own. With
    --config all paths use FILE; its globs are relative to --root (default: the current folder).

    Exit codes: 0 all within budget; 1 a budget is exceeded, or a file with a budget cannot be
    counted; 2 invalid arguments or configuration.
    """
    location = ProjectLocation(config, root or (Path() if config else None))
    form = "json" if as_json else form
    sys.exit(run(paths, form, base, model, stdin_name, location, use_cache=not no_cache))


def run(
    paths: Sequence[str],
    form: str = "text",
    base: str | None = None,
    model: str | None = None,
    stdin_name: str = STDIN,
    location: ProjectLocation = ProjectLocation(),  # noqa: B008 - it is frozen
    use_cache: bool = True,
) -> int:
    """Check, print the report, and return the exit code.

    Raises:
        click.UsageError: see `report_on`.
    """
    from sidecar.cli.checking.report import as_github, as_json, as_sarif, as_text, passed_over

    report, problems = report_on(
        paths, model, base, stdin_name, location=location, use_cache=use_cache
    )
    mistaken = warn_of(problems)
    write = {"text": as_text, "json": as_json, "sarif": as_sarif, "github": as_github}[form]
    if written := write(report):
        echo(written)
    warn(*map(passed_over, report.skipped), *report.notes)
    if mistaken:
        warn("the configuration has errors (see above); budgets affected by them are not checked")
    return WRONG if report.failed or mistaken else EXCEEDED if report.exceeded else 0


def report_on(
    paths: Sequence[str],
    model: str | None = None,
    base: str | None = None,
    stdin_name: str = STDIN,
    *,
    location: ProjectLocation = ProjectLocation(),  # noqa: B008 - it is frozen
    use_cache: bool = True,
) -> tuple[Report, list[Problem]]:
    """Check all paths, each by its root's configuration; return the report and its problems.

    Raises:
        click.UsageError: `base` is not a revision, or a path is outside of the root.
    """
    from sidecar.config.load import load
    from sidecar.workspace.targets import by_root

    fixed = None if location.root is None else Path(os.path.abspath(location.root))
    try:
        roots = by_root([path for path in paths if path != STDIN], fixed)
        at_stdin = by_root([stdin_name] if STDIN in paths else [], fixed)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    loads = {root: load(root, project_file=location.config) for root in {**roots, **at_stdin}}
    parts = [
        _counting(
            loads[root].settings,
            model,
            partial(_root_report, root, own, base, use_cache, loads[root].origins),
        )
        for root, own in roots.items()
    ]
    parts += [
        _counting(loads[root].settings, model, partial(_stdin_report, root, stdin_name))
        for root in at_stdin
    ]
    problems = [problem for loaded in loads.values() for problem in loaded.problems]
    return _merged(parts, base, problems), problems


def _merged(parts: Sequence[Report], base: str | None, problems: Sequence[Problem]) -> Report:
    from sidecar.cli.checking.report import ConfigurationProblem, Report

    return Report(
        files=tuple(file for part in parts for file in part.files),
        growth=None
        if base is None
        else tuple(growth for part in parts for growth in part.growth or ()),
        skipped=tuple(skipped for part in parts for skipped in part.skipped),
        budgets=sum(part.budgets for part in parts),
        budgeted=any(part.budgeted for part in parts),
        failed=any(part.failed for part in parts),
        problems=tuple(
            ConfigurationProblem(
                path=None if problem.file is None else os.path.relpath(problem.file),
                line=problem.line,
                severity=problem.severity,
                message=f"{problem.key}: {problem.message}" if problem.key else problem.message,
            )
            for problem in problems
        ),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _counting(
    settings: Settings,
    model: str | None,
    work: Callable[[Settings, str, ChooseCounter | None], Report],
) -> Report:
    """Return the report of `work`, given a counter if an endpoint is used."""
    from sidecar.cli.counters import warn_of_model

    name = model or settings.model
    models = dict.fromkeys([name, *(rule.model or name for rule in settings.budgets)])
    for one in models:
        warn_of_model(one, settings)
    if settings.tokenize.use_endpoint and settings.endpoints:
        from sidecar.cli.counters import asks, run_with_endpoints

        if asks(settings, set(models)):
            return run_with_endpoints(settings, lambda _, choose: work(settings, name, choose))
    return work(settings, name, None)


def _root_report(
    root: Path,
    paths: list[str],
    base: str | None,
    use_cache: bool,
    origins: Mapping[str, Origin],
    settings: Settings,
    model: str,
    choose: ChooseCounter | None,
) -> Report:
    from sidecar.cli.checking.cache import Memory, recall, remember
    from sidecar.cli.checking.run import Checker
    from sidecar.workspace.targets import Targets

    use_cache = use_cache and choose is None  # the endpoint may serve another model now
    memory = recall(root) if use_cache else Memory()
    checker = Checker(settings, model, memory, choose)
    finder = Targets(root)
    targets = list(finder.of(paths))
    whole = any(root.is_relative_to(os.path.abspath(path)) for path in paths)
    checked = checker.run(targets, () if whole else finder.of([str(root)]))
    growth = None
    if base is not None:
        from sidecar.cli.checking.growth import growth as grown

        reports = {made.target.relative: made.report for made in checked if made.report}
        growth = tuple(grown(checker, root, base, reports))
    if use_cache and checker.changed:
        checker.finish(targets)
        remember(root, memory)
    notes = [GIT_FAILED] if finder.git_failed else []
    notes += _unmatched_rules(checker.unmatched_rules(targets) if whole else (), origins)
    return checker.report(checked, growth, tuple(notes))


def _unmatched_rules(rules: Iterable[str], origins: Mapping[str, Origin]) -> Iterator[str]:
    """Yield notes on the project's rules that match no file; the user's apply to many projects."""
    for key in rules:
        if origins[key].source == "project":
            yield f"{origins[key]}: {key}: `files` matches no file"


def _stdin_report(
    root: Path, name: str, settings: Settings, model: str, choose: ChooseCounter | None
) -> Report:
    """Check standard input by the rules for the path that `--stdin-name` gives it."""
    from sidecar.cli.checking.cache import Memory
    from sidecar.cli.checking.reading import binary, text_of
    from sidecar.cli.checking.run import Checker, unread
    from sidecar.workspace.targets import Target

    checker = Checker(settings, model, Memory(), choose)
    target = Target(name, Path(os.path.abspath(name)).relative_to(root).as_posix())
    text = text_of(sys.stdin.buffer.read())
    if text is None:
        return checker.report([unread(target._replace(fault=binary(target)))])
    return checker.report([checker.text(target, text)])
