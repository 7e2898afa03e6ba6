"""How long vendors keep a prompt in their cache, as in `cache_lifetimes.toml`."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Literal

import msgspec

from sidecar import typed
from sidecar.models.names import compiled, parse

HOUR = timedelta(hours=1)
"""The lifetime of what a call writes for an hour, whatever the model."""


CacheEnd = Literal["exact", "earliest", "typical"]
"""What is known about the time until which a prompt is cached: when exactly it is deleted, until
when it is kept at least, or until when it is usually kept.
"""


class CacheLifetime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a vendor keeps a prompt, as in `cache_lifetimes.toml`."""

    models: str
    minutes: int
    end: CacheEnd
    agents: frozenset[str] = frozenset()
    """The agents that request this lifetime, or an empty set if it is the vendor's default."""


@cache
def _lifetimes() -> tuple[CacheLifetime, ...]:
    table = typed.read_table(
        "sidecar.cost", "cache_lifetimes.toml", dict[str, tuple[CacheLifetime, ...]]
    )
    return table["lifetime"]


def cache_lifetime(model: str, agent: str) -> CacheLifetime | None:
    """Return how long an agent's prompts to a model stay cached, or None if it is unknown."""
    bare = parse(model).bare
    return next(
        (
            lifetime
            for lifetime in _lifetimes()
            if compiled(lifetime.models).match(bare)
            and (not lifetime.agents or agent in lifetime.agents)
        ),
        None,
    )
