"""Finds calls of Claude Code that no message records: those that write a compaction's summary.

`cost-state` lines contain each model's total usage, including sub-agents and summaries. If a
compaction lies between two such lines, or before the first, then usage that belongs to no
message is that of the summary.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.fields import parse_iso_time
from sidecar.agents.file_reading import chunks, open_quietly
from sidecar.agents.listing import find_files
from sidecar.agents.readers.claude_lines import (
    MessageUsage,
    ModelParts,
    TranscriptLine,
    decode,
    usage_of,
)
from sidecar.agents.stores import Lines
from sidecar.messages.usage import Usage, usage_from_parts
from sidecar.models.names import parse

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

_NOTHING: ModelParts = (0, 0, 0, 0, 0)
_MOST_MESSAGES = 500
"""Turns with more messages are not checked, to limit the size of the state."""


class CostCheck(msgspec.Struct):
    """Usage of a transcript since its last `cost-state`."""

    totals: dict[str, ModelParts] = {}
    """Each model's usage in the last `cost-state`."""
    at: str | None = None
    """Time of the last `cost-state`."""
    messages: dict[str, tuple[str, ModelParts]] = {}
    """Model and usage of each message since the last `cost-state`."""
    compacted_model: str | None = None
    """Model of the conversation that was compacted since the last `cost-state`."""

    def add_message(self, name: str, model: str | None, usage: MessageUsage) -> None:
        """Add a message. Of several lines for a message, the one with the most output is kept."""
        if len(self.messages) <= _MOST_MESSAGES:
            _add_message(self.messages, name, model, usage)

    def apply(self, line: TranscriptLine, path: str) -> tuple[str, Usage] | None:
        """Apply a `cost-state`. Returns the model and usage of summaries since the last one."""
        totals: dict[str, ModelParts] = {}
        for name, used in (line.model_usage or {}).items():
            totals[_without_window_marker(name)] = _sum_usage(
                (totals.get(_without_window_marker(name), _NOTHING), used.parts)
            )
        rest, model = _NOTHING, self.compacted_model
        if model is not None and len(self.messages) <= _MOST_MESSAGES:
            messages = {
                **self.messages,
                **_subagent_usage(path, parse_iso_time(self.at), parse_iso_time(line.timestamp)),
            }
            total = _usage_between(self.totals, totals).get(_without_window_marker(model), _NOTHING)
            taken = (
                parts for name, parts in messages.values() if name == _without_window_marker(model)
            )
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


def _without_window_marker(model: str) -> str:
    return parse(model.removesuffix("[1m]")).bare


def _sum_usage(all_parts: Iterable[ModelParts]) -> ModelParts:
    sums = [0] * len(_NOTHING)
    for parts in all_parts:
        sums = [one + other for one, other in zip(sums, parts, strict=True)]
    return sums[0], sums[1], sums[2], sums[3], sums[4]


def _subtract_usage(one: ModelParts, other: ModelParts) -> ModelParts:
    return _sum_usage((one, tuple(-number for number in other)))  # type: ignore[arg-type]


def _subagent_usage(
    path: str, since: datetime | None, until: datetime | None
) -> dict[str, tuple[str, ModelParts]]:
    messages: dict[str, tuple[str, ModelParts]] = {}
    for found in find_files("claude-code", Path(path).with_suffix("") / "subagents", ".jsonl"):
        with open_quietly(found.path) as file:
            for data, _ in chunks(file):
                for line in Lines(found.path, data, 0).records(decode):
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
    new = _without_window_marker(model or ""), _parts_of(usage_of(usage))
    messages[name] = max(messages.get(name, new), new, key=lambda one: one[1][-1])


def _parts_of(usage: Usage) -> ModelParts:
    return (
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        usage.output_tokens,
    )
