"""Reads Claude Code's `projects/<project>/<session>.jsonl` and its sub-agents' files.

A message has one line per content block, each with the usage up to that block. Only the line with
the most output tokens is counted. Resumed sessions, forks and sidechains repeat messages with the
same ids.

Calls that summarize a conversation for a compaction are not recorded as messages. However,
`cost-state` lines contain each model's total usage, including sub-agents and summaries. After a
compaction, the summary's usage is therefore the increase in this total minus the usage of the
messages.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sidecar import typed
from sidecar.agents.context_sizes import Content, ContextSizes, PartKind
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    json_digest,
    open_quietly,
    parse_iso_time,
    parse_usd,
)
from sidecar.agents.folders import Places, Roots, agent_folders
from sidecar.agents.session_events import CallFinished, CallSize, Store, StoredSession
from sidecar.agents.stores import (
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    is_folder,
    list_folder,
    read_records,
    record_at,
    store_from_path,
    walk,
)
from sidecar.cost.cache_losses import CacheFacts
from sidecar.cost.ledger_events import split
from sidecar.messages.vendor_usage import Usage, normal_tier, region_suffix, usage_from_parts
from sidecar.models import catalogue
from sidecar.models.catalogue import provider_of
from sidecar.models.names import parse

_SYNTHETIC = "<synthetic>"
_MARKED_SINCE = (2, 1, 300)
_UNFINISHED = (None, "tool_use", "pause_turn")
"""Stop reasons after which the agent continues."""
TITLES = ("custom_title", "ai_title", "summary")
"""The fields that may contain a title, in order of preference."""


class _Split(Record):
    ephemeral_5m_input_tokens: TokenCount = None
    ephemeral_1h_input_tokens: TokenCount = None


class _Searches(Record):
    web_search_requests: TokenCount = None


_NO_SPLIT = _Split()


class PartUsage(Record):
    """The token counts of a message, or of one of the calls that produced it."""

    type: str | None = None
    model: str | None = None
    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cache_creation_input_tokens: TokenCount = None
    cache_read_input_tokens: TokenCount = None
    cache_creation: _Split | None = None

    @property
    def counts(self) -> Usage:
        split = self.cache_creation or _NO_SPLIT
        hour = split.ephemeral_1h_input_tokens or 0
        by_lifetime = hour + (split.ephemeral_5m_input_tokens or 0)
        return usage_from_parts(
            self.input_tokens or 0,
            self.cache_read_input_tokens or 0,
            max(self.cache_creation_input_tokens or 0, by_lifetime),
            hour,
            self.output_tokens or 0,
            0,
        )


class MessageUsage(PartUsage):
    service_tier: str | None = None
    speed: str | None = None
    inference_geo: str | None = None
    server_tool_use: _Searches | None = None
    iterations: list[PartUsage] | None = None

    def with_lifetime(self, requested: str | None) -> MessageUsage:
        """Return a copy that says how long the cache writes live, if only the line says so."""
        if self.cache_creation is not None or requested not in ("5m", "1h"):
            return self
        written = self.cache_creation_input_tokens
        split = _Split(**{f"ephemeral_{requested}_input_tokens": written})
        return msgspec.structs.replace(self, cache_creation=split)

    @property
    def searches(self) -> int:
        return (self.server_tool_use and self.server_tool_use.web_search_requests) or 0


class _MissReason(Record):
    type: str | None = None


class _Diagnostics(Record):
    """What the vendor says about a request, if Claude Code asked for it."""

    cache_miss_reason: _MissReason | None = None


class ClaudeMessage(Record):
    id: str | None = None
    model: str | None = None
    content: Content = None
    stop_reason: str | None = None
    usage: MessageUsage | None = None
    diagnostics: _Diagnostics | None = None


class _CompactMetadata(CamelRecord):
    post_tokens: TokenCount = None
    """Claude Code's own estimate of the context size after a compaction."""


class ModelUsage(CamelRecord):
    """A model's total usage in a session, including sub-agents and compactions."""

    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cache_read_input_tokens: TokenCount = None
    cache_creation_input_tokens: TokenCount = None
    cache_creation_ephemeral_1h_input_tokens: TokenCount = msgspec.field(
        default=None, name="cacheCreationEphemeral1hInputTokens"
    )
    cost_usd: Number = msgspec.field(default=None, name="costUSD")

    @property
    def parts(self) -> ModelParts:
        return (
            self.input_tokens or 0,
            self.cache_read_input_tokens or 0,
            self.cache_creation_input_tokens or 0,
            self.cache_creation_ephemeral_1h_input_tokens or 0,
            self.output_tokens or 0,
        )


ModelParts = tuple[int, int, int, int, int]
"""Token counts: uncached input, cache reads, all cache writes, one-hour cache writes, output."""


class _Origin(CamelRecord):
    """The line that `/branch` copied."""

    session_id: str | None = None


class _Params(Record):
    thinking: msgspec.Raw = msgspec.Raw(b"")
    output_config: msgspec.Raw = msgspec.Raw(b"")
    """The effort."""


class TranscriptLine(CamelRecord):
    type: str | None = None
    id: str | None = None
    """The id of a request if this is an `api-request` line, like all fields up to `tail`."""
    shape_hash: str | None = None
    params: _Params | None = None
    base: str | None = None
    """The request with which this one shares the first `keep` messages."""
    keep: TokenCount = None
    tail: tuple[str, ...] = ()
    """The hashes of the other messages."""
    request_ref: str | None = None
    """The request that this line replies to."""
    subtype: str | None = None
    uuid: str | None = None
    timestamp: str | None = None
    session_id: str | None = None
    session_kind: str | None = None
    forked_from: _Origin | None = None
    request_id: str | None = None
    prompt_cache_requested: str | None = None
    """The lifetime that the request asked for, `5m` or `1h`."""
    cwd: str | None = None
    git_branch: str | None = None
    is_sidechain: bool | None = None
    is_compact_summary: bool | None = None
    is_api_error_message: bool | None = None
    custom_title: str | None = None
    ai_title: str | None = None
    summary: str | None = None
    version: str | None = None
    is_meta: bool | None = None
    prompt_source: msgspec.Raw = msgspec.Raw(b"")
    turn_position: msgspec.Raw = msgspec.Raw(b"")
    tool_use_result: msgspec.Raw = msgspec.Raw(b"")
    compact_metadata: _CompactMetadata | None = None
    model_usage: dict[str, ModelUsage] | None = None
    """The usage of each model if this is a `cost-state` line."""
    message: ClaudeMessage | None = None
    attachment: msgspec.Raw = msgspec.Raw(b"")
    prevent_continuation: bool | None = None
    """Whether a hook refused the prompt."""

    @property
    def is_copy(self) -> bool:
        """Whether a fork may have copied this line. Background forks also mark their own lines."""
        return self.forked_from is not None or self.session_kind == "bg"

    @property
    def starts_turn(self) -> bool:
        """Whether the agent works after this line, because it is a prompt or a tool result."""
        if self.is_meta:
            return False
        marks = (self.prompt_source, self.turn_position, self.tool_use_result)
        return any(map(bytes, marks)) or not _marks_prompts(self.version)

    @property
    def is_stopped_by_hook(self) -> bool:
        """Whether a hook refused the prompt, or ended the turn when a tool was called."""
        is_stop = bytes(self.attachment).startswith(b'{"type":"hook_stopped_continuation"')
        return is_stop or self.prevent_continuation is True

    @property
    def ends_turn(self) -> bool:
        """Whether the agent is idle after this line."""
        if self.is_stopped_by_hook:
            return True
        if self.type != "assistant" or self.message is None:
            return self.type == "user" and not self.starts_turn
        return self.call is None or self.message.stop_reason not in _UNFINISHED

    @property
    def title_kind(self) -> str | None:
        """The name of the field that holds a title on this line, or None."""
        if self.custom_title:
            return "custom_title"
        return "ai_title" if self.ai_title else "summary" if self.summary else None

    @property
    def title(self) -> str | None:
        return self.custom_title or self.ai_title or self.summary

    @property
    def call(self) -> tuple[ClaudeMessage, MessageUsage] | None:
        """The message and its usage if this line is a model's reply, otherwise None."""
        message = self.message
        if self.type != "assistant" or message is None or message.usage is None:
            return None
        if message.model == _SYNTHETIC:
            return None
        return message, message.usage.with_lifetime(self.prompt_cache_requested)

    def add_parts(self, sizes: ContextSizes) -> None:
        """Add the parts of the conversation in this line."""
        if self.type == "attachment":
            sizes.add("instructions", self.attachment)
        elif self.message is not None and self.type in ("user", "assistant"):
            kind: PartKind = "assistant" if self.type == "assistant" else "user"
            if self.is_compact_summary:
                kind = "summary"
            elif self.is_meta:
                kind = "instructions"
            sizes.add_message(self.message.content, kind)


decode = typed.decoder(TranscriptLine)


@lru_cache(maxsize=64)
def _marks_prompts(version: str | None) -> bool:
    try:
        numbers = tuple(map(int, (version or "").split(".")))
    except ValueError:
        return False
    return numbers >= _MARKED_SINCE


def _size_of_last_call(message: ClaudeMessage, usage: MessageUsage) -> CallSize:
    """Return the size of the last call that contributed to a message.

    The usage in the message is the total of all of these calls.
    """
    last: PartUsage = usage
    if usage.iterations:
        calls = [part for part in usage.iterations if part.type in (None, "message")]
        last = calls[-1] if len(calls) > 1 else usage
    return CallSize.of(last.counts, message.model)


def sum_of(parts: list[PartUsage]) -> Usage:
    return usage_from_parts(*_sum_usage(_parts_of(part.counts) for part in parts), 0)


def five_minutes(numbers: Usage, usage: MessageUsage) -> int:
    """Return the number of tokens written to the five-minute cache."""
    split = (usage.cache_creation or _NO_SPLIT).ephemeral_5m_input_tokens or 0
    return min(split, numbers.cache_write_tokens - numbers.cache_write_1h_tokens)


def tier_of(usage: MessageUsage) -> str:
    """Return the service tier, including fast mode and region. All three affect the price."""
    tier = normal_tier(usage.speed) or normal_tier(usage.service_tier)
    return tier + region_suffix(usage.inference_geo)


_NOTHING: ModelParts = (0, 0, 0, 0, 0)
_MOST_MESSAGES = 500
"""Maximum number of messages between consecutive `cost-state` lines.

If there are more messages, the usage of summaries is unknown.
"""


class _Added(CamelRecord):
    """Deferred tools, or instructions of MCP servers, which Claude Code announces to the model."""

    type: str | None = None
    added_names: tuple[str, ...] = ()
    added_blocks: tuple[str, ...] = ()
    """The instructions of each server in `added_names`."""


class _Shape(Record):
    tools: tuple[msgspec.Raw, ...] = ()


class _FirstLine(Record):
    """A line before the first reply."""

    type: str | None = None
    attachment: _Added | None = None
    shape: _Shape | None = None
    """The request, if it is stored."""


class _SentTool(Record):
    name: str = ""


_decode_first_line, _decode_sent_tool = typed.decoder(_FirstLine), typed.decoder(_SentTool)
_MCP_TOOL = re.compile(r"mcp__(.+?)__")
"""Matches the beginning of a tool's name, up to the server's name."""
_UNUSABLE = re.compile(r"[^\w-]", re.ASCII)
"""Matches a character that is replaced in the names of tools."""
_MOST_FIRST_BYTES = 4 << 20
"""Where to stop looking for the tools in a session's first request."""
_OF_FIRST_REQUEST = (b"_delta", b"api-request-shape", b'"type":"assistant"')
"""One of these is in each line that `read_mcp_texts` needs."""


def read_mcp_texts(data: bytes) -> dict[str, str]:
    """Return the texts about each MCP server in the first request, by the server's name in tools.

    Args:
        data: The beginning of a transcript. It may end within a line.
    """
    found: dict[str, list[str]] = {}
    for text in data.split(b"\n"):
        if any(mark in text for mark in _OF_FIRST_REQUEST):
            with suppress(msgspec.DecodeError):  # the data ends within the line
                line = _decode_first_line(text)
                if line.type == "assistant":
                    break
                for server, sent in _sent_mcp_texts(line):
                    found.setdefault(server, []).append(sent)
    return {server: "\n".join(texts) for server, texts in found.items()}


def _sent_mcp_texts(line: _FirstLine) -> Iterator[tuple[str, str]]:
    named = [(_decode_sent_tool(one).name, one) for one in line.shape.tools] if line.shape else []
    texts = [(name, bytes(tool).decode()) for name, tool in named]
    added = line.attachment or _Added()
    if added.type == "deferred_tools_delta":
        texts += [(name, name) for name in added.added_names]
    for name, text in texts:
        if found := _MCP_TOOL.match(name):
            yield found[1], text
    if added.type == "mcp_instructions_delta":
        for server, block in zip(added.added_names, added.added_blocks, strict=False):
            yield _UNUSABLE.sub("_", server), block


class CostCheck(msgspec.Struct):
    """Computes the usage of compaction summaries from `cost-state` lines and messages."""

    totals: dict[str, ModelParts] = {}
    """The total usage in the latest `cost-state` line, keyed by model."""
    at: str | None = None
    """The timestamp of the latest `cost-state` line."""
    messages: dict[str, tuple[str, ModelParts]] = {}
    """The model and usage of each message since the latest `cost-state` line."""
    compacted_model: str | None = None
    """The model of the last compacted conversation, or None if nothing was compacted since `at`."""

    def add_message(self, name: str, model: str | None, usage: MessageUsage) -> None:
        """Add a message's usage.

        If the message was added before, the version with more output is kept.
        """
        if len(self.messages) <= _MOST_MESSAGES:
            _add_message(self.messages, name, model, usage)

    def apply(self, line: TranscriptLine, path: str) -> tuple[str, Usage] | None:
        """Apply a `cost-state` line.

        Returns:
            The model and usage of the summaries since the previous `cost-state` line, or None.
        """
        totals: dict[str, ModelParts] = {}
        for name, used in (line.model_usage or {}).items():
            bare = parse(name).bare
            totals[bare] = _sum_usage((totals.get(bare, _NOTHING), used.parts))
        rest, model = _NOTHING, self.compacted_model
        if model is not None and len(self.messages) <= _MOST_MESSAGES:
            messages = {
                **self.messages,
                **_subagent_usage(path, parse_iso_time(self.at), parse_iso_time(line.timestamp)),
            }
            total = _usage_between(self.totals, totals).get(parse(model).bare, _NOTHING)
            taken = (parts for name, parts in messages.values() if name == parse(model).bare)
            rest = _subtract_usage(total, _sum_usage(taken))
        self.totals, self.at, self.messages = totals, line.timestamp, {}
        self.compacted_model = None
        fresh, read, write, hour, output = (max(0, number) for number in rest)
        if model is None or not (fresh + read + write and output):
            return None
        return model, usage_from_parts(fresh, read, write, min(hour, write), output, 0)


def _usage_between(
    before: dict[str, ModelParts], after: dict[str, ModelParts]
) -> dict[str, ModelParts]:
    grown = {
        name: _subtract_usage(parts, before.get(name, _NOTHING)) for name, parts in after.items()
    }
    has_all = before.keys() <= after.keys()
    return grown if has_all and all(min(parts) >= 0 for parts in grown.values()) else after


def _sum_usage(all_parts: Iterable[ModelParts]) -> ModelParts:
    fresh, read, write, hour, output = map(sum, zip(_NOTHING, *all_parts, strict=True))
    return fresh, read, write, hour, output


def _subtract_usage(one: ModelParts, other: ModelParts) -> ModelParts:
    return _sum_usage((one, tuple(-number for number in other)))  # type: ignore[arg-type]


def _subagent_usage(
    path: str, since: datetime | None, until: datetime | None
) -> dict[str, tuple[str, ModelParts]]:
    messages: dict[str, tuple[str, ModelParts]] = {}
    for found in walk(Path(path).with_suffix("") / "subagents"):
        for line in read_records(found, decode) if found.endswith(".jsonl") else ():
            at = parse_iso_time(line.timestamp)
            if line.call is None or at is None or (until and at > until):
                continue
            if since is None or at > since:
                message, usage = line.call
                _add_message(messages, message.id or line.uuid or "", message.model, usage)
    return messages


def _add_message(
    messages: dict[str, tuple[str, ModelParts]], name: str, model: str | None, usage: MessageUsage
) -> None:
    new = parse(model or "").bare, _parts_of(usage.counts)
    messages[name] = max(messages.get(name, new), new, key=lambda one: one[1][-1])


def _parts_of(usage: Usage) -> ModelParts:
    return (
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        usage.output_tokens,
    )


AGENT = "claude-code"
_LONGEST_SLUG = 200
_SMALL_WINDOW, _LARGE_WINDOW = 200_000, 1_000_000


_ROOM_FOR_REPLY, _ROOM_FOR_COMPACTION = 20_000, 13_000
"""Tokens at the end of the window that Claude Code 2.1.332 does not use."""


def window_of_prompt(tokens: int) -> int | None:
    """Return the context window that a prompt of this size requires, if it is the larger one.

    Transcripts do not name the window, and their model names lack the suffix `[1m]`.
    """
    return _LARGE_WINDOW if tokens > _SMALL_WINDOW else None


class ClaudeCode(LineReader):
    pattern = r"[^/]+/([^/]+|[^/]+/subagents/(.*/)?agent-[^/]*)\.jsonl"

    def searched_folders(self, places: Places) -> tuple[str, ...]:
        homes = agent_folders(places, self.agent)
        return tuple(str(one if one.name == "projects" else one / "projects") for one in homes)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        custom = places.variable("CLAUDE_CODE_PROJECT_DIR_NAME")
        names = [*map(_project_name_prefix, roots.paths if roots else ()), *filter(None, [custom])]
        for projects in self.searched_folders(places):
            for project in list_folder(projects):
                if is_folder(project):
                    ours = roots is None or project.name.startswith(tuple(names))
                    yield from self._stores_of_project(project.path, only_newest=not ours)

    def make_store(self, path: str) -> Store | None:
        is_main = not os.path.basename(path).startswith("agent-")
        return store_from_path(self.agent, path, live=is_main)

    def _stores_of_project(self, folder: str, *, only_newest: bool) -> Iterator[Store]:
        """Yield the stores in a project's folder.

        If `only_newest` is true, only the newest session is yielded. This is the case for a folder
        whose name does not match the workspace, because its project may have been renamed.
        """
        entries = list(list_folder(folder))
        files = (entry.path for entry in entries if entry.name.endswith(".jsonl"))
        stores = [store for store in map(self.make_store, files) if store]
        if only_newest:
            sessions = (store for store in stores if store.live)
            yield from sorted(sessions, key=lambda store: store.mtime_ns)[-1:]
            return
        yield from stores
        projects = os.path.dirname(folder)
        for entry in entries:
            if not entry.name.endswith(".jsonl"):
                yield from self.stores_in(projects, os.path.join(entry.path, "subagents"))

    def begin(self, store: Store) -> _Transcript:
        return _Transcript(SessionState(Path(store.path).stem), store.live)

    def mcp_texts(self, path: str) -> dict[str, str]:
        with open_quietly(path) as file:
            return read_mcp_texts(file.read(_MOST_FIRST_BYTES))

    def title(self, store: Store, title_at: str) -> str | None:
        line = record_at(store.path, title_at, decode)
        return line.title if line else None

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        small = places.variable("CLAUDE_CODE_DISABLE_1M_CONTEXT")
        return _SMALL_WINDOW if small else None

    def compacts_at(self, window: int, model: str) -> int:
        if window == _SMALL_WINDOW and catalogue.known_window(model) in (None, _SMALL_WINDOW):
            return window  # for these models, Claude Code waits until the API refuses a prompt
        return window - _ROOM_FOR_REPLY - _ROOM_FOR_COMPACTION

    def own_full(self, window: int, model: str) -> int:
        return min(window - _ROOM_FOR_REPLY, self.compacts_at(window, model))


READER = ClaudeCode()


class _Request(msgspec.Struct, frozen=True, array_like=True):
    """What a request consists of, as digests."""

    count: int
    """The number of messages."""
    digest: str
    """A digest of all messages, or an empty string if it is unknown."""
    at: datetime | None
    shape: str | None
    effort: str | None
    is_edited: bool
    """Whether messages that the request before it sent are missing or changed before others."""
    is_rewound: bool
    """Whether it ends before other messages that the request before it sent."""


_MOST_REQUESTS = 8
_Replies = dict[str, tuple[tuple[int, bool], TranscriptLine, CacheFacts]]
"""The lines of replies by message, each with its rank and facts."""


class _Transcript(SessionLines):
    is_live: bool
    """Whether the transcript may contain a main conversation."""
    timestamp: str | None = None
    """The most recent timestamp, used for lines without a timestamp."""
    folder: str = ""
    message: str | None = None
    """The latest message id in the main conversation."""
    titles: dict[str, str] = msgspec.field(default_factory=dict)
    """Positions of the latest titles, keyed by the name of the title field."""
    costs: CostCheck = msgspec.field(default_factory=CostCheck)
    own_cost: float = 0.0
    """The session's cost in USD according to the latest `cost-state` line."""
    newest_call: CallFinished | None = None
    requests: dict[str, _Request] = msgspec.field(default_factory=dict)
    """The newest requests by id."""
    sent: str | None = None
    """The id of the newest request of the main conversation that was answered."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        """Yield the calls in the lines.

        If several lines describe the same call, the line with the most output tokens is used, and
        a line of the main conversation rather than a sub-agent's.
        """
        replies: _Replies = {}
        newest: str | None = None
        for line in lines.records(decode):
            # A line without a timestamp gets the previous line's timestamp.
            line.timestamp = self.timestamp = line.timestamp or self.timestamp
            self.folder = line.cwd or self.folder
            if not self.is_live:
                self.session.subagent_of = line.session_id or self.session.subagent_of
            call = line.call
            self._apply(line, call, lines)
            if call is not None:
                message, usage = call
                name = message.id or line.request_id or line.uuid or str(line.timestamp)
                rank, known = (usage.output_tokens or 0, not line.is_sidechain), replies.get(name)
                if known is None or known[0] <= rank:
                    replies[name] = rank, line, self._facts_of(line)
                    newest = newest if line.is_sidechain else name
            elif line.type == "cost-state":
                yield from self._calls_of_replies(replies, newest)
                replies, newest = {}, None
                yield from self._summary_calls(line, lines.path)
                yield from self._call_with_own_cost(line)
        yield from self._calls_of_replies(replies, newest)

    def snapshots(self) -> Iterator[StoredSession]:
        session = self.session
        if not self.is_live and session.subagent_of is None:
            return
        session.title_at = next(filter(None, map(self.titles.get, TITLES)), None)
        yield session.snapshot()

    def _apply(
        self, line: TranscriptLine, call: tuple[ClaudeMessage, MessageUsage] | None, lines: Lines
    ) -> None:
        session = self.session
        if (title_kind := line.title_kind) is not None:
            self.titles[title_kind] = lines.position
        if line.is_sidechain and self.is_live:
            return
        session.touch(parse_iso_time(line.timestamp))
        session.work_in(line.cwd)
        session.branch = line.git_branch or session.branch
        if line.type in ("user", "assistant") or line.is_stopped_by_hook:
            session.active = not line.ends_turn
        if line.type == "api-request":
            self._note_request(line)
        if line.subtype == "compact_boundary":
            session.note(is_compacted=True)
            self.costs.compacted_model = session.model
            session.sizes.compact()
            left = line.compact_metadata.post_tokens if line.compact_metadata else None
            session.track = session.track.compaction().estimate(left or 0, None)
        elif line.is_compact_summary:
            session.note(is_compacted=True)
            session.sizes.compact()
            if not session.track.is_estimate:
                session.track = session.track.compaction()
        elif call is not None and not line.is_api_error_message:
            self._measure(*call)
        if self.is_live:
            line.add_parts(session.sizes)

    def _note_request(self, line: TranscriptLine) -> None:
        """Remember what a request consists of, compared with the newest one that was answered."""
        base_id = _short_id(line.base)
        last, base = self.requests.get(self.sent or ""), self.requests.get(base_id)
        count, digest, extends = line.keep or 0, "", None
        if count and base is not None:
            extends = base.count == count if base_id == self.sent else None
            digest = base.digest if base.count == count else ""
        is_known = count == 0 or bool(digest)
        for name in line.tail:
            digest, count = _short_id(f"{digest} {name}"), count + 1
            if last is not None and last.digest and count == last.count and is_known:
                extends = digest == last.digest
        if extends is None and last is not None and count < last.count:
            extends = False
        params = line.params
        self.requests[_short_id(line.id)] = _Request(
            count,
            digest if is_known else "",
            parse_iso_time(line.timestamp),
            _short_id(line.shape_hash) if line.shape_hash else None,
            (json_digest(params.thinking, params.output_config) or "none") if params else None,
            is_edited=extends is False and last is not None and count > last.count,
            is_rewound=extends is False and last is not None and count <= last.count,
        )
        for old in [*self.requests][:-_MOST_REQUESTS]:
            if old != self.sent:
                del self.requests[old]

    def _facts_of(self, line: TranscriptLine) -> CacheFacts:
        """Return what is known about a reply's call, and prepare the facts of the next one."""
        name = _short_id(line.request_ref)
        session, request = self.session, self.requests.get(name)
        if line.is_sidechain or line.message is None:
            return CacheFacts()
        reason = line.message.diagnostics and line.message.diagnostics.cache_miss_reason
        session.note(version=line.version, diagnosis=reason.type if reason else None)
        facts = session.facts
        session.facts = session.facts.after_call()
        if request is None:
            return facts
        is_new, self.sent = name != self.sent, name
        return replace(
            facts,
            shape=request.shape,
            effort=request.effort,
            sent_at=request.at,
            is_edited=is_new and request.is_edited,
            is_rewound=is_new and request.is_rewound,
        )

    def _measure(self, message: ClaudeMessage, usage: MessageUsage) -> None:
        session, reading = self.session, _size_of_last_call(message, usage)
        known = session.track.newest
        is_same = known is not None and message.id is not None and message.id == self.message
        if known is not None and is_same and reading.output < known.output:
            reading = msgspec.structs.replace(reading, output=known.output)
        if message.model != session.model:
            session.window = None
        session.window = window_of_prompt(reading.prompt) or session.window
        session.sizes.add_prompt(reading.prompt)
        self.message, session.model = message.id, message.model
        session.track = session.track.call(reading)

    def _summary_calls(self, line: TranscriptLine, path: str) -> Iterator[CallFinished]:
        summary, at = self.costs.apply(line, path), parse_iso_time(line.timestamp)
        if summary is None or at is None:
            return
        model, usage = summary
        yield from self.session.call(
            at,
            usage,
            f"summary/{at.isoformat()}/{usage.prompt_tokens}/{usage.output_tokens}",
            model,
            provider_of(model) or "anthropic",
            session=line.session_id,
            # Transcripts have no request ids for summaries. This id uses values that Claude Code's
            # telemetry also contains.
            telemetry_id=f"{line.session_id}/{usage.prompt_tokens}/{usage.output_tokens}",
            workspace=self.folder,
            category="summary",
        )

    def _calls_of_replies(self, replies: _Replies, newest: str | None) -> Iterator[CallFinished]:
        for name, (_, line, facts) in replies.items():
            for call in _calls_of_line(name, line, self.session, facts):
                if call.request_id == newest:
                    self._keep_call(call)
                yield call
            if line.call is not None:
                message, usage = line.call
                self.costs.add_message(name, message.model, usage)

    def _keep_call(self, call: CallFinished) -> None:
        known = self.newest_call
        if known is not None and call.request_id == known.request_id:
            call = msgspec.structs.replace(call, agent_cost=known.agent_cost)
        self.newest_call = call

    def _call_with_own_cost(self, line: TranscriptLine) -> Iterator[CallFinished]:
        total = sum(one.cost_usd or 0.0 for one in (line.model_usage or {}).values())
        # The cost restarts at 0 when a session is resumed.
        new = total - self.own_cost if total >= self.own_cost else total
        call, self.own_cost = self.newest_call, total
        if call is None or new <= 0:
            return
        cost = parse_usd(new + float(call.agent_cost or 0))
        self.newest_call = msgspec.structs.replace(call, agent_cost=cost)
        yield self.newest_call


def _short_id(name: str | None) -> str:
    """Return a digest of an id or a hash, because the agent decides how long they are."""
    return blake2b((name or "").encode("utf-8", "replace"), digest_size=8).hexdigest()


def _calls_of_line(
    request_id: str, entry: TranscriptLine, session: SessionState, facts: CacheFacts
) -> Iterator[CallFinished]:
    at = parse_iso_time(entry.timestamp) or session.updated_at
    if entry.call is None or at is None:
        return
    message, usage = entry.call
    model = message.model or "unknown"
    parts = usage.iterations or ()
    own = [part for part in parts if part.model in (None, message.model)]
    numbers = sum_of(own) if len(own) > 1 else usage.counts
    call = CallFinished(
        at=at,
        session=entry.session_id or session.id,
        model=model,
        provider=provider_of(model) or "anthropic",
        buckets=split(numbers, five_minutes(numbers, usage), web_searches=usage.searches),
        request_id=request_id,
        telemetry_id=entry.request_id,
        workspace=entry.cwd or "",
        branch=entry.git_branch or session.branch or "",
        category="subagent" if entry.is_sidechain else "main",
        tier=tier_of(usage),
        is_copy=entry.is_copy,
        facts=facts,
        last_request=split(own[-1].counts) if len(own) > 1 else None,
    )
    yield call
    others = [part for part in parts if part.model not in (None, message.model)]
    for index, part in enumerate(others):
        yield msgspec.structs.replace(
            call,
            model=part.model,
            buckets=split(part.counts),
            request_id=f"{request_id}/{index}",
            facts=None,
            telemetry_id=None,
        )


def _project_name_prefix(path: str) -> str:
    """Return the prefix shared by the folder names of a project and its subfolders.

    Other projects may have the same prefix, but each session's lines contain the actual path.
    """
    name = re.sub(r"[^a-zA-Z0-9]", "-", unicodedata.normalize("NFC", path))
    return name[:_LONGEST_SLUG]
