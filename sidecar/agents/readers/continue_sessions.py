"""Continue: `sessions/<session>.json` of its command line, and `dev_data/` of its extensions.

A session is one document without times, written whole at each save. Its usage counts all calls, its
messages only those that are left: aborted turns, summaries and sub-agents are the difference.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.fields import (
    CamelRecord,
    Number,
    Record,
    count,
    from_ns,
    provider_of,
    usd,
    whole_file,
)
from sidecar.agents.folding import Folded, fold_store
from sidecar.agents.homes import homes
from sidecar.agents.listing import entries, stat_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.readers.continue_dev import ContinueDev
from sidecar.agents.readers.two_stores import TwoStores
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, stored
from sidecar.messages.usage import Usage, disjoint, included

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "continue"
_INDEX = "sessions.json"
_UNTITLED = "Untitled Session"
_SILENT_SECONDS = 3_600.0
"""A session that was not saved for so long waits for no message of a call that it counted."""


class _Cached(Record):
    cached_tokens: Number = None
    cache_write_tokens: Number = None


class _Reasoning(Record):
    reasoning_tokens: Number = None


class _MessageUsage(Record):
    """Of a reply, in OpenAI's form."""

    model: str | None = None
    prompt_tokens: Number = None
    prompt_tokens_details: _Cached | None = None
    completion_tokens: Number = None
    completion_tokens_details: _Reasoning | None = None
    cost_cents: Number = None
    """By Continue's own list, rounded."""

    @property
    def usage(self) -> Usage:
        cached = self.prompt_tokens_details or _Cached()
        read, write = count(cached.cached_tokens), count(cached.cache_write_tokens)
        reasoning = count((self.completion_tokens_details or _Reasoning()).reasoning_tokens)
        output = count(self.completion_tokens)
        return included(count(self.prompt_tokens), read, write, 0, output, reasoning)


class _Message(Record):
    role: str | None = None
    usage: _MessageUsage | None = None


class _ToolState(Record):
    status: str | None = None


class _Item(CamelRecord):
    message: _Message | None = None
    tool_call_states: list[_ToolState] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the agent has more to do after this item."""
        return not self.message or self.message.role != "assistant" or bool(self.tool_call_states)


class _SessionUsage(CamelRecord):
    """Of all calls since the session, or the fork that it is, began."""

    prompt_tokens: Number = None
    completion_tokens: Number = None


class _Session(CamelRecord):
    session_id: str | None = None
    title: str | None = None
    workspace_directory: str | None = None
    history: list[_Item] | None = None
    usage: _SessionUsage | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a turn is under way, as far as the messages say."""
        items = self.history or []
        return bool(items) and items[-1].is_waiting

    @property
    def model(self) -> str | None:
        """Of the newest reply."""
        return next((one.model for one in reversed(self.replies) if one.model), None)

    @property
    def replies(self) -> list[_MessageUsage]:
        """Of the messages that are left, those with the numbers of a call."""
        messages = (item.message for item in self.history or ())
        used = (one.usage for one in messages if one and one.role == "assistant")
        return [one for one in used if one and count(one.prompt_tokens)]


class _State(msgspec.Struct):
    """Of a session: what of it was handed on. A summary takes the place of its messages."""

    replies: set[str] = set()
    """Tokens of each reply that was seen, and which of those with the same tokens it is."""
    prompt: int = 0
    output: int = 0
    """Of all calls that were handed on."""


class ContinueSessions:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(str(home / "sessions") for home in homes(places, AGENT))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        for folder in self.folders(places):
            for entry in entries(folder):
                if _is_session(entry.path) and (found := stat_of(AGENT, entry.path)):
                    yield found

    def store_at(self, places: Places, path: str) -> Found | None:
        inside = os.path.dirname(path) in self.folders(places)
        return stat_of(AGENT, path) if inside and _is_session(path) else None

    def glance(self, look: Look) -> Glance:
        found = look.found
        session = whole_file(found.path, _Session)
        if not look.roots.hold(session.workspace_directory):
            return Glance(found)
        newest = session.replies[-1] if session.replies else None
        track = Track().call(Reading.of(newest.usage, newest.model)) if newest else Track()
        one = stored(
            found,
            session.session_id or Path(found.path).stem,
            session.workspace_directory,
            None,
            occupancy(track),
            model=session.model,
            title=session.title if session.title != _UNTITLED else None,
            active=session.is_waiting,
        )
        return Glance(found, (one,))

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_store(found, mark, _State(), partial(_fold, found))


READER = TwoStores(ContinueSessions(), ContinueDev(), lambda path: not path.endswith(".json"))


def _fold(found: Found, before: _State) -> Folded[_State]:
    session = whole_file(found.path, _Session)
    name = session.session_id or Path(found.path).stem
    known, replies = before.replies, _numbered(session.replies)
    new = {key: one for key, one in replies.items() if key not in known}
    total = session.usage or _SessionUsage()
    prompt = count(total.prompt_tokens) - before.prompt
    output = count(total.completion_tokens) - before.output
    calls: list[Call] = []
    model = "unknown"
    for key, one in reversed(new.items()):  # a fork's first ones are its parent's
        usage, model = one.usage, one.model or model
        if total.prompt_tokens is not None and usage.prompt_tokens > prompt:
            break
        prompt, output = prompt - usage.prompt_tokens, output - usage.output_tokens
        call = _call(found, session, name, model, usage, key)
        cost = usd(one.cost_cents and one.cost_cents / 100)
        calls.append(msgspec.structs.replace(call, agent_cost_usd=cost))
    is_over = bool(new) and not session.is_waiting
    if prompt > 0 and (is_over or time.time() - found.mtime_ns / 1e9 > _SILENT_SECONDS):
        rest = disjoint(prompt, 0, 0, 0, max(0, output), 0)
        model = session.model or model
        call = _call(found, session, name, model, rest, f"{prompt}/{len(known | set(replies))}")
        calls.append(msgspec.structs.replace(call, quality="estimate"))
    done = _State(
        known | set(replies),
        before.prompt + sum(one.usage.prompt_tokens for one in calls),
        before.output + sum(one.usage.output_tokens for one in calls),
    )
    return Folded(done, calls[::-1])


def _numbered(replies: list[_MessageUsage]) -> dict[str, _MessageUsage]:
    """Replies by their tokens, which stay the same when other messages go."""
    found: dict[str, _MessageUsage] = {}
    for one in replies:
        usage, number = one.usage, 0
        tokens = f"{usage.prompt_tokens}/{usage.cache_read_tokens}/{usage.output_tokens}"
        while f"{tokens}/{number}" in found:
            number += 1
        found[f"{tokens}/{number}"] = one
    return found


def _call(found: Found, session: _Session, name: str, model: str, usage: Usage, key: str) -> Call:
    """A call, as new as the file: no message has a time."""
    return Call(
        at=from_ns(found.mtime_ns),
        agent=AGENT,
        session=name,
        model=model,
        provider=provider_of(model),
        usage=usage,
        request=f"{name}/{key}",
        workspace=session.workspace_directory or "",
    )


def _is_session(path: str) -> bool:
    return path.endswith(".json") and os.path.basename(path) != _INDEX
