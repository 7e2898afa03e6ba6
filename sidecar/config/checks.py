"""Is one value what its key wants? Values in, typed values or a sentence for people out. Pure."""

from __future__ import annotations

import math
from decimal import Decimal
from types import UnionType
from typing import TYPE_CHECKING, Literal, Union, get_args, get_origin

import msgspec

if TYPE_CHECKING:
    from sidecar.config.settings import Budget, Caps, Context

_WORDS = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}
_SHORT = 40


class InvalidError(Exception):
    """A value that its key does not allow; the text says what it wants."""


def typed(value: object, wanted: object) -> object:
    """`value` as the type `wanted` of a settings field. Raises `InvalidError`."""
    wanted = _required(wanted)
    if _plain(wanted) is Decimal:
        return _usd(value)
    if get_origin(_plain(wanted)) is tuple and isinstance(value, str):
        value = [value]
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        raise InvalidError(f"must be {describe(wanted)}; it is {shown(value)}") from None


def describe(wanted: object) -> str:
    """What a type asks for, in the words of someone who writes TOML."""
    wanted = _required(wanted)
    for note in getattr(wanted, "__metadata__", ()):
        if isinstance(note, msgspec.Meta) and note.description:
            return note.description
    plain = _plain(wanted)
    if get_origin(plain) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(plain))
    if get_origin(plain) is tuple:
        return f"a list, each entry {describe(get_args(plain)[0])}"
    return _WORDS[plain] if isinstance(plain, type) and plain in _WORDS else "a table"


def shown(value: object) -> str:
    """A value as a message may show it: numbers as they are, texts never (one may be a key)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text = str(value)
        return text if len(text) <= _SHORT else "a very large number"
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an empty list" if not value else "a list with something else in it"
    return f"a {type(value).__name__}"


def check_budget(budget: Budget) -> str | None:
    """What is wrong with a rule whose values are each right; None when nothing is."""
    if budget.max_tokens is None and not budget.sections:
        return "needs max-tokens, or sections"
    if not any(not pattern.startswith("!") for pattern in budget.files):
        return "files must hold a pattern that does not begin with !"
    from pathspec import GitIgnoreSpec

    for pattern in budget.files:
        try:
            GitIgnoreSpec.from_lines([pattern])
        except ValueError:
            return "files holds a pattern that is not a valid glob"
    return None


def check_context(context: Context) -> str | None:
    """Thresholds rise."""
    levels = context.warn_at
    if not levels:
        return "needs at least one number, such as [0.8, 0.95]"
    if list(levels) != sorted(set(levels)):
        return "must rise from one number to the next, such as [0.8, 0.95]"
    return None


def soft_over_hard(caps: Caps) -> list[str]:
    """The keys of soft caps that can never warn, because their hard cap comes first."""
    found = []
    for scope in ("", "session-", "workspace-"):
        name = scope.replace("-", "_")
        soft, hard = getattr(caps, f"{name}soft_cap_usd"), getattr(caps, f"{name}hard_cap_usd")
        if soft is not None and hard is not None and soft > hard:
            found.append(f"{scope}soft-cap-usd")
    return found


def _usd(value: object) -> Decimal:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return Decimal(repr(value))
    raise InvalidError(f"must be a number of USD, 0 or more; it is {shown(value)}")


def _required(wanted: object) -> object:
    """`X` of `X | None`: TOML has no null, and the editor's null is "not set"."""
    if get_origin(wanted) in (Union, UnionType):
        return next(part for part in get_args(wanted) if part is not type(None))
    return wanted


def _plain(wanted: object) -> object:
    """A type without its `Annotated` notes."""
    return getattr(wanted, "__origin__", wanted) if hasattr(wanted, "__metadata__") else wanted
