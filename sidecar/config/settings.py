"""Defines all settings with their defaults, the layers that set them, their origins and problems.

A field's encoded name is its key in TOML (kebab-case). The editor's JSON uses the same name in
camelCase. All values are immutable. `config.load` reports values of the wrong type, and uses the
default instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sidecar.config.toml import KeyPath, ValueSpan, find_span
from sidecar.text.globs import MAX_LENGTH
from sidecar.text.printable import printable

DEFAULT_MODEL = "gpt-5"
DEFAULT_RESERVE = 500

URL = r"^https?://[^/\s]"

Fraction = Annotated[float, Meta(gt=0, le=1, description="a number greater than 0 and at most 1")]
Positive = Annotated[int, Meta(ge=1, description="a whole number (1 or more)")]
Natural = Annotated[int, Meta(ge=0, description="a whole number (0 or more)")]
Usd = Annotated[Decimal, Meta(description="an amount in USD (0 or more)")]
NonEmpty = Annotated[str, Meta(min_length=1, description="a non-empty string")]
ModelName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_LENGTH,
        description=f"a model name (1 to {MAX_LENGTH:,} characters)",
    ),
]
Url = Annotated[
    str, Meta(pattern=URL, description="an address that starts with http:// or https://")
]
EnvName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="the name of an environment variable (never the key itself)",
    ),
]
Truncation = Literal["start", "middle", "end"]
Show = Literal["tokens", "percent", "both"]


class Table(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A TOML table. Its fields are the allowed keys."""


class Tokenize(Table, frozen=True):
    """Settings for counting text. A project cannot set them, because they can enable endpoints."""

    use_endpoint: bool = False
    endpoint_window: bool = False
    """Whether to query endpoints for context windows even if `use_endpoint` is disabled."""
    estimator: NonEmpty = "default"
    """The name of a built-in estimator or an installed plug-in."""


class Endpoint(Table, frozen=True):
    """A model server, with patterns for the names of the models that it serves."""

    url: Url
    models: tuple[NonEmpty, ...] = ("*",)
    api_key_env: EnvName | None = None


class TokenizerFile(Table, frozen=True):
    """A `tokenizer.json` or rank file, with patterns for the names of the models that use it."""

    models: tuple[NonEmpty, ...]
    file: NonEmpty


class Price(Table, frozen=True):
    """Prices for models that are missing from the price list, in USD per million tokens."""

    models: tuple[NonEmpty, ...]
    input: Usd
    output: Usd
    cache_read: Usd | None = None
    cache_write: Usd | None = None


class Context(Table, frozen=True):
    """Settings for the context window and its thresholds."""

    limit: Positive | None = None
    reserve: Natural = DEFAULT_RESERVE
    warn_at: tuple[Fraction, ...] = (0.8, 0.95)
    keep_turns: Natural = 4


class Caps(Table, frozen=True):
    """Spending caps in USD per day, session, workspace and git branch. None are set by default."""

    cold_warning_usd: Usd = Decimal("0.50")
    """The status warns if an expired cache makes the next input more expensive by this much. 0
    switches the warning off.
    """

    soft_cap_usd: Usd | None = None
    hard_cap_usd: Usd | None = None
    session_soft_cap_usd: Usd | None = None
    session_hard_cap_usd: Usd | None = None
    workspace_soft_cap_usd: Usd | None = None
    workspace_hard_cap_usd: Usd | None = None
    branch_soft_cap_usd: Usd | None = None
    branch_hard_cap_usd: Usd | None = None
    context_soft_cap: Fraction | None = None
    """A share of the usable context window. Only hooks in coding agents use it."""
    context_hard_cap: Fraction | None = None
    team_soft_cap_usd: Usd | None = None
    """The soft cap on the team's total cost per month (UTC), in USD."""
    team_hard_cap_usd: Usd | None = None


class LedgerSettings(Table, frozen=True):
    """Settings for exporting and merging recorded calls. A project cannot set them."""

    otel_endpoint: Url | None = None
    also: tuple[NonEmpty, ...] = ()
    """Ledgers and exports of other machines, which `cost` and `usage` add to this ledger."""


class Team(Table, frozen=True):
    """Settings for teams that collect their calls in a shared store. A project cannot set them."""

    user: NonEmpty | None = None
    """The user's name. Only a hash is sent. The variable named by `salt_env` contains the salt."""
    team: NonEmpty | None = None
    token_env: EnvName | None = None
    """The variable with the collector's token, instead of `token_file` or `token_command`."""
    token_file: NonEmpty | None = None
    token_command: NonEmpty | None = None
    ca_file: NonEmpty | None = None
    """A file with the certificate of the private authority of the team's servers."""
    salt_env: EnvName | None = None
    store: Url | None = None
    """The HTTP address of the ClickHouse database that `cost --team` queries."""
    store_user: NonEmpty | None = None
    store_password_env: EnvName | None = None
    branches: dict[str, NonEmpty] = {}
    """The labels of git branches, by glob. The first glob that matches a branch applies."""
    labels: dict[str, NonEmpty] = {}
    """The names of projects, by folder with its subfolders or by git remote, as globs."""


class Agents(Table, frozen=True):
    """Settings for reading coding agents' session files. A project cannot set them.

    `sources` lists the agents to read, or is None for all agents. `paths` adds a folder for an
    agent. `labels` determines the label of untitled sessions: either the branch and start time,
    or the first words of the first prompt.
    """

    enabled: bool = True
    sources: tuple[NonEmpty, ...] | None = None
    paths: dict[str, NonEmpty] = {}
    labels: Literal["branch", "first-prompt"] = "branch"


class Budget(Table, frozen=True):
    """The maximum number of tokens in matching files, or in some of their sections.

    `max_tokens` is optional if `sections` is set. `always_loaded` is the agent whose files are
    limited, instead of those that `files` matches.
    """

    files: tuple[NonEmpty, ...] = ()
    always_loaded: NonEmpty | None = None
    max_tokens: Positive | None = None
    warn_at: Fraction = 0.9
    sum: bool = False
    model: ModelName | None = None
    truncation: Truncation | None = None
    sections: dict[str, Positive] = {}


class Status(Table, frozen=True):
    """Settings for the status text."""

    show: Show = "both"
    hide: bool = False


class DiagnosticsSettings(Table, frozen=True):
    """Settings for diagnostics that are not based on budgets."""

    prompt_buffers: bool = False


InstructionCode = Literal[
    "instructions-cut",
    "instructions-hidden",
    "import-skipped",
    "import-twice",
    "skill-lost",
    "rule-always-loaded",
]
"""What can be wrong with a file of instructions for coding agents."""
InstructionSeverity = Literal["error", "warning", "information", "off"]


class FootprintSettings(Table, frozen=True):
    """Settings for findings about what coding agents load.

    `agents` lists the agents to check. It is None for those that are used on this machine.
    `severity` replaces the default severity of a code.
    """

    diagnostics: bool = True
    agents: tuple[NonEmpty, ...] | None = None
    severity: dict[str, InstructionSeverity] = {}


class Settings(Table, frozen=True):
    """All settings for one root folder."""

    model: ModelName = DEFAULT_MODEL
    presets: bool = False
    inlay_hints: bool = False
    code_lens: bool = False
    tokenize: Tokenize = Tokenize()
    endpoints: tuple[Endpoint, ...] = msgspec.field(default=(), name="endpoint")
    tokenizers: tuple[TokenizerFile, ...] = msgspec.field(default=(), name="tokenizer")
    prices: tuple[Price, ...] = msgspec.field(default=(), name="price")
    context: Context = Context()
    cost: Caps = Caps()
    budgets: tuple[Budget, ...] = msgspec.field(default=(), name="budget")
    status: Status = Status()
    diagnostics: DiagnosticsSettings = DiagnosticsSettings()
    footprint: FootprintSettings = FootprintSettings()
    ledger: LedgerSettings = LedgerSettings()
    team: Team = Team()
    agents: Agents = Agents()


@cache
def setting_names() -> frozenset[str]:
    """Return the keys of all tables, in kebab-case."""
    names: set[str] = set()
    for table in Table.__subclasses__():
        names.update(field.encode_name for field in msgspec.structs.fields(table))
    return frozenset(names)


Source = Literal["default", "system", "user", "project", "environment", "editor"]
ProblemSeverity = Literal["error", "warning"]
FileKey = tuple[Source, Path]
"""A file and its role. The same file may be both a user file and a project file."""

_PLAIN_KEY = re.compile(r"[\w.-]{1,60}", re.ASCII)


class Origin(msgspec.Struct, frozen=True):
    """The source of a value. `file` and `line` (1-based) are None if the source is not a file."""

    source: Source
    file: Path | None = None
    line: int | None = None
    path: KeyPath = ()
    """The full path of the key in the file, in the format of `find_spans`."""

    def __str__(self) -> str:
        if self.file is None:
            return self.source
        return f"{self.file}:{self.line}" if self.line else str(self.file)


class Problem(msgspec.Struct, frozen=True):
    """A problem in the configuration. `line` and `column` are 1-based, or None if unknown."""

    file: Path | None
    key: str
    line: int | None
    message: str
    severity: ProblemSeverity = "error"
    source: Source = "user"
    column: int | None = None
    refused: bool = False
    """Whether the file must not be opened, not even by an editor that displays the problem.

    Neovim reads a file that has a diagnostic, so a FIFO or device would block it.
    """

    def __str__(self) -> str:
        where = f"{self.source} settings" if self.file is None else str(self.file)
        place = f"{where}:{self.line}" if self.line else where
        place = f"{place}:{self.column}" if self.line and self.column else place
        return printable(
            f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"
        )


class Layer(msgspec.Struct, frozen=True):
    """The values from one source. `prefix` is the path of the table that contains them."""

    source: Source
    values: Mapping[str, Any]
    file: Path | None = None
    spans: Mapping[KeyPath, ValueSpan] = {}
    keys: Mapping[KeyPath, ValueSpan] = {}
    prefix: KeyPath = ()

    def origin(self, path: KeyPath) -> Origin:
        """Return the origin of the value at a path."""
        full = (*self.prefix, *path)
        span = find_span(self.spans, full)
        return Origin(self.source, self.file, span.line if span else None, full)

    def problem(
        self,
        path: KeyPath,
        message: str,
        severity: ProblemSeverity = "error",
        *,
        at_key: bool = False,
    ) -> Problem:
        """Create a problem that points to the value or the key at a path."""
        full = (*self.prefix, *path)
        span = (self.keys.get(full) if at_key else None) or find_span(self.spans, full)
        line, column = (span.line, span.column) if span else (None, None)
        return Problem(self.file, format_key(path), line, message, severity, self.source, column)

    def spell_key(self, key: str) -> str:
        """Spell a kebab-case key the way this layer does. The editor's layer uses camelCase."""
        return to_camel_case(key) if self.source == "editor" else key


@dataclass(frozen=True)
class Loaded:
    """The settings in effect, and the problems found while loading them."""

    settings: Settings
    problems: tuple[Problem, ...]
    origins: Mapping[str, Origin]
    """The origin of each value, by setting key."""
    files: Mapping[FileKey, Layer] = field(default_factory=dict)
    """The last valid contents of each file."""

    @property
    def configured_model(self) -> str | None:
        """The model that any source sets, or None if it is the default."""
        origin = self.origins.get("model")
        return None if origin is None or origin.source == "default" else self.settings.model


def to_camel_case(key: str) -> str:
    """Convert a key such as `max-tokens` to `maxTokens`."""
    return re.sub(r"-(\w)", lambda match: match.group(1).upper(), key)


def format_key(path: KeyPath) -> str:
    """Format a path such as `("budget", 1, "max-tokens")` as `budget[1].max-tokens`.

    Parts that do not look like keys are replaced by `"..."`, because they may be secrets.
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            printed = part if _PLAIN_KEY.fullmatch(part) else '"..."'
            text += f".{printed}" if text else printed
    return text
