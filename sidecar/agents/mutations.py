"""Replays VS Code's `ObjectMutationLog`, a log in which each line changes part of an object.

A line sets, appends to or deletes a value. The lines are applied to a typed record, and changes to
fields that the record does not declare are ignored.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args, get_origin

import msgspec

from sidecar import typed
from sidecar.agents.fields import Record

INITIAL, SET, PUSH, DELETE = range(4)
_MOST_ITEMS = 1 << 16

ItemPath = tuple[str | int, ...]


class Mutation(Record):
    """A log line. Its value is decoded when the line is applied."""

    kind: int
    path: ItemPath = msgspec.field(default=(), name="k")
    value: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="v")
    length: int | None = msgspec.field(default=None, name="i")


decode = typed.decoder(Mutation)
"""Decode a log line.

Raises:
    msgspec.DecodeError: The line is malformed.
"""


def apply(state: Record, line: Mutation) -> None:
    """Apply a log line to a record. Changes to undeclared fields are ignored.

    Raises:
        msgspec.DecodeError: The value does not match the type of the field.
    """
    holder: Any = state
    kind: Any = type(state)
    for step in line.path[:-1]:
        holder, kind = _get_child(holder, step), _type_of(kind, step)
        if holder is None or kind is None:
            return
    target = _type_of(kind, line.path[-1]) if line.path else None
    if target is None:
        return
    if line.kind == SET:
        _set_child(holder, line.path[-1], _decoder_for(target)(line.value))
    elif line.kind == DELETE:
        _set_child(holder, line.path[-1], None)
    elif line.kind == PUSH:
        _append_items(holder, line.path[-1], _decoder_for(target)(line.value) or [], line.length)


def _append_items(holder: Any, step: str | int, more: Any, length: int | None) -> None:
    items = _get_child(holder, step)
    kept = [] if items is None else items if length is None else items[: max(0, length)]
    if isinstance(kept, list) and isinstance(more, list):
        _set_child(holder, step, [*kept, *more])


def _fields_of(holder: Any) -> dict[str | int, tuple[str, Any]]:
    kind: Any = type(holder)
    return _fields_by_name(kind)


def _get_child(holder: Any, step: str | int) -> Any:
    if isinstance(holder, list):
        return holder[step] if isinstance(step, int) and 0 <= step < len(holder) else None
    field = _fields_of(holder).get(step)
    return None if field is None else getattr(holder, field[0])


def _set_child(holder: Any, step: str | int, value: Any) -> None:
    if not isinstance(holder, list):
        if field := _fields_of(holder).get(step):
            setattr(holder, field[0], value)
    elif isinstance(step, int) and 0 <= step < _MOST_ITEMS:
        holder += [None] * (step + 1 - len(holder))
        holder[step] = value


def _type_of(kind: Any, step: str | int) -> Any:
    for one in (kind, *get_args(kind)):
        if get_origin(one) is list:
            return get_args(one)[0] if isinstance(step, int) else None
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return _fields_by_name(one).get(step, (None, None))[1]
    return None


@lru_cache(maxsize=64)
def _fields_by_name(kind: type) -> dict[str | int, tuple[str, Any]]:
    if not issubclass(kind, msgspec.Struct):
        return {}
    return {one.encode_name: (one.name, one.type) for one in msgspec.structs.fields(kind)}


@lru_cache(maxsize=256)
def _decoder_for(kind: Any) -> typed.Decoder[Any]:
    return typed.decoder(kind | None)
