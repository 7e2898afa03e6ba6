"""Resolved settings: frozen and complete, with all defaults.

A field's encoded name is its key in TOML (kebab-case); the editor's JSON uses the same name in
camelCase. Values of the wrong type are reported by `resolve` and fall back.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sidecar.text.globs import MAX_LENGTH

DEFAULT_MODEL = "gpt-5"
DEFAULT_RESERVE = 500

URL = r"^https?://[^/\s]"

Fraction = Annotated[float, Meta(gt=0, le=1, description="a number above 0 and at most 1")]
Positive = Annotated[int, Meta(ge=1, description="a whole number, 1 or more")]
Natural = Annotated[int, Meta(ge=0, description="a whole number, 0 or more")]
Usd = Annotated[Decimal, Meta(description="a number of USD, 0 or more")]
NonEmpty = Annotated[str, Meta(min_length=1, description="a string that is not empty")]
ModelName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_LENGTH,
        description=f"a model's name, of 1 to {MAX_LENGTH:,} characters",
    ),
]
Url = Annotated[
    str, Meta(pattern=URL, description="an address that begins with http:// or https://")
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
    """A TOML table; its fields are the allowed keys."""


class Tokenize(Table, frozen=True):
    """How text is counted. Trusted: a project cannot enable an endpoint."""

    use_endpoint: bool = False
    endpoint_window: bool = False
    """Ask endpoints for the model's window even if `use_endpoint` is off."""
    estimator: NonEmpty = "default"
    """A built-in estimator or the name of an installed plug-in."""


class Endpoint(Table, frozen=True):
    """A model server named by the user, with globs of the models it counts for."""

    url: Url
    models: tuple[NonEmpty, ...] = ("*",)
    api_key_env: EnvName | None = None


class TokenizerFile(Table, frozen=True):
    """A user's `tokenizer.json` or rank file, with globs of the models it counts for."""

    models: tuple[NonEmpty, ...]
    file: NonEmpty


class Price(Table, frozen=True):
    """USD per million tokens, for models without a listed price."""

    models: tuple[NonEmpty, ...]
    input: Usd
    output: Usd
    cache_read: Usd | None = None
    cache_write: Usd | None = None


class Context(Table, frozen=True):
    """The context window and its thresholds."""

    limit: Positive | None = None
    reserve: Natural = DEFAULT_RESERVE
    warn_at: tuple[Fraction, ...] = (0.8, 0.95)
    keep_turns: Natural = 4


class Caps(Table, frozen=True):
    """Spending caps in USD per day, session and workspace. None by default."""

    soft_cap_usd: Usd | None = None
    hard_cap_usd: Usd | None = None
    session_soft_cap_usd: Usd | None = None
    session_hard_cap_usd: Usd | None = None
    workspace_soft_cap_usd: Usd | None = None
    workspace_hard_cap_usd: Usd | None = None


class LedgerSettings(Table, frozen=True):
    """Where recorded calls are shipped, besides the ledger in the state folder. Trusted."""

    otel_endpoint: Url | None = None
    otel_signals: bool = False
    """Also export each new call as metrics and spans. Deprecated."""


class Team(Table, frozen=True):
    """Whose calls are shipped, and the store with the calls of the whole team. Trusted."""

    user: NonEmpty | None = None
    """Shipped as a hash, with the salt in the variable that `salt_env` names."""
    team: NonEmpty | None = None
    salt_env: EnvName | None = None
    store: Url | None = None
    """The HTTP address of ClickHouse, which `cost --team` reads."""
    store_user: NonEmpty | None = None
    store_password_env: EnvName | None = None


class Agents(Table, frozen=True):
    """Reading of coding agents' session files on this machine. Trusted.

    `sources` are the agents to read, None for all. `paths` adds a folder per agent. `labels` names
    sessions without a title: by branch and start time, or by the first words of the first prompt.
    """

    enabled: bool = True
    sources: tuple[NonEmpty, ...] | None = None
    paths: dict[str, NonEmpty] = {}
    labels: Literal["branch", "first-prompt"] = "branch"


class Budget(Table, frozen=True):
    """One `[[budget]]`: the maximum tokens of matching files, or of their sections.

    `max_tokens` is optional if `sections` is set.
    """

    files: tuple[NonEmpty, ...]
    max_tokens: Positive | None = None
    warn_at: Fraction = 0.9
    sum: bool = False
    model: ModelName | None = None
    truncation: Truncation | None = None
    sections: dict[str, Positive] = {}


class Status(Table, frozen=True):
    """Contents of the status text."""

    show: Show = "both"
    hide: bool = False


class DiagnosticsSettings(Table, frozen=True):
    """Diagnostics besides those for configured budgets."""

    prompt_buffers: bool = False


class Settings(Table, frozen=True):
    """All settings of one workspace root."""

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
    ledger: LedgerSettings = LedgerSettings()
    team: Team = Team()
    agents: Agents = Agents()


AGENTS = (
    "claude-code", "codex", "copilot-chat", "copilot-cli", "gemini-cli", "opencode", "cline",
    "roo-code", "kilo-code", "goose", "crush", "zed", "amp", "vibe", "continue", "aider",
    "qwen-code", "pi", "kimi-cli", "kimi-code",
)  # fmt: skip
"""Agents whose session files can be read, by their names in `agents` and `source`."""
INCOMPLETE_AGENTS = frozenset({"amp", "claude-code", "gemini-cli", "kilo-code", "opencode", "pi"})
"""Agents that do not write all calls to their files, such as those for titles or summaries."""
LOWER_BOUND_AGENTS = INCOMPLETE_AGENTS - {"claude-code"}
"""Agents whose costs are marked as a lower bound; Claude Code leaves out only short title calls."""


@cache
def setting_names() -> frozenset[str]:
    """Return the keys of all tables, in kebab-case."""
    names: set[str] = set()
    for table in Table.__subclasses__():
        names.update(field.encode_name for field in msgspec.structs.fields(table))
    return frozenset(names)


TRUSTED = frozenset(
    {"endpoint", "tokenize", "tokenizer", "price", "cost", "agents", "ledger", "team"}
)
"""Keys that may contact servers, read other files or spend money: ignored in a project's file."""
