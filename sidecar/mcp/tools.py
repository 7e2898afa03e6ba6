"""Implements the tools. Each answer consists of a short text and structured data.

Token counts match those in the editor and on the command line. An answer has at most 500 tokens,
unless the text of a file was requested. If anything is omitted, the answer says so.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sidecar import typed
from sidecar.conversations.context_rows import share_text
from sidecar.counting.count_result import (
    Method,
    estimated_percent_text,
    number_text,
    tokens_text,
    weakest_method,
)
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_interface import Tokenizer
from sidecar.errors import BadParamsError
from sidecar.known_agents import lower_bound_agents
from sidecar.mcp import schemas
from sidecar.mcp.open_project import Caller, FoundSession, Project
from sidecar.project.files import File, SkippedPath, find, read
from sidecar.project.token_map import build_token_map, flatten
from sidecar.text.printable import (
    cost_text,
    counted,
    percent_text,
    printable,
    usd_text,
    whole_percents,
)
from sidecar.workspace.check_paths import check_paths
from sidecar.workspace.usage_details import tokens_until_compaction
from sidecar.workspace.views import add_view_to_usage, format_branch_cost

MAX_TOKENS = 400
"""Maximum number of tokens in an answer's text. The structured data contains the same entries."""
_SHORT = 400
"""Answers of up to this many bytes always fit, so their tokens are not counted."""
_ANSWER_MODEL = "gpt-4o"
"""Answers are counted with this model's tokenizer."""
_BATCH = 200
"""Number of files to count between progress reports."""
_MAX_DEPTH = 8
_OMITTED_FIELDS = (
    "rows", "text", "largest", "turns", "shouldPrune", "calibration", "breakdown", "note"
)  # fmt: skip
"""Fields of `ContextUsage` that the agent does not need, or that other fields replace."""


class Answer(NamedTuple):
    """A tool's answer, both as text and as structured data."""

    text: str
    data: dict[str, Any]


class Call(NamedTuple):
    caller: Caller
    roots: Sequence[Path] = ()
    """The client's root folders. Empty if the client provides none."""
    report_progress: Callable[[float, float], Awaitable[None]] | None = None


class _Counted(NamedTuple):
    path: str
    tokens: int
    method: Method


class Tools:
    """The tools for one project. Not thread-safe."""

    def __init__(self, project: Project) -> None:
        self._project = project

    async def aclose(self) -> None:
        """Stop the threads and close all files."""
        await self._project.aclose()

    async def run(self, name: str, arguments: dict[str, Any], call: Call) -> Answer:
        """Run a tool.

        Raises:
            BadParamsError: The tool does not exist, or its arguments are invalid.
            SidecarError: The tool has failed.
        """
        kind = schemas.TOOLS.get(name)
        if kind is None:
            raise BadParamsError(f"there is no tool named {name}")
        try:
            converted = typed.convert(arguments, kind)
        except msgspec.ValidationError as error:
            raise BadParamsError(str(error)) from None
        await self._project.load_settings()
        answer: Answer = await getattr(self, f"_{name}")(converted, call)
        return answer

    async def _count_tokens(self, arguments: schemas.CountTokens, call: Call) -> Answer:
        project = self._project
        if (arguments.path is None) == (arguments.text is None):
            raise BadParamsError("pass either `path` or `text`")
        usage, found = await project.caller_usage(call.caller)
        default = project.workspace.model_in_session(usage.model if usage else None)
        model = arguments.model or default
        if arguments.text is not None:
            name, is_folder = "The text", False
            counted_files = [await self._count_text("", arguments.text, model)]
        else:
            path = await self._resolve(arguments.path or "", call)
            name = project.display_path(path)
            is_folder = await project.services.workers.run(path.is_dir)
            counted_files = await self._count_path(path, model, call)
        tokens = sum(file.tokens for file in counted_files)
        method = weakest_method(file.method for file in counted_files)
        size = tokens_text(tokens, method)
        parts = [f"{name}: {size} for {model} ({_METHOD_TEXTS[method]})"]
        if is_folder:
            parts[0] += f" in {counted(len(counted_files), 'file')}"
        data: dict[str, Any] = {
            "tokens": tokens,
            "method": method,
            "model": model,
            "files": len(counted_files),
        }
        if usage is not None and usage.usable:
            share, now = 100 * tokens / usage.usable, ""
            data["contextPercent"] = round(share, 2)
            if usage.tokens:
                full = 100 * usage.tokens / usage.usable
                data["contextFullPercent"] = round(full, 2)
                now = f", which is {share_text(usage)} full"
            part = estimated_percent_text(share, method) if share >= 1 else "under one percent"
            parts.append(f"Reading it would use {part} of your usable context{now}")
            if found and (notes := _doubts(found, call.caller)):
                data["notes"] = notes
                parts += [note.rstrip(".") for note in notes]
        lines, largest = [f"{'. '.join(parts)}."], list[dict[str, Any]]()
        if is_folder and counted_files:
            lines.append("Largest files:")
            for file in sorted(counted_files, key=lambda file: -file.tokens)[:10]:
                path_text = project.display_path(file.path)
                lines.append(f"{number_text(file.tokens, file.method)} {path_text}")
                largest.append({"path": path_text, "tokens": file.tokens})
        text, kept = await self._shorten(lines)
        if is_folder:
            data["largest"] = largest[: max(0, kept - 2)]
        return Answer(text, data)

    async def _check_budgets(self, arguments: schemas.CheckBudgets, call: Call) -> Answer:
        project = self._project
        paths = [str(await self._resolve(path, call)) for path in arguments.paths or ["."]]
        work = partial(check_paths, paths, root=project.root.resolve())
        report, problems = await project.services.workers.run(work)
        findings = report.distinct_findings
        errors = [str(problem) for problem in problems if problem.severity == "error"]
        lines = [
            f"{project.display_path(file.path)}:{finding.line}: {finding.message}"
            for file, finding in findings
        ]
        unchecked = [
            f"{project.display_path(skipped.path)}: {skipped.reason}; budget not checked"
            for skipped in report.skipped
            if skipped.budget
        ]
        over = sum(finding.over > 0 for _, finding in findings)
        if not report.budgets:
            head = "No budgets are configured; add [[budget]] to .token-sidecar.toml."
        else:
            head = _budgets_text(over, len(findings) - over, len(report.files))
        text, kept = await self._shorten([head, *errors, *unchecked, *lines])
        listed = max(0, kept - 1 - len(errors) - len(unchecked))
        notes = [*([] if report.budgets else [head]), *errors, *unchecked]
        return Answer(
            text,
            ({"notes": notes} if notes else {})
            | {
                "exceeded": over,
                "files": len(report.files),
                "findings": [
                    {
                        "path": project.display_path(file.path),
                        "line": finding.line,
                        "tokens": finding.tokens,
                        "budget": finding.budget,
                        "over": finding.over,
                    }
                    for file, finding in findings[:listed]
                ],
                "left": len(findings) - min(listed, len(findings)),
            },
        )

    async def _context_usage(self, arguments: schemas.ContextUsageArguments, call: Call) -> Answer:
        project = self._project
        if arguments.footprint:
            return await self._footprint(call)
        found = await project.find_session(call.caller)
        if found is None:
            return self._no_session(call.caller)
        usage, cost_problem = await project.context_usage(found)
        report = add_view_to_usage(usage, project.workspace.costs)
        shown_rows = [row for row in report.rows if not row.children]
        lines = [f"{row.label}: {row.value}" for row in shown_rows]
        if usage.contents:
            shares = whole_percents([part.tokens for part in usage.contents])
            parts = (
                f"{part.label} {percent_text(share)}"
                for part, share in zip(usage.contents, shares, strict=True)
            )
            lines.append(f"Filled by (estimated): {', '.join(parts)}")
        left = tokens_until_compaction(usage)
        if left is not None:
            size = tokens_text(max(0, left), usage.method or "estimate")
            lines.insert(1, f"Until compaction: {size}")
        notes = _doubts(found, call.caller)
        if found.row.source == "opencode":
            notes.append("The current call is not included, because opencode has not saved it yet.")
        if cost_problem:
            notes.append(cost_problem)
        # Notes come first, because the end of a long answer is omitted.
        if usage.note:
            notes.append(usage.note)
            lines = [line for line in lines if usage.note not in line]
        text, _ = await self._shorten([*lines[:1], *notes, *lines[1:]])
        data: dict[str, Any] = _without_nulls(msgspec.to_builtins(usage))
        for key in _OMITTED_FIELDS:
            data.pop(key, None)
        if left is not None:
            data["tokensUntilCompaction"] = max(0, left)
        data |= {row.label.lower(): row.value for row in shown_rows if row.label == "Compacting"}
        return Answer(text, data | ({"notes": notes} if notes else {}))

    async def _footprint(self, call: Call) -> Answer:
        agent = await self._project.footprint(call.caller)
        if agent is None:
            return self._no_session(call.caller)
        text, kept = await self._shorten(agent.text.split("\n"))
        shown = [part for part in agent.parts if part.tokens or part.state != "sent"]
        parts = [
            {"label": part.label, "state": part.state, "tokens": part.tokens}
            for part in shown[: max(0, kept - 1)]
        ]
        return Answer(
            text,
            {
                "agent": agent.agent,
                "model": agent.model,
                "tokens": agent.tokens,
                "method": agent.method,
                "parts": parts,
                "left": len(agent.parts) - len(parts),
            },
        )

    async def _spend(self, _arguments: schemas.Spend, call: Call) -> Answer:
        project = self._project
        found = await project.find_session(call.caller)
        if found is None:
            return self._no_session(call.caller)
        spent, problem = await project.spent(found)
        notes = [*_doubts(found, call.caller), *([problem] if problem else [])]
        caps = project.workspace.settings.cost
        session, lines = spent.sessions[found.row.id].total, list[str]()
        is_read = problem is None
        is_whole_session = session.whole and found.row.source not in lower_bound_agents()
        data: dict[str, Any] = {}
        for span, label, caps_prefix, usd, has_all_costs in (
            ("session", "Session", "session_", session.usd, is_whole_session),
            ("project", "Project", "workspace_", spent.workspace, "workspace" not in spent.partial),
            ("today", "Today, all projects", "", spent.today, "day" not in spent.partial),
        ):
            is_whole = has_all_costs and is_read
            line = f"{label}: {cost_text(usd, is_partial=not is_whole)}"
            amounts: dict[str, Any] = {"usd": None if usd is None else float(usd)}
            if usd is not None and not is_whole:
                amounts["isLowerBound"] = True
            for name in ("soft", "hard"):
                if (cap := getattr(caps, f"{caps_prefix}{name}_cap_usd")) is not None:
                    line += f", {name} cap {usd_text(cap)}"
                    amounts[f"{name}CapUsd"] = float(cap)
            lines.append(line)
            data[span] = amounts
        branch = spent.branch_cost or await project.recorded_branch_cost(found)
        if branch is not None and branch.calls:
            cost = format_branch_cost(branch, is_unread=not is_read)
            lines.append(f"Branch {branch.name}: {cost}")
            data["branch"] = {
                "name": branch.name, "sessions": branch.sessions, "usd": branch.cost_usd
            } | ({} if is_read and not branch.partial else {"isLowerBound": True})  # fmt: skip
        data = _without_nulls(data)
        text, _ = await self._shorten([*lines, *notes])
        return Answer(text, data | ({"notes": notes} if notes else {}))

    def _no_session(self, caller: Caller) -> Answer:
        who = caller.agent or printable(caller.name) or "this client"
        text = (
            f"No session was found for {who} in {self._project.root}. Call again after the next "
            "reply, or run `token-sidecar doctor` to see which agents' files are read."
        )
        return Answer(text, {"notes": [text]})

    async def _token_map(self, arguments: schemas.TokenMap, call: Call) -> Answer:
        if not 1 <= arguments.depth <= _MAX_DEPTH:
            raise BadParamsError(f"depth must be between 1 and {_MAX_DEPTH}")
        project = self._project
        folder = await self._resolve(arguments.folder, call)
        usage, _ = await project.caller_usage(call.caller)
        model = project.workspace.model_in_session(usage.model if usage else None)
        files = await self._count_path(folder, model, call)
        top = build_token_map(_relative_counts(files, folder), arguments.depth)
        entries = sorted((entry for _, entry in flatten(top)), key=lambda entry: -entry.tokens)
        method = weakest_method(file.method for file in files)
        size = tokens_text(top.tokens, method)
        head = f"{project.display_path(folder)}: {size} in {counted(top.files, 'file')}"
        lines = [f"{entry.number} {entry.path}" for entry in entries]
        text, kept = await self._shorten([f"{head} for {model}. The largest entries:", *lines])
        listed = entries[: kept - 1]
        return Answer(
            text,
            {
                "tokens": top.tokens,
                "files": top.files,
                "model": model,
                "method": method,
                "entries": [{"path": entry.path, "tokens": entry.tokens} for entry in listed],
                "left": len(entries) - len(listed),
            },
        )

    async def _resolve(self, path: str, call: Call) -> Path:
        work = partial(self._project.resolve, path, call.roots)
        return await self._project.services.workers.run(work)

    async def _count_text(self, path: str, text: str, model: str) -> _Counted:
        workspace, counts = self._project.workspace, self._project.services.counts
        count = await counts.count(Snapshot(text=text), model, workspace)
        return _Counted(path, count.tokens, count.method)

    async def _count_path(self, path: Path, model: str, call: Call) -> list[_Counted]:
        run = self._project.services.workers.run
        listed = await run(lambda: list(find([str(path)])))
        for entry in listed:
            if isinstance(entry, SkippedPath) and entry.failed:
                raise BadParamsError(f"{self._project.display_path(path)}: {entry.reason}")
        files = [entry for entry in listed if isinstance(entry, File)]
        found = list[_Counted]()
        for number, file in enumerate(files):
            if call.report_progress is not None and number % _BATCH == 0:
                await call.report_progress(number, len(files))
            content = await run(partial(read, file))
            if not isinstance(content, SkippedPath):
                found.append(await self._count_text(file.path, content.text, model))
            elif file.named:
                raise BadParamsError(f"{self._project.display_path(path)}: {content.reason}")
        return found

    async def _shorten(self, lines: Sequence[str]) -> tuple[str, int]:
        """Join the lines of an answer, and omit the last lines if the answer is too long.

        Returns:
            The text, and the number of lines that were kept.
        """
        lines = list(map(printable, lines))
        if len("\n".join(lines).encode()) <= _SHORT:
            return "\n".join(lines), len(lines)
        services, settings = self._project.services, self._project.workspace.settings
        tokenizer = services.counts.tokenizers(settings).for_model(_ANSWER_MODEL)
        kept = await services.workers.run(partial(_fitting_lines, lines, tokenizer))
        left = len(lines) - len(kept)
        more = [f"({counted(left, 'more line')} omitted; try a smaller folder)"] if left else []
        return "\n".join([*kept, *more]), len(kept)


_METHOD_TEXTS: dict[Method, str] = {
    "exact": "exact",
    "endpoint": "counted by the model server",
    "calibrated": "calibrated estimate",
    "estimate": "estimate",
}


def _doubts(found: FoundSession, caller: Caller) -> list[str]:
    """Return a note if the session may not be the caller's."""
    if not found.is_callers:
        client = printable(caller.name) or "This client"
        return [
            f"{client} is unknown, so this is the newest running session in this folder, "
            f"a session of {found.row.source}. It may not be yours."
        ]
    if found.others:
        others = counted(found.others, "other running session")
        return [
            f"This is the newest running {found.row.source} session in this folder. It may not be "
            f"yours: {found.row.source} does not say which session asks, and there "
            f"{'is' if found.others == 1 else 'are'} {others}."
        ]
    return []


def _without_nulls(value: Any) -> Any:
    """Return JSON data without the members that are null or empty lists."""
    if isinstance(value, dict):
        kept = {key: _without_nulls(member) for key, member in value.items()}
        return {key: member for key, member in kept.items() if member is not None and member != []}
    return [_without_nulls(member) for member in value] if isinstance(value, list) else value


def _fitting_lines(lines: Sequence[str], tokenizer: Tokenizer) -> Sequence[str]:
    """Return the first line, and as many of the next lines as fit into `MAX_TOKENS` tokens."""
    tokens = 0
    for number, line in enumerate(lines):
        tokens += tokenizer.count(line) + 1
        if number and tokens > MAX_TOKENS:
            return lines[:number]
    return lines


def _budgets_text(over: int, near: int, files: int) -> str:
    checked = f"{counted(files, 'file')} checked."
    exceeded = f"{counted(over, 'budget')} exceeded" if over else "No budgets exceeded"
    return f"{exceeded}{f', {near:,} near' if near else ''}; {checked}"


def _relative_counts(files: Sequence[_Counted], folder: Path) -> list[tuple[str, int, Method]]:
    return [(os.path.relpath(file.path, folder), file.tokens, file.method) for file in files]
