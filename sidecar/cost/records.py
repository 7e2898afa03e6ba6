"""Converts recorded calls and prompt file costs to OpenTelemetry log records.

Only the attributes in this module leave the machine. They are numbers, times, hashes, and names
that are in a fixed list or match a strict pattern.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from sidecar.cost.days import day_name, milliseconds
from sidecar.cost.export import source_of
from sidecar.cost.ledger_events import PROTOCOL, Cost, LedgerEvent
from sidecar.cost.prices import UserTariff
from sidecar.known_agents import all_agents
from sidecar.models.names import LOCAL_PROVIDERS, known_providers
from sidecar.text.globs import matches_any

if TYPE_CHECKING:
    from sidecar.cost.cost_protocol import FileCost
    from sidecar.cost.prices import Prices

SERVICE = "token-sidecar"
EVENT = "gen_ai.client.inference.operation.details"
"""The name of the event that describes a call, as defined by the GenAI semantic conventions."""
FILE_EVENT = "token_sidecar.prompt_file"
"""The name of the event that describes what a prompt file costs."""
DAY_EVENT = "token_sidecar.day"
"""The name of the event that describes what was sent of a day."""
PRICE_EVENT = "token_sidecar.price"
"""The name of the event that describes a model's list prices, in USD per million tokens."""
OTHER = "other"
"""Sent instead of a name that might contain text or paths."""

_PROVIDER_NAMES = {
    "google": "gcp.gemini",
    "aws": "aws.bedrock",
    "azure": "azure.ai.openai",
    "mistral": "mistral_ai",
    "x-ai": "x_ai",
}
"""Provider names that differ between genai-prices and the semantic conventions."""
_CATEGORIES = frozenset(
    {"main", "subagent", "sub-agent", "summary", "compaction", "title", "completion", "embedding"}
)
_NAME = re.compile(r"[\w.:@+-]{1,80}", re.ASCII)
_MODEL = re.compile(r"[\w.:@+/\[\]-]{1,120}", re.ASCII)
_VENDORS = frozenset(("meta-llama", "microsoft", "mistralai", "nvidia", "qwen", "z-ai"))
"""Vendors that are kept in a model's name beside providers, as in `qwen/qwen3-coder`."""
_PRIVATE = re.compile(
    r"^(~|\.{1,2}|[a-z]:)?[/\\]|^(sk|pk|key|ghp)[-_]|@[\w-]+\.[a-z]", re.IGNORECASE
)
"""Matches paths, keys and email addresses that were given as a model name."""
_SLASH = re.compile(r"[/\\]")
_FOLDER = re.compile(r"[~*/\\]|[a-z]:[/\\]", re.IGNORECASE)
"""Matches the start of a folder, as opposed to a git remote."""
_HASH_LENGTH = 32
_PICO = Decimal("1e-12")
_SHARED_IDS = {"claude-code": "anthropic", "codex": "codex", "copilot-chat": "copilot"}
"""Id prefixes for calls that an agent also reports through its own telemetry, keyed by agent.

`contrib/team/schema.sql` uses the same prefixes.
"""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The installation, user and team to which the calls in a shipment belong."""

    installation: str
    """The ledger's random id."""
    secret: str
    """The ledger's random secret, which never leaves the machine."""
    salt: str = ""
    """The team's secret. If it is empty, hashes are keyed with the ledger's secret."""
    user: str = ""
    team: str = ""
    branches: Mapping[str, str] = {}
    """See `Team.branches`."""
    projects: Mapping[str, str] = {}
    """See `Team.labels`."""
    remotes_of: Callable[[str], Sequence[str]] = lambda _workspace: ()
    """Returns the URLs of a workspace's git remotes. May block."""

    def hash(self, name: str) -> str:
        """Return a keyed hash: the first 32 hex digits of HMAC-SHA256."""
        key = (self.salt or self.secret).encode()
        return hmac.new(key, name.encode(), "sha256").hexdigest()[:_HASH_LENGTH]

    @property
    def user_hash(self) -> str:
        """The user's hash, or an empty string if no user is set."""
        return self.hash(self.user) if self.user else ""

    def branch(self, name: str) -> str:
        """Return a git branch's label or, if it has none, its hash."""
        labels = (label for glob, label in self.branches.items() if matches_any([glob], [name]))
        label = next(labels, None)
        return self.hash(name) if label is None else _plain(label)

    def project(self, workspace: str) -> str:
        """Return the name that the user gave to a workspace's project, or an empty string."""
        path = unquote(urlsplit(workspace).path)
        path = path[1:] if path[2:3] == ":" else path  # a drive letter of Windows
        remotes: list[str] | None = None
        for place, label in self.projects.items():
            if _FOLDER.match(place):
                wanted, names = Path(os.path.expanduser(place)).as_posix(), [path]
            else:
                if remotes is None:
                    remotes = [*map(remote_name, self.remotes_of(workspace))]
                wanted, names = remote_name(place), remotes
            if matches_any((wanted, f"{wanted.rstrip('/')}/*"), names):
                return _plain(label)
        return ""

    def resource(self) -> dict[str, str]:
        """Return the attributes that are the same for all records."""
        from sidecar import __version__

        known = {
            "service.name": SERVICE,
            "service.version": __version__,
            "service.instance.id": self.installation,
            "user.hash": self.user_hash,
            "team.id": self.team,
        }
        return {name: value for name, value in known.items() if value}


class ShippedRecord(NamedTuple):
    """A log record for a call or a prompt file's cost."""

    nanoseconds: int
    """When the call or report was made, in nanoseconds since 1970."""
    attributes: Mapping[str, str | int]


class DayTotals(NamedTuple):
    """Totals of calls that were sent. The cost is in USD."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    cost: Decimal = Decimal(0)

    def plus(self, call: ShippedRecord) -> DayTotals:
        known = call.attributes
        return DayTotals(
            self.calls + 1,
            self.prompt + int(known["gen_ai.usage.input_tokens"]),
            self.completion + int(known["gen_ai.usage.output_tokens"]),
            self.cost + Decimal(known.get("token_sidecar.cost_usd", 0)),
        )


def provider_name(provider: str) -> str:
    """Return a provider's name as defined by the semantic conventions.

    Names that users can choose, such as the address of a server, are replaced by `other`.
    """
    known = provider if provider in known_providers() else OTHER
    return _PROVIDER_NAMES.get(provider, known) if provider else "_OTHER"


def remote_name(url: str) -> str:
    """Return the host and path of a git remote, such as `github.com/acme/site`.

    All forms of a remote's URL have the same name.
    """
    _scheme, has_scheme, rest = url.strip().rpartition("://")
    if not has_scheme:  # such as git@github.com:acme/site.git
        rest = rest.replace(":", "/", 1)
    host, _, path = rest.partition("/")
    host = host.rpartition("@")[2].partition(":")[0]
    return f"{host}/{path.strip('/').removesuffix('.git')}"


def model_name(model: str) -> str:
    """Return a model's name without folders, accounts and organizations.

    Slashes are kept only after well-known providers and vendors.
    """
    *prefixes, bare = re.split(r"[/\\]", model)
    if bare.lower().endswith(".gguf"):
        bare = bare.rpartition(":")[2]
    elif bare.startswith("ft:"):  # the name is ft:BASE:ORGANIZATION:NAME:ID
        bare = ":".join(bare.split(":")[:2])
    elif bare.startswith("arn:") or _PRIVATE.search(model):
        return OTHER
    elif (
        prefixes and {prefix.lower() for prefix in prefixes} <= known_providers().keys() | _VENDORS
    ):
        bare = "/".join([*prefixes, bare])
    return bare if _MODEL.fullmatch(bare) else OTHER


def call_id(event: LedgerEvent, row: int, installation: str) -> str:
    """Return a call's id in the team's store, as 32 hex digits.

    If possible, the id is derived from the vendor's or the agent's id for the call. It then stays
    the same if the agent's telemetry or another client also reports the call, or if a new ledger is
    created from the agent's files. Otherwise, the id is derived from the call's row in this ledger.
    """
    request = event.request_id
    if event.telemetry_id and event.agent in _SHARED_IDS:
        name = f"{_SHARED_IDS[event.agent]}/{event.telemetry_id}"
    elif request and event.agent == PROTOCOL and event.provider not in LOCAL_PROVIDERS:
        name = f"{event.provider}/{request}"
    elif request and event.agent != PROTOCOL:
        own = f"{event.session}/{request}"
        if _SLASH.search(event.session):  # a session can be a path, whose hash could be guessed
            number = request.removeprefix(event.session)
            numbers = (number, event.buckets.prompt, event.buckets.completion)
            own = "" if _SLASH.search(number) else "/".join(map(str, numbers))
        name = f"{event.agent}/{own}/{milliseconds(event.at)}" if own else f"{installation}/{row}"
    else:
        name = f"{installation}/{row}"
    return hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]


def record_of(
    event: LedgerEvent, row: int, change: int, identity: Identity, sent: LedgerEvent | None = None
) -> ShippedRecord:
    """Return a call's log record.

    Args:
        event: The call.
        row: The call's row id in the ledger.
        change: The number of the call's last amendment, or 0 if the call was never amended.
        identity: The identity under which the call is shipped.
        sent: The call with the owner that it had when it was first sent; defaults to `event`. Its
            id is kept, so that the store does not count the call twice.
    """
    buckets, cost = event.buckets, event.cost or Cost(None, whole=False)
    known: dict[str, str | int | None] = {
        "event.name": EVENT,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_name(event.provider),
        "gen_ai.request.model": model_name(event.model),
        "gen_ai.agent.name": event.agent if event.agent in (*all_agents(), PROTOCOL) else OTHER,
        "gen_ai.conversation.id": identity.hash(event.session) if event.session else None,
        "token_sidecar.branch": identity.branch(event.branch) if event.branch else None,
        "token_sidecar.project": identity.project(event.workspace) or None,
        "gen_ai.usage.input_tokens": buckets.prompt,
        "gen_ai.usage.output_tokens": buckets.completion,
        "gen_ai.usage.cache_read.input_tokens": buckets.cache_read or None,
        "gen_ai.usage.cache_creation.input_tokens": buckets.cache_writes or None,
        "gen_ai.usage.cache_write.input_tokens": buckets.cache_writes or None,
        "gen_ai.usage.reasoning.output_tokens": buckets.reasoning or None,
        "token_sidecar.call.id": call_id(sent or event, row, identity.installation),
        "token_sidecar.call.version": change + 1,
        "token_sidecar.category": event.category if event.category in _CATEGORIES else OTHER,
        "token_sidecar.service_tier": _plain(event.tier) if event.tier else None,
        "token_sidecar.estimated_tokens": event.estimated_tokens,
        "token_sidecar.cost_usd": None if cost.usd is None else usd_attribute(cost.usd),
        "token_sidecar.cost_source": source_of(cost),
        "token_sidecar.unpriced_tokens": cost.unpriced_tokens or None,
    }
    return ShippedRecord(
        milliseconds(event.at) * 1_000_000,
        {name: value for name, value in known.items() if value is not None},
    )


def file_record(
    file: FileCost, name: str, workspace: str, nanoseconds: int, identity: Identity
) -> ShippedRecord:
    """Return the log record for a prompt file's cost.

    Args:
        file: The file's cost.
        name: The file's name if it is well known, such as `CLAUDE.md`; otherwise empty.
        workspace: The URI of the workspace whose calls contained the file.
        nanoseconds: The time of the report, in nanoseconds since 1970. In the store, a report
            replaces earlier reports from the same day.
        identity: The identity under which the record is shipped.
    """
    known: dict[str, str | int | None] = {
        "event.name": FILE_EVENT,
        "token_sidecar.file.id": identity.hash(file.uri),
        "token_sidecar.file.workspace": identity.hash(workspace),
        "token_sidecar.file.name": name or OTHER,
        "token_sidecar.file.tokens": file.tokens,
        "token_sidecar.file.calls": file.requests,
        "token_sidecar.cost_usd": (
            None if file.cost_usd is None else usd_attribute(Decimal(str(file.cost_usd)))
        ),
    }
    return ShippedRecord(
        nanoseconds, {name: value for name, value in known.items() if value is not None}
    )


def totals_record(totals: DayTotals, day: int, nanoseconds: int) -> ShippedRecord:
    """Return the log record for the totals of a day.

    Args:
        totals: The calls' totals.
        day: The UTC day, counted from 1970-01-01.
        nanoseconds: The time of the report. In the store, it replaces earlier ones of the day.
    """
    known: dict[str, str | int] = {
        "event.name": DAY_EVENT,
        "token_sidecar.day": day_name(day),
        "token_sidecar.day.calls": totals.calls,
        "gen_ai.usage.input_tokens": totals.prompt,
        "gen_ai.usage.output_tokens": totals.completion,
        "token_sidecar.cost_usd": usd_attribute(totals.cost),
    }
    return ShippedRecord(nanoseconds, known)


def price_record(
    prices: Prices, provider: str, model: str, nanoseconds: int
) -> ShippedRecord | None:
    """Return the log record for a model's list prices, or None if it has none.

    The user's own prices are not sent.
    """
    tariff = prices.tariff(model, provider)
    if tariff is None or isinstance(tariff, UserTariff):
        return None
    unit = tariff.prices(datetime.fromtimestamp(nanoseconds / 1e9, UTC), "", 0)
    if unit is None or unit.input is None or unit.output is None:
        return None
    known: dict[str, str | int] = {
        "event.name": PRICE_EVENT,
        "gen_ai.provider.name": provider_name(provider),
        "gen_ai.request.model": model_name(model),
    }
    for name in ("input", "cache_read", "cache_write", "output"):
        known[f"token_sidecar.price.{name}"] = usd_attribute(getattr(unit, name) or Decimal(0))
    return ShippedRecord(nanoseconds, known)


def usd_attribute(usd: Decimal) -> str:
    """Format an exact amount with at most 12 decimal places, such as `0.000219`."""
    text = f"{usd.quantize(_PICO):f}"
    return text.rstrip("0").rstrip(".")


def export_request(records: Sequence[ShippedRecord], resource: Mapping[str, str]) -> dict[str, Any]:
    """Return an OTLP export request in its JSON form that contains the records.

    The form is that of https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: 64-bit
    integers are strings.
    """
    log_records = [
        {
            "timeUnixNano": str(record.nanoseconds),
            "observedTimeUnixNano": str(record.nanoseconds),
            "eventName": str(record.attributes["event.name"]),
            "attributes": _attributes(record.attributes),
        }
        for record in records
    ]
    scope = {"scope": {"name": SERVICE}, "logRecords": log_records}
    source = {"attributes": _attributes(resource)}
    return {"resourceLogs": [{"resource": source, "scopeLogs": [scope]}]}


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {
            "key": name,
            "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)},
        }
        for name, value in values.items()
    ]


def _plain(name: str) -> str:
    return name if _NAME.fullmatch(name) else OTHER
