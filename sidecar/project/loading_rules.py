"""Facts about which files each coding agent sends before the first word.

They are in `loading_rules.toml`, with the version of the agent in which they were measured. To add
an agent, add a table: its keys are the fields of `AgentRules`. Nothing here needs Python.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

from sidecar import typed

Kind = Literal[
    "instructions",
    "rule",
    "import",
    "memory",
    "skill",
    "command",
    "sub-agent",
    "output-style",
]
Where = Literal["user", "chain", "trusted", "between", "root", "start"]
State = Literal["sent", "cut", "name-only", "later", "hidden"]


class Scope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Which front matter of a rule decides when it is sent."""

    keys: tuple[str, ...] = ()
    """The keys with patterns: the rule is sent when a matching file is in the context.

    The first key that has patterns decides.
    """
    everything: tuple[str, ...] = ()
    """The patterns that mean all files. A rule that has no others is sent at once."""
    always: str = ""
    """A key that decides alone: sent at once if true, and not at once if false."""
    off: str = ""
    """A key that leaves the rule out if it is true."""
    ignores_invalid: bool = False
    """Whether front matter that is not valid YAML counts as none."""
    scoped: State = "later"
    """What is sent of a rule with patterns."""
    described: State = "sent"
    """What is sent of a rule with a description and without patterns."""
    otherwise: State = "sent"
    """What is sent of a rule with neither."""


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """How much an agent sends of some files."""

    bytes: int | None = None
    lines: int | None = None
    is_shared: bool = False
    """Whether the limit is for all files together, in the order of the request."""
    keeps: Literal["bytes", "lines", "files"] = "bytes"
    """The unit that is kept whole: a file that crosses the limit is cut after the last byte or
    line that fits, or left out.
    """


class Files(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Files that an agent looks for in some folders."""

    where: tuple[Where, ...]
    """`user`: the agent's folders of the user's. `chain`: from the root of the git repository to
    the folder where the agent starts. `root` and `start`: its ends. `between`: the rest of it.
    `trusted`: from the nearest folder in `AgentRules.trust_key` to the start, or the start alone.
    """
    files: tuple[str | tuple[str, ...], ...]
    """The files in each folder, in order. Of names in a list, only the first that exists is read.

    A pattern (`*`) finds rules. `{slug}` is the path of the repository, with `-` for everything
    but letters and digits, `{name}` the name of the start folder in `AgentRules.names_file`, and
    `{style}` the chosen output style. For `user`, paths may also have the form of folders in
    `known_agents.toml`.
    """
    kind: Kind | None = None
    """The kind of these files. By default patterns find rules, and names instructions."""
    above: Literal["never", "without-git", "one", "always"] = "never"
    """When the chain goes on above the repository, to the root of the file system.

    `one` adds one folder above a repository, and all folders without a repository. Without a
    repository, a chain that never goes on is the start folder alone.
    """
    innermost_first: bool = False
    fallbacks: tuple[tuple[str, ...], ...] = ()
    """Names that are read only if no folder has a name that is not here, or is in a list before."""
    empty_hides: bool = True
    """Whether a file without text stands before others."""
    below: Literal["never", "later"] = "never"
    """Whether files in folders below the start are read once the agent opens a file there."""
    hides_below: bool = False
    """Whether `fallbacks` applies to folders below as well."""
    warns_beside: bool = False
    """Whether authors should know that a fallback is hidden by a file in its own folder."""
    is_sorted: bool = False
    """Whether the files are sent in the order of their names, not of their folders."""
    hides_same_name: bool = False
    """Whether a rule hides later ones of the same name in other folders."""
    scope: Scope | None = None
    drops_invalid: bool = False
    """Whether a rule is not sent if its front matter is not valid YAML."""
    skips_links: bool = False
    """Whether a rule that is a link is not sent."""
    stays_inside: bool = False
    """Whether a file is not sent if it is a link that leads out of the project."""
    links_as_imports: bool = False
    """Whether a rule behind a link counts as an import, so that `Imports.within` applies to it."""
    has_settings: bool = False
    """Whether the settings `names`, `also_names` and `more_names` change the names.

    Each entry of an agent takes one of `names` in turn, and the last one takes the rest.
    """
    without_imports: tuple[str, ...] = ()
    """Those of `files` in which `AgentRules.imports` does not apply."""
    strips: tuple[Literal["comments", "front-matter", "ends"], ...] = ()
    """What the agent removes: HTML comments that are blocks, YAML, white space at the ends."""
    limit: Limit | None = None


class Imports(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """How an agent reads `@path` imports."""

    hops: int
    """How many files may import one another in a row."""
    after: str = ""
    """The characters that may stand before the `@` sign, besides white space."""
    trims: str = ""
    """The characters that do not belong to the path at its end."""
    has_escapes: bool = False
    """Whether a path may contain spaces after a backslash."""
    in_html: bool = False
    """Whether imports in HTML comments and blocks count."""
    repeats: bool = False
    """Whether a file that is imported twice is sent twice."""
    within: Literal["root", "start"] = "root"
    """The folder that contains every file that can be imported."""
    outside: str = "is not sent"
    """What happens to imports of other files."""
    most: int | None = None
    """How many files are imported by a file and those that it imports. The rest is not sent."""
    approval_files: tuple[str, ...] = ()
    """The user's files that may say that imports of other files are sent, too."""
    approval_keys: tuple[str, ...] = ()
    """The keys in those files, from the top. `{root}` is the path of the repository."""


class Entries(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """Skills, commands or sub-agents, of which only a line with the description is sent."""

    kind: Kind
    where: tuple[Where, ...]
    """As in `Files`."""
    files: tuple[str, ...]
    """Patterns, as in `Files`."""
    without: tuple[str, ...] = ()
    """The names of folders that contain the agent's own entries, which belong to its constant."""
    innermost_first: bool = False
    form: str = "- {name}: {description}"
    """What is sent of an entry. It may contain `{path}` and `{level}` (`user` or `project`)."""
    name_form: str = "- {name}"
    """What is sent without the description."""
    max_description: int | None = None
    """The most characters of a description."""
    mark: str = "..."
    """The end of a description that is cut. It is part of the limit."""
    drops_long: bool = False
    """Whether an entry with a longer description is left out instead."""
    more: str = ""
    """The key of a text that is added to the description."""
    joins: str = " - "
    """What stands between them."""
    limits_more: bool = True
    """Whether `max_description` is for both together."""
    first_line: bool = False
    """Whether the first line of the body is the description if there is none."""
    undescribed: Literal["hidden", "name-only"] = "hidden"
    """What is sent of an entry without a description."""
    off: tuple[str, ...] = ()
    """The keys that keep an entry out of the list if they are true, until the user calls it."""
    off_file: str = ""
    """A YAML file in the entry's folder."""
    off_key: str = ""
    """The key in `off_file` that keeps an entry out of the list if it is false."""
    scopes: tuple[str, ...] = ()
    """The keys with patterns that keep it out until a matching file is in the context."""
    needs_trust: bool = False
    """Whether they are sent only once the user has trusted the project, which is not known here."""
    is_limited: bool = True
    """Whether the entries are in the list that `AgentRules.entry_limit` limits."""
    is_repeated: bool = True
    """Whether sub-agents send the list again."""


class EntryLimit(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """How long an agent's list of skills and commands may be."""

    loses: Literal["descriptions", "lengths", "rest"]
    """What is lost first: whole descriptions, except of the most used entries; the ends of all
    descriptions; or all descriptions after the first that does not fit.
    """
    characters: int | None = None
    window_share: float | None = None
    """The share of the context window that the agent reports, if the limit depends on it."""
    per_token: tuple[tuple[int, float], ...] = ((1_000_000_000, 1.0),)
    """How much of the list a token of the window stands for, by the largest window."""
    reserved: int = 0
    """How much the agent's own entries take."""
    variable: str = ""
    """The environment variable that replaces the limit."""
    used_file: str = ""
    """The user's file that contains how often entries were used."""
    used_key: str = ""
    """The key in that file."""


class Constant(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """What an agent sends without any files, in tokens of o200k_base."""

    model: str
    """The model, or empty if it is the same for all others."""
    system: int
    environment: int = 0
    """The part that describes the folder, the platform and the date."""
    tools: int = 0
    second_call: int = 0
    """The system prompt and tools of another call that follows each answer."""
    sub_agent: int = 0
    """The system prompt and tools of a sub-agent's call."""

    @property
    def tokens(self) -> int:
        """The sum in the first request of a session."""
        return self.system + self.environment + self.tools


class Settings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """An agent's settings that change what it loads: the names of its keys, with dots."""

    files: tuple[str, ...]
    """The settings files, in the form of `Files.files`. A later one overrides an earlier one.

    A path without `~`, `$` or `{` is in the start folder.
    """
    bytes: str = ""
    """The key for `Limit.bytes`."""
    more_names: str = ""
    """The key for names that are tried after others."""
    also_names: str = ""
    """The key for names that are read in addition to the others."""
    names: str = ""
    """The key for names that replace those of all chains."""
    excludes: str = ""
    """The key for patterns of files that are not read."""
    adds: str = ""
    """The key for paths and patterns of more files."""
    max_description: str = ""
    """The key for `Entries.max_description`."""
    window_share: str = ""
    """The key for `EntryLimit.window_share`."""
    output_style: str = ""
    """The key for the name of the chosen output style."""


AfterChange = Literal["appended", "replaced", "kept", "new"]


class AgentRules(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """The files that one agent sends."""

    title: str
    """The agent's name, as its maker writes it."""
    version: str = ""
    """The version in which this was measured. It is empty if it is from documentation."""
    source: str
    home: tuple[str, ...] = ()
    """The agent's folders of the user's, in the form of `folders` in `known_agents.toml`."""
    names_file: str = ""
    """The user's file in which the agent keeps a name for each folder."""
    names_key: str = ""
    """The key in that file. Its value has the names by path."""
    once: Literal["", "file", "text"] = ""
    """What is sent only once: the same file under two names, or the same text."""
    files: tuple[Files, ...] = ()
    """In the order of the request."""
    trust_files: tuple[str, ...] = ()
    """The user's files in which the agent keeps the folders that the user trusts."""
    trust_key: str = ""
    """The key in those files."""
    entries: tuple[Entries, ...] = ()
    skill_order: Literal["found", "name", "level"] = "found"
    """How the list of skills is sorted: not at all, by name, or by name, the project's and the
    user's apart.
    """
    entries_first: bool = False
    """Whether they are sent before the files."""
    entry_limit: EntryLimit | None = None
    imports: Imports | None = None
    settings: Settings | None = None
    constants: tuple[Constant, ...] = ()
    """By model. The first whose model's name the used one starts with applies, else the last."""
    second_call_repeats: bool = False
    """Whether the instructions are sent again in the call that follows each answer."""
    after_change: AfterChange = "replaced"
    """What happens to the text in a running session after a file was changed and the session was
    resumed: it is sent again at the end, replaced in place, or kept; or sessions are never resumed.
    """

    def constant(self, model: str) -> Constant | None:
        """Return what the agent sends without any files, or None if it was not measured."""
        found = (one for one in self.constants if one.model and model.startswith(one.model))
        return next(found, self.constants[-1] if self.constants else None)

    @property
    def names(self) -> list[str]:
        """The names and patterns of all files that are looked for, except entries."""
        groups = (group for one in self.files for group in one.files)
        return [name for one in groups for name in ((one,) if isinstance(one, str) else one)]

    @property
    def measured_model(self) -> str:
        """The model that the constants were measured with. Empty if there are none."""
        return self.constants[0].model if self.constants else ""


@cache
def loading_rules() -> dict[str, AgentRules]:
    """Return the rules by agent. Reads a file on first use."""
    return typed.read_table("sidecar.project", "loading_rules.toml", dict[str, AgentRules])


def model_of_agent(agent: str, used: str | None, default: str, chosen: str | None = None) -> str:
    """Return the model to count for.

    Args:
        agent: The agent.
        used: The model that the agent has called, if known.
        default: The model in the settings, for agents that were not measured.
        chosen: The model that the user has chosen, if any.
    """
    return used or chosen or loading_rules()[agent].measured_model or default


@cache
def prompt_file_names() -> frozenset[str]:
    """Return the names and patterns of all prompt files, without their folders.

    They reveal nothing about the user, so they may be sent to a collector.
    """
    names = (name for rules in loading_rules().values() for name in rules.names)
    return frozenset(name.rpartition("/")[2] for name in names)
