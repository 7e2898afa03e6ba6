"""What `token-sidecar check` does, by the rules and numbers of the editor."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cli.checking.again import Printed, keep
from sidecar.cli.output import warn, warn_of, warning
from sidecar.cli.streams import echo

if TYPE_CHECKING:
    from sidecar.cli.checking.basis import Resting
    from sidecar.cli.checking.report import Report
    from sidecar.cli.gauging import GaugeOf
    from sidecar.config.options import Origin, Problem
    from sidecar.config.settings import Settings

STDIN = "-"
MANY = 1_000
"""Of so many files on, what a run holds is not taken down before the process ends."""
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
    import gc

    from sidecar.cli.checking import formats
    from sidecar.cli.checking.basis import Resting

    gc.disable()  # nothing here is cyclic, and looking for it is a good part of a short run
    started, resting = time.time_ns(), Resting(paths)
    report, problems = run(
        paths, model, base, stdin_name, where=where, remembering=remembering, resting=resting
    )
    mistaken = warn_of(problems)
    write = {
        "text": formats.as_text,
        "json": formats.as_json,
        "sarif": formats.as_sarif,
        "github": formats.as_github,
    }[form]
    if written := write(report):
        echo(written)
    notes = [*map(formats.passed_over, report.skipped), *report.notes]
    warn(*notes)
    if mistaken:
        warn("the configuration has mistakes (above); a budget that they leave out is not checked")
    code = WRONG if report.failed or mistaken else EXCEEDED if report.exceeded else 0
    plain = (form, base, model, where) == ("text", None, None, Where()) and STDIN not in paths
    if plain and len(resting.found) == 1 and not problems:
        keep(paths, resting.found[0], Printed(code, written, [*map(warning, notes)]), started)
    return code


def run(
    paths: Sequence[str],
    model: str | None = None,
    base: str | None = None,
    stdin_name: str = STDIN,
    *,
    where: Where = Where(),  # noqa: B008 - it is frozen
    remembering: bool = True,
    resting: Resting | None = None,
) -> tuple[Report, list[Problem]]:
    """The report on all paths, each by the configuration of its own root, and the mistakes in it.

    `resting` is told of each root's part of what the report rests on.

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
            partial(_root_report, root, own, base, remembering, resting, loads[root].origins),
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
    resting: Resting | None,
    origins: Mapping[str, Origin],
    settings: Settings,
    model: str,
    gauge: GaugeOf | None,
) -> Report:
    from sidecar.cli.checking.cache import Memory, recall, remember
    from sidecar.cli.checking.run import Checker
    from sidecar.workspace.targets import Targets

    remembering = remembering and gauge is None  # the endpoint may have another model by now
    if resting is not None:
        resting.begin(root, paths, settings)
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
    if resting is not None and remembering and finder.found_all and (whole or not checker.sums):
        resting.end(checked, finder.walked)
    notes = [GIT_FAILED] if finder.git_failed else []
    notes += _of_idle(checker.idle(targets) if whole else (), origins)
    report = checker.report(checked, growth, tuple(notes))
    if len(targets) > MANY:
        _keep_to_the_end(memory, targets, checked, report)
    return report


def _of_idle(rules: Iterable[str], origins: Mapping[str, Origin]) -> Iterator[str]:
    """That the project's own rules are for no file of it. The user's are for many projects."""
    for key in rules:
        if origins[key].source == "project":
            yield f"{origins[key]}: {key}: no file matches its files"


def _keep_to_the_end(*everything: object) -> None:
    """Have the end of the process not free so many objects one by one, an eighth of a short run:
    a ring that the interpreter's last collection leaves out."""
    import gc

    ring = [*everything]
    ring.append(ring)
    gc.freeze()


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
