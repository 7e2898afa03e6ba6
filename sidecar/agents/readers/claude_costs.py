"""Calls of Claude Code that no message tells: those that made the summary of a compaction.

`cost-state` lines say what a session took so far, sub-agents and summaries included. Where a
compaction lies between two of them, what no message since the first accounts for made the summary.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.fields import when
from sidecar.agents.line_files import Decoded
from sidecar.agents.listing import below
from sidecar.agents.readers.claude_lines import ModelParts, TranscriptLine, decode, usage_of
from sidecar.agents.tail import chunks, lines_with, open_quietly
from sidecar.messages.usage import Usage, disjoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

_NOTHING: ModelParts = (0, 0, 0, 0, 0)
_MOST_MESSAGES = 2_000
"""A turn with more is not compared: no state holds so many."""


class CostCheck(msgspec.Struct):
    """Of a transcript, since its newest `cost-state`."""

    total: ModelParts | None = None
    """Of that line; None before the first."""
    at: str | None = None
    """When it was written."""
    messages: dict[str, ModelParts] = {}
    """What each message since took."""
    compacted: bool = False

    def add_message(self, name: str, parts: ModelParts) -> None:
        """Add a message, or its newest line: the one with the most output counts."""
        if self.total is None or len(self.messages) > _MOST_MESSAGES:
            return
        known = self.messages.get(name, _NOTHING)
        self.messages = self.messages | {name: max(known, parts, key=lambda one: one[-1])}

    def apply(self, line: TranscriptLine, at: str | None, path: str) -> tuple[str, Usage] | None:
        """Apply a `cost-state`; the model and usage of the summaries since the last one."""
        used = {name: one.parts for name, one in (line.model_usage or {}).items()}
        total, before = _sum(used.values()), self.total or _NOTHING
        rest = _less(total, before)
        made_summary = self.compacted and self.total is not None
        if made_summary and len(self.messages) <= _MOST_MESSAGES and min(rest) >= 0:
            rest = _less(rest, _sum(self.messages.values()))
            rest = _less(rest, _sum(_of_subagents(path, when(self.at), when(at))))
        else:
            rest = _NOTHING
        self.total, self.at, self.messages, self.compacted = total, at, {}, False
        fresh, read, write, hour, output = (max(0, number) for number in rest)
        if not (fresh + read + write and output):
            return None
        model = max(used, key=lambda name: sum(used[name]))
        return model, disjoint(fresh, read, write, min(hour, write), output, 0)


def _sum(all_parts: Iterable[ModelParts]) -> ModelParts:
    sums = [0] * len(_NOTHING)
    for parts in all_parts:
        sums = [one + other for one, other in zip(sums, parts, strict=True)]
    return sums[0], sums[1], sums[2], sums[3], sums[4]


def _less(one: ModelParts, other: ModelParts) -> ModelParts:
    return _sum((one, tuple(-number for number in other)))  # type: ignore[arg-type]


def _of_subagents(
    path: str, since: datetime | None, until: datetime | None
) -> Iterator[ModelParts]:
    """What each message of a transcript's sub-agents took between two times."""
    if since is None or until is None:
        return
    messages: dict[str, ModelParts] = {}
    for found in below("claude-code", Path(path).with_suffix("") / "subagents", ".jsonl"):
        with open_quietly(found.path) as file:
            for data, _ in chunks(file):
                for line in Decoded(lines_with(data, b'"usage"'), decode):
                    at = when(line.timestamp)
                    if line.call is None or at is None or not since < at <= until:
                        continue
                    name = line.call[0].id or line.uuid or ""
                    parts = parts_of(usage_of(line.call[1]))
                    known = messages.get(name, _NOTHING)
                    messages[name] = max(known, parts, key=lambda one: one[-1])
    yield from messages.values()


def parts_of(usage: Usage) -> ModelParts:
    return (
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        usage.output_tokens,
    )
