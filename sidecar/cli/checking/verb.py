"""What `token-sidecar check` does, by the rules and numbers of the editor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cli.output import echo, warn, warn_of

if TYPE_CHECKING:
    from sidecar.cli.checking.report import Report
    from sidecar.cli.gauging import GaugeOf
    from sidecar.config.options import Origin, Problem
    from sidecar.config.settings import Settings

STDIN = "-"
EXCEEDED = 1
WRONG = 2
GIT_FAILED = "git does not say which files it tracks: all that .gitignore names are left out"


class Where(NamedTuple):
    """What the user said of the project: its configuration and its root; None: they are found."""

    config: Path | None = None
    root: Path | None = None


def checked(
    paths: Sequence[str],
    form: str = "text",
    base: str | None = None,
    model: str | None = None,
    stdin_name: str = STDIN,
    where: Where = Where(),  # noqa: B008 - it is frozen
    remembering: bool = True,
) -> int:
    """Check and print what was found; the exit code. Raises click.UsageError, as `run` does."""
    from sidecar.cli.checking import formats

    report, problems = run(paths, model, base, stdin_name, where=where, remembering=remembering)
    mistaken = warn_of(problems)
    write = {
        "text": formats.as_text,
        "json": formats.as_json,
        "sarif": formats.as_sarif,
        "github": formats.as_github,
    }[form]
    if written := write(report):
        echo(written)
    warn(*map(formats.passed_over, report.skipped), *report.notes)
    if mistaken:
        warn("the configuration has mistakes (above); a budget that they leave out is not checked")
    return WRONG if report.failed or mistaken else EXCEEDED if report.exceeded else 0


def run(
    paths: Sequence[str],
    model: str | None = None,
    base: str | None = None,
    stdin_name: str = STDIN,
    *,
    where: Where = Where(),  # noqa: B008 - it is frozen
    remembering: bool = True,
) -> tuple[Report, list[Problem]]:
    """The report on all paths, each by the configuration of its own root, and the mistakes in it.

    Raises click.UsageError when `base` is no revision, or a path is outside of the root.
    """
    from sidecar.config.load import load
    from sidecar.workspace.targets import by_root

    fixed = None if where.root is None else Path(os.path.abspath(where.root))
    try:
        roots = by_root([path for path in paths if path != STDIN], fixed)
        at_stdin = by_root([stdin_name] if STDIN in paths else [], fixed)
    except ValueError as error:
        import click

        raise click.UsageError(str(error)) from error
    loads = {root: load(root, project_file=where.config) for root in {**roots, **at_stdin}}
    parts = [
        _counting(
            loads[root].settings,
            model,
            partial(_root_report, root, own, base, remembering, loads[root].origins),
        )
        for root, own in roots.items()
    ]
    parts += [
        _counting(loads[root].settings, model, partial(_stdin_report, root, stdin_name))
        for root in at_stdin
    ]
    return _together(parts, base), [one for made in loads.values() for one in made.problems]


def _together(parts: Sequence[Report], base: str | None) -> Report:
    from sidecar.cli.checking.report import Report

    return Report(
        files=tuple(file for part in parts for file in part.files),
        growth=None
        if base is None
        else tuple(growth for part in parts for growth in part.growth or ()),
        skipped=tuple(skipped for part in parts for skipped in part.skipped),
        budgets=sum(part.budgets for part in parts),
        budgeted=any(part.budgeted for part in parts),
        failed=any(part.failed for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _counting(
    settings: Settings, model: str | None, work: Callable[[Settings, str, GaugeOf | None], Report]
) -> Report:
    """What work reports for the default model; with what asks the endpoint, where that counts."""
    name = model or settings.model
    if settings.tokenize.use_endpoint and settings.endpoints:
        from sidecar.cli.gauging import asking, asks

        if asks(settings, {name, *(rule.model or name for rule in settings.budgets)}):
            return asking(settings, lambda _, gauge: work(settings, name, gauge))
    return work(settings, name, None)


def _root_report(
    root: Path,
    paths: list[str],
    base: str | None,
    remembering: bool,
    origins: Mapping[str, Origin],
    settings: Settings,
    model: str,
    gauge: GaugeOf | None,
) -> Report:
    from sidecar.cli.checking.cache import Memory, recall, remember
    from sidecar.cli.checking.run import Checker
    from sidecar.workspace.targets import Targets

    remembering = remembering and gauge is None  # the endpoint may have another model by now
    memory = recall(root) if remembering else Memory()
    checker = Checker(settings, model, memory, gauge)
    finder = Targets(root)
    targets = list(finder.of(paths))
    whole = any(root.is_relative_to(os.path.abspath(path)) for path in paths)
    checked = checker.run(targets, () if whole else finder.of([str(root)]))
    growth = None
    if base is not None:
        from sidecar.cli.checking.growth import growth as grown

        reports = {made.target.relative: made.report for made in checked if made.report}
        growth = tuple(grown(checker, root, base, reports))
    if remembering and checker.changed:
        checker.finish(targets)
        remember(root, memory)
    notes = [GIT_FAILED] if finder.git_failed else []
    notes += _of_idle(checker.idle(targets) if whole else (), origins)
    return checker.report(checked, growth, tuple(notes))


def _of_idle(rules: Iterable[str], origins: Mapping[str, Origin]) -> Iterator[str]:
    """That the project's own rules are for no file of it. The user's are for many projects."""
    for key in rules:
        if origins[key].source == "project":
            yield f"{origins[key]}: {key}: no file matches its files"


def _stdin_report(
    root: Path, name: str, settings: Settings, model: str, gauge: GaugeOf | None
) -> Report:
    """What comes on standard input, by the rules for the path that it is said to have."""
    from sidecar.cli.checking.cache import Memory
    from sidecar.cli.checking.reading import binary, text_of
    from sidecar.cli.checking.run import Checker, unread
    from sidecar.workspace.targets import Target

    checker = Checker(settings, model, Memory(), gauge)
    target = Target(name, Path(os.path.abspath(name)).relative_to(root).as_posix())
    text = text_of(sys.stdin.buffer.read())
    if text is None:
        return checker.report([unread(target._replace(fault=binary(target)))])
    return checker.report([checker.text(target, text)])
