"""Says how long vendors cache prompts, and decides which calls lost their cache, and why.

Each call of a session's main chain is compared with the call before it. `CacheChain.judge` needs
the calls in order of time and the facts that the agent's file has of them: no text.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import IntEnum
from functools import cache
from typing import Literal, NamedTuple

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


LEAST_TOKENS = 10_000
"""Fewer cached tokens are not worth a report, and vendors cache no very short prompts."""
_LEAST_SIDE_TOKENS = 1_024
_LEAST_LOST = 1_000
"""A compaction after which fewer tokens are sent again has kept the cache."""


class LossCause(IntEnum):
    """Why a call did not read what the call before it had cached. The ledger stores the number."""

    EXPIRED = 1
    LIKELY_EXPIRED = 2
    COMPACTION = 3
    MODEL = 4
    EFFORT = 5
    TOOLS = 6
    SYSTEM = 7
    SHAPE = 8
    """The tools or the system prompt: the file does not tell which."""
    HISTORY = 9
    VERSION = 10
    UNEXPLAINED = 11

    @property
    def text(self) -> str:
        """The cause in a few words, as reports show it."""
        return _TEXTS[self]


_TEXTS = {
    LossCause.EXPIRED: "expired",
    LossCause.LIKELY_EXPIRED: "probably expired",
    LossCause.COMPACTION: "compaction",
    LossCause.MODEL: "model switch",
    LossCause.EFFORT: "effort change",
    LossCause.TOOLS: "tools changed",
    LossCause.SYSTEM: "system prompt changed",
    LossCause.SHAPE: "tools or system prompt changed",
    LossCause.HISTORY: "history edited",
    LossCause.VERSION: "agent updated",
    LossCause.UNEXPLAINED: "unexplained",
}


class CacheLoss(NamedTuple):
    """The verdict on a call of a main chain."""

    tokens: int = 0
    """The tokens that were cached and had to be sent again. 0 if the cache was not lost."""
    cause: LossCause | None = None
    """None if the cache was not lost."""


NO_LOSS = CacheLoss()

_DIAGNOSED = {
    "model_changed": LossCause.MODEL,
    "system_changed": LossCause.SYSTEM,
    "tools_changed": LossCause.TOOLS,
    "messages_changed": LossCause.HISTORY,
}


class CacheFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What an agent's file says about a call that can explain a lost cache. None is unknown."""

    agent: str = ""
    """The agent, if it asks for another lifetime than others do."""
    effort: str | None = None
    tools: str | None = None
    """A digest of the tools."""
    system: str | None = None
    """A digest of the system prompt."""
    shape: str | None = None
    """A digest of both."""
    version: str | None = None
    """The agent's version."""
    is_compacted: bool = False
    """Whether the conversation was compacted since the previous call."""
    is_edited: bool = False
    """Whether turns that the previous call sent were changed since."""
    is_rewound: bool = False
    """Whether the newest turns that the previous call sent were removed since."""
    diagnosis: str | None = None
    """The vendor's own answer, such as `tools_changed`."""
    sent_at: datetime | None = None
    """When the request was sent."""

    def after_call(self) -> CacheFacts:
        """Return the facts that also hold for the next call."""
        return msgspec.structs.replace(
            self,
            is_compacted=False,
            is_edited=False,
            is_rewound=False,
            diagnosis=None,
            sent_at=None,
        )


_COMPARED = (
    ("effort", LossCause.EFFORT),
    ("tools", LossCause.TOOLS),
    ("system", LossCause.SYSTEM),
    ("shape", LossCause.SHAPE),
)


class ChainCall(msgspec.Struct, frozen=True, gc=False):
    """A call of a main chain, with what the next one can be compared to."""

    request: str | None
    at: datetime
    """When the reply was complete."""
    model: str
    prompt: int
    """The whole prompt in tokens."""
    read: int
    written: int
    written_1h: int
    facts: CacheFacts

    @property
    def sent_at(self) -> datetime:
        return self.facts.sent_at or self.at


class CacheChain(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The end of a session's main chain. Immutable: `judge` returns the chain with a call more."""

    last: ChainCall | None = None
    before: ChainCall | None = None
    """The call before `last`, because agents may write a call several times."""
    side: ChainCall | None = None
    """A much smaller call after `last`: a title, or the start of another conversation."""
    writes: bool = False
    """Whether the vendor reports what it caches."""
    keeps_an_hour: bool = False
    """Whether the newest write was for an hour."""

    def judge(self, call: ChainCall) -> tuple[CacheChain, CacheLoss | None]:
        """Return the chain after a call, and the verdict on it.

        The verdict is None for a call that is older than the newest one.
        """
        last = self.last
        if last is not None and call.request == last.request:
            merged = _merge(last.facts, call.facts)
            call = msgspec.structs.replace(call, facts=merged)
            chain = msgspec.structs.replace(self, last=self.before, before=None)
            return chain.judge(call)
        if last is not None and call.at < last.at:
            return self, None
        chain = CacheChain(
            call,
            last,
            writes=self.writes or call.written > 0,
            keeps_an_hour=call.written_1h > 0 if call.written else self.keeps_an_hour,
        )
        # How much of the previous prompt a rewound conversation shares is unknown.
        if last is None or (call.facts.is_rewound and not call.facts.is_compacted):
            return chain, NO_LOSS
        is_side = call.prompt * 2 < last.prompt and last.prompt >= LEAST_TOKENS
        if is_side and not (call.facts.is_compacted or call.facts.is_edited):
            return msgspec.structs.replace(self, side=call), NO_LOSS
        tokens = self._lost_tokens(last, call)
        if tokens <= 0:
            return chain, NO_LOSS
        return chain, CacheLoss(tokens, self._cause(last, call))

    def _lost_tokens(self, last: ChainCall, call: ChainCall) -> int:
        """Return the tokens that were lost, or 0.

        A vendor that does not report what it caches has certainly cached only what the last call
        read. But if it read anything, then its whole prompt is cached too.
        """
        known = last.read + last.written if self.writes else last.read
        kept = known if call.facts.is_compacted else min(known, call.prompt)
        if kept < LEAST_TOKENS or call.read * 2 >= kept or self._continues_side(call):
            return 0
        cached = known if self.writes else last.prompt
        lost = min(cached, call.prompt) - call.read
        return lost if lost >= _LEAST_LOST else 0

    def _continues_side(self, call: ChainCall) -> bool:
        side = self.side
        if side is None:
            return False
        known = side.read + side.written
        return known >= _LEAST_SIDE_TOKENS and call.read * 2 >= known

    def _cause(self, last: ChainCall, call: ChainCall) -> LossCause:
        facts = call.facts
        if facts.is_compacted:
            return LossCause.COMPACTION
        if (diagnosed := _DIAGNOSED.get(facts.diagnosis or "")) is not None:
            return diagnosed
        if call.model != last.model:
            return LossCause.MODEL
        for name, cause in _COMPARED:
            if _differs(last.facts, facts, name):
                return cause
        if facts.is_edited:
            return LossCause.HISTORY
        if _differs(last.facts, facts, "version"):
            return LossCause.VERSION
        return self._cause_of_gap(last, call)

    def _cause_of_gap(self, last: ChainCall, call: ChainCall) -> LossCause:
        """Return whether the cache has expired. Nothing else that the file tells explains it.

        A vendor counts from a time between a request and its reply, which files do not have.
        """
        lifetime = cache_lifetime(last.model, call.facts.agent)
        if lifetime is None:
            return LossCause.UNEXPLAINED
        kept = HOUR if self.keeps_an_hour else timedelta(minutes=lifetime.minutes)
        if lifetime.end == "exact" and call.sent_at - last.at > kept:
            return LossCause.EXPIRED
        if call.at - last.sent_at > kept:
            return LossCause.LIKELY_EXPIRED
        return LossCause.UNEXPLAINED


def _differs(one: CacheFacts, other: CacheFacts, name: str) -> bool:
    """Return whether a fact is known of both calls and differs."""
    before, now = getattr(one, name), getattr(other, name)
    return before is not None and now is not None and before != now


def _merge(first: CacheFacts, again: CacheFacts) -> CacheFacts:
    """Return the facts of a call that is read again. What was noted between the calls stays."""
    return msgspec.structs.replace(
        again,
        is_compacted=first.is_compacted or again.is_compacted,
        is_edited=first.is_edited or again.is_edited,
        is_rewound=first.is_rewound or again.is_rewound,
        diagnosis=again.diagnosis or first.diagnosis,
        sent_at=first.sent_at or again.sent_at,
    )
