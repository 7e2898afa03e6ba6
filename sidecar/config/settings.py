"""Settings as resolved: frozen, complete, every default of the contract.

Each field's encoded name is its key in TOML (kebab-case); the editor's JSON uses the same name in
camelCase. What a field's type does not allow is reported by `resolve` and falls back.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

DEFAULT_MODEL = "gpt-5"
DEFAULT_RESERVE = 500

URL = r"^https?://[^/\s]"

Fraction = Annotated[float, Meta(gt=0, le=1, description="a number above 0 and at most 1")]
Positive = Annotated[int, Meta(ge=1, description="a whole number, 1 or more")]
Natural = Annotated[int, Meta(ge=0, description="a whole number, 0 or more")]
Usd = Annotated[Decimal, Meta(description="a number of USD, 0 or more")]
Text = Annotated[str, Meta(min_length=1, description="a string that is not empty")]
Url = Annotated[str, Meta(pattern=URL, description="an http:// or https:// address")]
EnvName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="the name of an environment variable (never the key itself)",
    ),
]
Truncation = Literal["start", "middle", "end"]
Show = Literal["tokens", "percent", "both"]
Estimator = Literal["default", "whitespace", "chars4"]


class Table(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A TOML table: its fields are the keys that it may hold."""


class Tokenize(Table, frozen=True):
    """How counts are made. Trusted: a project cannot switch an endpoint on."""

    use_endpoint: bool = False
    estimator: Estimator = "default"


class Endpoint(Table, frozen=True):
    """A model server that the user named, and the models (globs) that it counts."""

    url: Url
    models: tuple[Text, ...] = ("*",)
    api_key_env: EnvName | None = None


class TokenizerFile(Table, frozen=True):
    """A `tokenizer.json` or rank file of the user's, and the models (globs) that it counts."""

    models: tuple[Text, ...]
    file: Text


class Price(Table, frozen=True):
    """USD for a million tokens, for models that no list prices."""

    models: tuple[Text, ...]
    input: Usd
    output: Usd
    cache_read: Usd | None = None
    cache_write: Usd | None = None


class Context(Table, frozen=True):
    """The window and how full it may get."""

    limit: Positive | None = None
    reserve: Natural = DEFAULT_RESERVE
    warn_at: tuple[Fraction, ...] = (0.8, 0.95)
    keep_turns: Natural = 4


class Caps(Table, frozen=True):
    """Spending caps in USD: a day, a session, a workspace. None by default."""

    soft_cap_usd: Usd | None = None
    hard_cap_usd: Usd | None = None
    session_soft_cap_usd: Usd | None = None
    session_hard_cap_usd: Usd | None = None
    workspace_soft_cap_usd: Usd | None = None
    workspace_hard_cap_usd: Usd | None = None


class Ledger(Table, frozen=True):
    """Where recorded usage goes besides the user's state folder: nowhere by default."""

    otel_endpoint: Url | None = None


class Agents(Table, frozen=True):
    """Transcripts of coding agents; it has no keys yet, and is trusted."""


class Budget(Table, frozen=True):
    """One `[[budget]]`: what a glob's files, or sections of them, may hold at most.

    `max_tokens` may be left out when `sections` says all there is to say.
    """

    files: tuple[Text, ...]
    max_tokens: Positive | None = None
    warn_at: Fraction = 0.9
    sum: bool = False
    model: Text | None = None
    truncation: Truncation | None = None
    sections: dict[str, Positive] = {}


class Status(Table, frozen=True):
    """What the status text shows."""

    show: Show = "both"
    hide: bool = False


class Diagnostics(Table, frozen=True):
    """Diagnostics beyond budgets that someone wrote."""

    prompt_buffers: bool = False


class Settings(Table, frozen=True):
    """All settings of one workspace root."""

    model: Text = DEFAULT_MODEL
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
    diagnostics: Diagnostics = Diagnostics()
    ledger: Ledger = Ledger()
    agents: Agents = Agents()


TRUSTED = frozenset({"endpoint", "tokenize", "tokenizer", "price", "cost", "agents", "ledger"})
"""Keys that start, reach or pay for something: never read from a project's file."""
