"""Checks the budgets of files and folders by the configurations of their projects."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from sidecar.errors import BadParamsError
from sidecar.project.files import STDIN

if TYPE_CHECKING:
    from sidecar.budgets.check_report import FileReport, Growth, PromptGrowth, Report
    from sidecar.budgets.check_run import Progress
    from sidecar.config.settings import Loaded, Origin, Problem, Settings
    from sidecar.counting.tokenizer_choice import ChooseCounter
    from sidecar.project.files import Target
    from sidecar.project.source_files import Contents

T = TypeVar("T")


class _Options(NamedTuple):
    """What to check. See `check_paths`."""

    base: str | None
    profile: Path | None
    use_cache: bool
    checks_instructions: bool
    progress: Progress | None


def check_paths(
    paths: Sequence[str],
    model: str | None = None,
    base: str | None = None,
    stdin_name: str = STDIN,
    *,
    config: Path | None = None,
    root: Path | None = None,
    profile: Path | None = None,
    use_cache: bool = True,
    checks_instructions: bool = False,
    warn: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> tuple[Report, list[Problem]]:
    """Check paths using their projects' configurations. Return the report and the problems.

    Args:
        paths: Files, folders and `-`.
        model: The model for budgets without a model; defaults to the `model` setting.
        base: The git revision to compare with, if any.
        stdin_name: The path that selects the budgets for standard input.
        config: The file to read instead of each project's file.
        root: The root folder of all paths; defaults to each path's own project.
        profile: The usage profile that prices changes; see `prompt_growth.find_usage`.
        use_cache: Whether cached counts may be used.
        checks_instructions: Whether to find what coding agents lose of the files.
        warn: Shows a warning, for example that a model is unknown.
        progress: Shows the progress of reading files, and returns them.

    Raises:
        BadParamsError: `base` is not a revision, a path is outside the root, or the profile is
            unreadable.
    """
    from sidecar.config.load import load
    from sidecar.project.files import group_by_root

    fixed = None if root is None else Path(os.path.abspath(root))
    try:
        roots = group_by_root([path for path in paths if path != STDIN], fixed)
        stdin_roots = group_by_root([stdin_name] if STDIN in paths else [], fixed)
    except ValueError as error:
        raise BadParamsError(str(error)) from error
    loads = {each: load(each, project_file=config) for each in {**roots, **stdin_roots}}
    if fixed is None:
        _add_own_configurations(roots, loads)
    options = _Options(base, profile, use_cache, checks_instructions, progress)
    parts = [
        _run_check(loads[each], model, partial(_root_report, options, each, root_paths), warn)
        for each, root_paths in roots.items()
    ]
    parts += [
        _run_check(loads[each], model, partial(_stdin_report, options, each, stdin_name), warn)
        for each in stdin_roots
    ]
    problems = [problem for loaded in loads.values() for problem in loaded.problems]
    return _merge_reports(parts, base, problems), problems


def _add_own_configurations(roots: dict[Path, list[str]], loads: dict[Path, Loaded]) -> None:
    """Also check each folder that the user names against its own configuration, if it has one.

    The budgets of the current project still apply, so that a new configuration in a subfolder
    cannot hide a file from them.
    """
    from sidecar.config.load import load
    from sidecar.config.paths import has_configuration

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

    def distinct(rows: Callable[[Report], Iterable[T]]) -> tuple[T, ...]:
        return tuple(dict.fromkeys(row for part in parts for row in rows(part)))

    return Report(
        files=_merge_files(file for part in parts for file in part.files),
        distinct_findings=tuple(
            {
                (file.path, finding): (file, finding)
                for part in parts
                for file, finding in part.distinct_findings
            }.values()
        ),
        growth=None if base is None else distinct(lambda part: part.growth or ()),
        prompt_growth=distinct(lambda part: part.prompt_growth),
        skipped=distinct(lambda part: part.skipped),
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
        notes=distinct(lambda part: part.notes),
        instructions=distinct(lambda part: part.instructions),
    )


def _run_check(
    loaded: Loaded,
    model: str | None,
    work: Callable[[Loaded, str, ChooseCounter | None], Report],
    warn: Callable[[str], None] | None,
) -> Report:
    from sidecar.counting.tokenizer_choice import needs_endpoint

    settings = loaded.settings
    name = model or settings.model
    models = dict.fromkeys([name, *(rule.model or name for rule in settings.budgets)])
    if warn is not None:
        _warn_if_unknown(models, settings, warn)
    if needs_endpoint(settings, models):
        from sidecar.workspace.one_off_counts import run_with_endpoints

        return run_with_endpoints(settings, lambda _, choose: work(loaded, name, choose))
    return work(loaded, name, None)


def _warn_if_unknown(
    models: Iterable[str], settings: Settings, warn: Callable[[str], None]
) -> None:
    from sidecar.config.settings import DEFAULT_MODEL

    for model in models:
        if model != DEFAULT_MODEL:  # in a short run, the lookup would be 10% of the time
            from sidecar.workspace.views import unknown_model_text

            if text := unknown_model_text(model, settings):
                warn(text)


def _root_report(
    options: _Options,
    root: Path,
    paths: list[str],
    loaded: Loaded,
    model: str,
    choose: ChooseCounter | None,
) -> Report:
    from sidecar.budgets.check_cache import CheckCache, load_cache, save_cache
    from sidecar.budgets.check_run import Checker
    from sidecar.project.files import Targets

    settings, base = loaded.settings, options.base
    use_cache = options.use_cache and choose is None  # an endpoint's counts may have changed
    cache = load_cache(root) if use_cache else CheckCache()
    checker = Checker(settings, model, cache, choose, options.progress)
    finder = Targets(root)
    targets = list(finder.of(paths))
    is_whole_root = any(root.is_relative_to(os.path.abspath(path)) for path in paths)
    others = () if is_whole_root else finder.of([str(root)])
    growth: tuple[Growth, ...] | None = None
    prompt_growth: tuple[PromptGrowth, ...] = ()
    deleted: list[Target] = []
    old: dict[str, Contents] | None = None
    if base is None:
        checked = checker.run(targets, others)
    else:
        from sidecar.budgets.check_run import find_growth
        from sidecar.project.source_files import read_old_files, read_old_texts
        from sidecar.workspace.prompt_growth import find_prompt_growth

        checked = checker.run(targets, others, partial(read_old_texts, root, base), base)
        gone = {name for name in checker.old_texts if not os.path.lexists(root / name)}
        deleted = list(finder.below(paths, sorted(gone)))
        checked = [file for file in checked if file.target.relative not in gone]
        reports = {file.target.relative: file.report for file in checked if file.report}
        growth = tuple(find_growth(checker, checker.old_texts, base, reports, deleted))
        old = read_old_files(root, base)
        prompt_growth = find_prompt_growth(
            root, old, base, settings, checker.counter.measure, model, options.profile
        )
    checked = checker.add_always_loaded(checked, root, old, base or "")
    if use_cache and checker.has_changed:
        checker.update_cache(targets)
        save_cache(root, cache)
    is_listed = is_whole_root and not any(
        target.fault is not None and target.fault.failed for target in targets
    )
    unmatched = checker.unmatched_rules(targets) if is_listed else ()
    unsent = "the agent in `always-loaded` sends none of these files"
    absent = sum(map(checker.has_budget, finder.absent))
    notes = (
        *_absent_files(absent),
        *_note_rules(unmatched, loaded.origins, "`files` matches no file"),
        *_note_rules(checker.unsent_rules, loaded.origins, unsent),
    )
    report = checker.report(checked, growth, notes, deleted)
    report = msgspec.structs.replace(report, prompt_growth=prompt_growth)
    return _add_instructions(report, options, root, settings, targets)


def _add_instructions(
    report: Report,
    options: _Options,
    root: Path,
    settings: Settings,
    targets: Iterable[Target],
    texts: Mapping[str, bytes] | None = None,
) -> Report:
    """Add what agents lose of the checked files, in the order of the files.

    Args:
        report: The report.
        options: Whether to look for it.
        root: The root folder.
        settings: The root's settings.
        targets: The checked files.
        texts: What files contain instead of their contents on disk, by path.
    """
    if not options.checks_instructions:
        return report
    from sidecar.budgets.check_report import ReportedInstruction
    from sidecar.budgets.check_run import range_of
    from sidecar.budgets.instruction_findings import check_instructions, locate
    from sidecar.project.files import decode
    from sidecar.project.source_files import SourceFiles

    names = {os.path.join(root, target.relative): target.path for target in targets}
    files = SourceFiles(texts, below=names)
    problems = check_instructions(root, settings, files)
    found = list[ReportedInstruction]()
    for path in (one for one in names if one in problems):
        data = files.data(path)
        decoded = decode(data)
        text = decoded.text if decoded else ""
        found += [
            ReportedInstruction(
                path=names[path],
                severity=finding.severity,
                code=finding.code,
                message=finding.message,
                agents=finding.agents,
                **msgspec.structs.asdict(range_of(text, finding.start, finding.end)),
            )
            for finding in locate(problems[path], data)
        ]
    return msgspec.structs.replace(report, instructions=tuple(found))


def _absent_files(count: int) -> Iterator[str]:
    from sidecar.text.printable import counted

    if count:
        are = "is" if count == 1 else "are"
        files = counted(count, "file")
        yield f"{files} with a budget {are} not in this sparse checkout and not checked"


def _note_rules(rules: Iterable[str], origins: Mapping[str, Origin], note: str) -> Iterator[str]:
    """Yield a note about each of the project's rules.

    User rules apply to many projects, so they are allowed to apply to no file of this one.
    """
    for key in rules:
        if origins[key].source == "project":
            yield f"{origins[key]}: {key}: {note}"


def _stdin_report(
    options: _Options,
    root: Path,
    name: str,
    loaded: Loaded,
    model: str,
    choose: ChooseCounter | None,
) -> Report:
    from sidecar.budgets.check_cache import CheckCache
    from sidecar.budgets.check_run import Checker, unreadable
    from sidecar.project.files import Target, decode, report_binary

    checker = Checker(loaded.settings, model, CheckCache(), choose)
    target = Target(name, Path(os.path.abspath(name)).relative_to(root).as_posix())
    data = sys.stdin.buffer.read()
    decoded = decode(data)
    if decoded is None:
        return checker.report([unreadable(target._replace(fault=report_binary(target.path)))])
    texts = {os.path.join(root, target.relative): data}
    checked = [checker.check_text(target, decoded.text)]
    report = checker.report(checker.add_always_loaded(checked, root, texts=texts))
    return _add_instructions(report, options, root, loaded.settings, [target], texts)
