"""`token-sidecar check`: checks files against their token budgets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.output import echo, print_problems, warn, with_progress

if TYPE_CHECKING:
    from sidecar.budgets.check_report import FileReport, Report
    from sidecar.config.options import Loaded, Origin, Problem
    from sidecar.config.settings import Settings
    from sidecar.counting.local_counts import ChooseCounter

STDIN = "-"
EXCEEDED = 1
INVALID = 2


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github", "markdown"]),
    default="text",
    show_default=True,
    help="Format of the report.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option(
    "--diff",
    "base",
    metavar="BASE",
    help="Also report how many tokens files have gained or lost since this git revision.",
)
@click.option("--model", help="Model for budgets without a model (default: the `model` setting).")
@click.option(
    "--stdin-name",
    metavar="PATH",
    default="-",
    help="Check standard input (`-`) against the budgets for this path.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read the configuration from FILE instead of the project's file.",
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Root folder of the project. Globs are relative to it.",
)
@click.option(
    "--no-cache", is_flag=True, help="Count all files again instead of using cached counts."
)
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

    In folders, untracked files that git ignores are skipped. The current project's configuration
    applies to paths inside the project. For all other paths, the configuration of their own
    project applies. A folder that you name is also checked against its own configuration. With
    --config, FILE applies to all paths, and its globs are relative to --root (default: the
    current folder).

    Exit codes: 0 if all files are within their budgets; 1 if a budget is exceeded, a file
    with a budget cannot be counted, or git cannot list a folder's files; 2 if the arguments or
    the configuration are invalid.
    """
    from sidecar.budgets import check_report as formats

    report, problems = check_paths(
        paths,
        model,
        base,
        stdin_name,
        config=config,
        root=root or (Path() if config else None),
        use_cache=not no_cache,
    )
    has_errors = print_problems(problems)
    write = {
        "text": formats.as_text,
        "json": formats.as_json,
        "sarif": formats.as_sarif,
        "github": formats.as_github,
        "markdown": formats.as_markdown,
    }["json" if as_json else form]
    if written := write(report):
        echo(written)
    warn(*map(formats.skipped_text, report.skipped), *report.notes)
    if has_errors:
        warn("budgets affected by the configuration errors above were not checked")
    is_invalid = report.has_unreadable or has_errors
    sys.exit(INVALID if is_invalid else EXCEEDED if report.is_exceeded else 0)


def check_paths(
    paths: Sequence[str],
    model: str | None = None,
    base: str | None = None,
    stdin_name: str = STDIN,
    *,
    config: Path | None = None,
    root: Path | None = None,
    use_cache: bool = True,
) -> tuple[Report, list[Problem]]:
    """Check paths using their projects' configurations. Return the report and the problems.

    Args:
        paths: Files, folders and `-`.
        model: The model for budgets without a model; defaults to the `model` setting.
        base: The git revision to compare with, if any.
        stdin_name: The path that selects the budgets for standard input.
        config: The file to read instead of each project's file.
        root: The root folder of all paths; defaults to each path's own project.
        use_cache: Whether cached counts may be used.

    Raises:
        click.UsageError: `base` is not a revision, or a path is outside the root.
    """
    from sidecar.config.load import load
    from sidecar.project.files import group_by_root

    fixed = None if root is None else Path(os.path.abspath(root))
    try:
        roots = group_by_root([path for path in paths if path != STDIN], fixed)
        stdin_roots = group_by_root([stdin_name] if STDIN in paths else [], fixed)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    loads = {each: load(each, project_file=config) for each in {**roots, **stdin_roots}}
    if fixed is None:
        _add_own_configurations(roots, loads)
    parts = [
        _run_check(
            loads[each].settings,
            model,
            partial(_root_report, each, root_paths, base, use_cache, loads[each].origins),
        )
        for each, root_paths in roots.items()
    ]
    parts += [
        _run_check(loads[each].settings, model, partial(_stdin_report, each, stdin_name))
        for each in stdin_roots
    ]
    problems = [problem for loaded in loads.values() for problem in loaded.problems]
    return _merge_reports(parts, base, problems), problems


def _add_own_configurations(roots: dict[Path, list[str]], loads: dict[Path, Loaded]) -> None:
    """Also check each folder that the user names against its own configuration, if it has one.

    The budgets of the current project still apply, so that a new configuration in a subfolder
    cannot hide a file from them.
    """
    from sidecar.config.load import has_configuration, load

    for root, paths in list(roots.items()):
        for path in list(paths):
            folder = Path(os.path.abspath(path))
            if folder == root or not has_configuration(folder):
                continue
            loads[folder] = load(folder)
            roots.setdefault(folder, []).append(path)
            if not (loads[root].settings.budgets or loads[root].settings.presets):
                paths.remove(path)
        if not paths:
            del roots[root], loads[root]


def _merge_files(files: Iterable[FileReport]) -> tuple[FileReport, ...]:
    """Merge the reports of files that were checked against two configurations."""
    from sidecar.budgets.check_report import FileReport

    merged: dict[str, FileReport] = {}
    for file in files:
        other = merged.setdefault(file.path, file)
        if other is not file:
            findings = tuple(dict.fromkeys((*other.findings, *file.findings)))
            merged[file.path] = FileReport(file.path, other.tokens, other.method, findings)
    return tuple(merged.values())


def _merge_reports(
    parts: Sequence[Report], base: str | None, problems: Sequence[Problem]
) -> Report:
    from sidecar.budgets.check_report import ConfigurationProblem, Report

    return Report(
        files=_merge_files(file for part in parts for file in part.files),
        distinct_findings=tuple(
            {
                (file.path, finding): (file, finding)
                for part in parts
                for file, finding in part.distinct_findings
            }.values()
        ),
        growth=None
        if base is None
        else tuple(dict.fromkeys(growth for part in parts for growth in part.growth or ())),
        skipped=tuple(dict.fromkeys(skipped for part in parts for skipped in part.skipped)),
        budgets=sum(part.budgets for part in parts),
        has_matching_budget=any(part.has_matching_budget for part in parts),
        has_unreadable=any(part.has_unreadable for part in parts),
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


def _run_check(
    settings: Settings,
    model: str | None,
    work: Callable[[Settings, str, ChooseCounter | None], Report],
) -> Report:
    from sidecar.cli.command_counts import run_with_endpoints, warn_if_unknown_model
    from sidecar.counting.local_counts import needs_endpoint

    name = model or settings.model
    models = dict.fromkeys([name, *(rule.model or name for rule in settings.budgets)])
    for model_name in models:
        warn_if_unknown_model(model_name, settings)
    if needs_endpoint(settings, models):
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
    from sidecar.budgets.check_cache import CheckCache, load_cache, save_cache
    from sidecar.budgets.check_run import Checker
    from sidecar.project.files import Targets

    use_cache = use_cache and choose is None  # an endpoint's counts may have changed
    cache = load_cache(root) if use_cache else CheckCache()
    checker = Checker(settings, model, cache, choose, with_progress)
    finder = Targets(root)
    targets = list(finder.of(paths))
    is_whole_root = any(root.is_relative_to(os.path.abspath(path)) for path in paths)
    others = () if is_whole_root else finder.of([str(root)])
    growth = None
    if base is None:
        checked = checker.run(targets, others)
    else:
        from sidecar.budgets.check_run import find_growth, find_old_texts

        checked = checker.run(targets, others, partial(find_old_texts, root, base), base)
        reports = {file.target.relative: file.report for file in checked if file.report}
        growth = tuple(find_growth(checker, checker.old_texts, base, reports))
    if use_cache and checker.has_changed:
        checker.update_cache(targets)
        save_cache(root, cache)
    is_listed = is_whole_root and not any(
        target.fault is not None and target.fault.failed for target in targets
    )
    notes = _unmatched_rules(checker.unmatched_rules(targets) if is_listed else (), origins)
    absent = sum(map(checker.has_budget, finder.absent))
    return checker.report(checked, growth, (*_absent_files(absent), *notes))


def _absent_files(count: int) -> Iterator[str]:
    from sidecar.text.printable import counted

    if count:
        are = "is" if count == 1 else "are"
        files = counted(count, "file")
        yield f"{files} with a budget {are} not in this sparse checkout and not checked"


def _unmatched_rules(rules: Iterable[str], origins: Mapping[str, Origin]) -> Iterator[str]:
    """Yield notes about project rules that match no file.

    User rules apply to many projects, so they are allowed to match no file.
    """
    for key in rules:
        if origins[key].source == "project":
            yield f"{origins[key]}: {key}: `files` matches no file"


def _stdin_report(
    root: Path, name: str, settings: Settings, model: str, choose: ChooseCounter | None
) -> Report:
    from sidecar.budgets.check_cache import CheckCache
    from sidecar.budgets.check_run import Checker, decode_text, report_binary, unreadable
    from sidecar.project.files import Target

    checker = Checker(settings, model, CheckCache(), choose)
    target = Target(name, Path(os.path.abspath(name)).relative_to(root).as_posix())
    text = decode_text(sys.stdin.buffer.read())
    if text is None:
        return checker.report([unreadable(target._replace(fault=report_binary(target)))])
    return checker.report([checker.check_text(target, text)])
