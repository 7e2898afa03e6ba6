"""Writes docs/reference/loading-rules.md from `loading_rules.toml`, in the words of
`loading_rules_page.toml`.

Run `python -m tests.loading_rules_page > docs/reference/loading-rules.md`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecar.project.loading_rules import (
    AgentRules,
    Entries,
    EntryLimit,
    Files,
    Imports,
    Limit,
    Scope,
    loading_rules,
)
from sidecar.project.mcp_servers import Form, McpFile, mcp_rules

WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""The page's sentences, and words for the values in the rules."""


def page() -> str:
    """Return the page."""
    sections = [section(rules) for rules in loading_rules().values()]
    return "\n".join([WORDS["head"], *sections, mcp_section(), runs_section()])


def runs_section() -> str:
    """Return the part of the page about the runs of the real agents."""
    rows = [WORDS["runs-head"].rstrip()]
    for agent, numbers in WORDS["runs"].items():
        rules = loading_rules()[agent]
        cells = (f"{one:,} of {one:,}" if one else "none" for one in numbers)
        rows.append(f"| {rules.title} | {rules.version} | {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def section(rules: AgentRules) -> str:
    """Return the part of the page about an agent."""
    title = f"## {rules.title}\n"
    measured = f"Measured in {rules.version}. " if rules.version else "From documentation. "
    home = f" Your folder: {' or '.join(f'`{one}`' for one in rules.home)}." if rules.home else ""
    lines = [title, f"{measured}Source: {rules.source}.{home}\n"]
    if rules.files:
        lines += ["| where | files | details |", "|---|---|---|"]
        lines += [row(rules, files) for files in rules.files] + [""]
    if rules.entries:
        lines += ["| what | where | files | a line each of |", "|---|---|---|---|"]
        lines += [entries_row(entries) for entries in rules.entries] + [""]
    notes = [*agent_notes(rules)]
    return "\n".join([*lines, *(f"- {note}" for note in notes), *([""] if notes else [])])


def row(rules: AgentRules, files: Files) -> str:
    """Return a row of an agent's table."""
    where = ", ".join(WORDS["where"][one] for one in files.where) + WORDS["above"][files.above]
    where += ", start first" if files.innermost_first else ""
    names = [
        f"`{one}`" if isinstance(one, str) else " else ".join(f"`{name}`" for name in one)
        for one in files.files
    ]
    return f"| {where} | {', '.join(names)} | {'; '.join(details(files))} |"


def entries_row(entries: Entries) -> str:
    """Return a row of an agent's table of skills, commands and sub-agents."""
    where = ", ".join(WORDS["where"][one] for one in entries.where)
    files = ", ".join(f"`{one}`" for one in entries.files)
    return f"| {entries.kind}s | {where} | {files} | {'; '.join(entries_details(entries))} |"


def entries_details(entries: Entries) -> Iterator[str]:
    """Yield what is sent of each entry."""
    shown = ["name", "description", "path", "level"]
    listed = ", ".join(one for one in shown if f"{{{one}}}" in entries.form)
    yield listed + (f", `{entries.more}`" if entries.more else "")
    if entries.max_description is not None:
        most = f"{entries.max_description:,} characters"
        cut = (
            "leave the entry out"
            if entries.drops_long
            else f"are cut, with `{entries.mark}` at the end"
        )
        yield f"descriptions over {most} {cut}"
    if entries.without:
        yield "not in folders named " + ", ".join(f"`{one}`" for one in entries.without)
    if entries.first_line:
        yield "the first line of the body if it has no description"
    elif entries.undescribed == "hidden":
        yield "not without a description"
    if entries.off:
        yield "not with " + ", ".join(f"`{key}: true`" for key in entries.off)
    if entries.off_file:
        yield f"not with `{entries.off_key}: false` in `{entries.off_file}`"
    if entries.scopes:
        yield "later with " + ", ".join(f"`{key}`" for key in entries.scopes)
    if entries.needs_trust:
        yield "only once you have trusted the project"
    if not entries.is_repeated:
        yield "not again in sub-agents"


def entry_limit_text(limit: EntryLimit) -> str:
    """Return the limit of the list of skills in words."""
    most = f"{limit.characters:,} characters" if limit.characters is not None else ""
    if limit.window_share is not None:
        most = f"{limit.window_share:.0%} of the window" + _list_unit(limit)
    lost = WORDS["lost"][limit.loses]
    variable = f" `{limit.variable}` replaces it." if limit.variable else ""
    return f"The list of skills and commands has at most {most}. {lost}.{variable}"


def _list_unit(limit: EntryLimit) -> str:
    """Return what a token of the window is in the list, and what of the list is taken."""
    if limit.loses == "lengths":
        return ", in tokens of four characters"
    (most, number), *larger = limit.per_token
    unit = f", at {number:g} characters a token"
    for _, other in larger:
        unit += f" ({other:g} in windows over {most:,} tokens)"
    if limit.reserved:
        unit += f", of which the agent's own entries take {limit.reserved:,} characters"
    return unit


def details(files: Files) -> Iterator[str]:
    """Yield what the fields of an entry say, except its names and places."""
    if files.kind:
        yield files.kind
    for names in files.fallbacks:
        listed = ", ".join(f"`{name}`" for name in names)
        text = " with text" if not files.empty_hides else ""
        yield f"{listed} only if no folder has one of the other names{text}"
    yield from (text for field, text in WORDS["flags"].items() if getattr(files, field))
    if files.scope is not None:
        yield from scope_details(files.scope)
    if files.strips:
        yield "removed: " + ", ".join(WORDS["removed"][one] for one in files.strips)
    if files.without_imports:
        yield "no imports in " + ", ".join(f"`{name}`" for name in files.without_imports)
    if files.limit is not None:
        yield limit_text(files.limit)
    if files.below == "later":
        yield "in folders below: later, when a file there is read"


def scope_details(scope: Scope) -> Iterator[str]:
    """Yield when rules are sent."""
    sent = WORDS["sent"]
    if scope.keys:
        keys = ", ".join(f"`{key}`" for key in scope.keys)
        everything = ", ".join(f"`{one}`" for one in scope.everything)
        all_files = f" (unless only {everything})" if everything else ""
        yield f"rules with {keys}{all_files}: {sent[scope.scoped]}"
    if scope.always:
        yield f"`{scope.always}` decides if it is set"
    if scope.described != "sent":
        yield f"with only a description: {sent[scope.described]}"
    if scope.otherwise != "sent":
        yield f"without both: {sent[scope.otherwise]}"
    if scope.ignores_invalid:
        yield "front matter that is not valid YAML counts as none"
    if scope.off:
        yield f"`{scope.off}: true`: not sent"


def limit_text(limit: Limit) -> str:
    """Return a limit in words."""
    most = [f"{limit.lines:,} lines"] if limit.lines is not None else []
    most += [f"{limit.bytes:,} bytes"] if limit.bytes is not None else []
    whole = WORDS["keeps"][limit.keeps]
    each = " together" if limit.is_shared else " a file"
    return f"at most {' and '.join(most)}{each}{whole}; the rest is lost"


def agent_notes(rules: AgentRules) -> Iterator[str]:
    """Yield what applies to all files of an agent."""
    if rules.once:
        yield WORDS["once"][rules.once]
    if rules.imports is not None:
        yield import_text(rules.imports)
    elif rules.files:
        yield "No imports: `@path` is sent as it stands."
    if rules.constants:
        yield from constant_texts(rules)
    if rules.skill_order != "found":
        yield WORDS["skill-order"][rules.skill_order]
    if rules.entry_limit is not None:
        yield entry_limit_text(rules.entry_limit)
    if rules.settings is not None:
        files = ", ".join(f"`{one}`" for one in rules.settings.files)
        keys = [
            f"`{key}` ({meaning})"
            for field, meaning in WORDS["settings"].items()
            if (key := getattr(rules.settings, field))
        ]
        yield f"Settings: {', '.join(keys)} in {files}."


def constant_texts(rules: AgentRules) -> Iterator[str]:
    """Yield what an agent sends without any files, and when it sends files again."""
    sizes = [
        f"{one.tokens:,}" + (f" for {one.model}" if one.model else " for other models")
        for one in rules.constants
    ]
    yield f"Its own system prompt and tools, in tokens of o200k_base: {', '.join(sizes)}."
    first = rules.constants[0]
    if first.second_call:
        again = " and all instructions again" if rules.second_call_repeats else ""
        yield f"A second call after each answer sends {first.second_call:,} tokens{again}."
    if first.sub_agent:
        yield f"A sub-agent's own system prompt and tools: {first.sub_agent:,} tokens, and the instructions again."
    yield WORDS["changes"][rules.after_change]


def import_text(imports: Imports) -> str:
    """Return the rules of imports in words."""
    after = " ".join(f"`{sign}`" for sign in imports.after)
    trims = " ".join(f"`{sign}`" for sign in imports.trims)
    return " ".join(
        filter(
            None,
            [
                f"Imports (`@path`) up to {imports.hops} files deep, not in code.",
                f"Besides white space, {after} may stand before the `@`." if after else "",
                "A file that is imported twice is sent twice." if imports.repeats else "",
                f"{trims} at the end do not belong to the path." if trims else "",
                "A path may contain `\\ `." if imports.has_escapes else "",
                "They count in HTML comments and blocks."
                if imports.in_html
                else "They do not count in HTML comments and blocks.",
                f"A file imports at most {imports.most}, with those that they import."
                if imports.most
                else "",
                f"A file outside the {WORDS['within'][imports.within]} {imports.outside}.",
            ],
        )
    )


def mcp_section() -> str:
    """Return the part of the page about MCP servers."""
    rows = []
    for agent, rules in mcp_rules().items():
        files = ", ".join(dict.fromkeys(path for file in rules.files for path in file_texts(file)))
        forms = "; ".join(form_text(form) for form in rules.forms)
        pages = "; only the first page of a list of tools" if rules.reads_first_page_only else ""
        rows.append(f"| {loading_rules()[agent].title} | {files} | {forms}{pages} |")
    return "\n".join([WORDS["mcp-head"].rstrip(), *rows, ""])


def file_texts(file: McpFile) -> list[str]:
    """Return where a configuration file may be, and when its servers are started."""
    condition = f" ({file.condition})" if file.condition else ""
    return [f"`{path}`{condition}" for path in file.paths]


def form_text(form: Form) -> str:
    """Return in words what an agent sends of a server's tools, and when."""
    conditions = [f"`{name}={value}`" for name, value in form.variables.items()]
    conditions += [
        f"`{key}: {str(value).lower()}` in the server's entry" for key, value in form.entry.items()
    ]
    conditions += [f"the models `{model}`" for model in form.models]
    text = WORDS["tools"][form.sends]
    if form.description_limit is not None:
        text += f", descriptions up to {form.description_limit:,} characters"
    if "{instructions}" in form.instructions + form.text:
        limit = form.instructions_limit
        text += ", the server's instructions"
        text += f" up to {limit:,} characters" if limit is not None else ""
    return f"with {' or '.join(conditions)}: {text}" if conditions else text


if __name__ == "__main__":
    sys.stdout.write(page().rstrip() + "\n")
