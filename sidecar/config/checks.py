"""Validates the values of individual settings. Does no I/O."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import parse_qsl, urlsplit

import msgspec

from sidecar.config.settings import (
    Budget,
    Caps,
    Context,
    Url,
)
from sidecar.errors import SidecarError
from sidecar.known_agents import all_agents
from sidecar.text.globs import MAX_PATTERNS, glob_problem, path_glob_problem
from sidecar.typed import convert

_WORDS = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}
MAX_SECTIONS = 200
MAX_HEADING = 1_000  # characters
_SECRET = re.compile(r"key|token|secret|pass|pwd|auth|cred|sig", re.IGNORECASE)
"""Matches names of query parameters that may contain secrets."""


class InvalidError(SidecarError):
    """A setting's value is invalid. The message describes what is expected."""

    kind = "config"


def convert_value(value: object, wanted: object) -> object:
    """Convert a value to a setting's type.

    Raises:
        InvalidError: The value does not match the type.
    """
    kind: Any = _without_none(wanted)
    if _without_metadata(kind) is Decimal:
        return _convert_usd(value)
    if get_origin(_without_metadata(kind)) is tuple and isinstance(value, str):
        value = [value]
    try:
        converted = convert(value, kind)
    except msgspec.ValidationError:
        plain = _without_metadata(kind)
        is_other_text = isinstance(value, str) and value
        if is_other_text and (plain is str or get_origin(plain) is Literal):
            raise InvalidError(f"must be {describe_type(kind)}") from None
        actual = describe_value(value)
        raise InvalidError(f"must be {describe_type(kind)}, but is {actual}") from None
    if kind == Url and _may_contain_secrets(converted):
        raise InvalidError(
            "must be an address without credentials; store the key in an environment variable and "
            "set api-key-env to its name"
        )
    if kind == Url and not _has_possible_port(converted):
        raise InvalidError("must be a valid address, such as https://example.com:8443")
    return converted


def describe_type(wanted: object) -> str:
    """Describe a type in TOML terms."""
    wanted = _without_none(wanted)
    for note in getattr(wanted, "__metadata__", ()):
        if isinstance(note, msgspec.Meta) and note.description:
            return note.description
    plain = _without_metadata(wanted)
    if get_origin(plain) is Literal:
        *others, last = (f'"{choice}"' for choice in get_args(plain))
        return f"{', '.join(others)} or {last}" if others else last
    if get_origin(plain) is tuple:
        return f"a list in which each entry is {describe_type(get_args(plain)[0])}"
    return _WORDS[plain] if isinstance(plain, type) and plain in _WORDS else "a table"


def describe_value(value: object) -> str:
    """Describe a value's type without the value itself, which may be a secret."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a negative number" if value < 0 else "a number" if value else "0"
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an empty list" if not value else "a list with other types of entries"
    return f"a {type(value).__name__}"


def check_budget(budget: Budget) -> str | None:
    """Return what is wrong with a budget, or None if it is valid.

    The budget's values must already have the right types.
    """
    if not budget.files and budget.always_loaded is None:
        return "needs files or always-loaded"
    if budget.always_loaded is not None:
        return _check_always_loaded(budget)
    if budget.max_tokens is None and not budget.sections:
        return "needs max-tokens or sections"
    if not any(not pattern.startswith("!") for pattern in budget.files):
        return "files needs at least one pattern without a leading !"
    if len(budget.sections) > MAX_SECTIONS:
        return f"sections has more than {MAX_SECTIONS:,} headings"
    if any(len(heading) > MAX_HEADING for heading in budget.sections):
        return f"sections contains a heading longer than {MAX_HEADING:,} characters"
    if len(budget.files) > MAX_PATTERNS:
        return f"files has more than {MAX_PATTERNS:,} patterns"
    for pattern in budget.files:
        wrong = path_glob_problem(pattern)
        if wrong:
            return f"files: {wrong}"
    return None


def _check_always_loaded(budget: Budget) -> str | None:
    if budget.files or budget.sections or budget.max_tokens is None:
        return "always-loaded needs max-tokens, without files and sections"
    agent = budget.always_loaded or ""
    if agent in all_agents():
        return None
    # The message does not contain the name, because a misplaced value may be a secret.
    similar = similar_agents([agent])
    hint = f"; did you mean {similar[0]}?" if similar else ""
    known = ", ".join(sorted(all_agents()))
    return f"always-loaded is not a known agent{hint} (known agents: {known})"


def check_models(models: Sequence[str]) -> str | None:
    """Return what is wrong with a list of patterns for model names, or None if it is valid."""
    if len(models) > MAX_PATTERNS:
        return f"models has more than {MAX_PATTERNS:,} patterns"
    wrong = next(filter(None, map(glob_problem, models)), None)
    return f"models: {wrong}" if wrong else None


def check_context(context: Context) -> str | None:
    """Return what is wrong with the thresholds, or None if they are valid."""
    levels = context.warn_at
    if not levels:
        return "needs at least one threshold, such as [0.8, 0.95]"
    if list(levels) != sorted(set(levels)):
        return "must be in ascending order, such as [0.8, 0.95]"
    return None


def check_agents(names: Sequence[str]) -> str | None:
    """Return a message about unknown agents, or None if all agents are known.

    The message lists positions instead of names, because a misplaced value may be a secret.
    """
    if not names:  # so that the file of known agents is not read
        return None
    known = all_agents()
    unknown = [(position, name) for position, name in enumerate(names, 1) if name not in known]
    if not unknown:
        return None
    similar = similar_agents([name for _, name in unknown])
    hint = f"; did you mean {' and '.join(similar)}?" if similar else ""
    positions = " and ".join(str(position) for position, _ in unknown[:5])
    listed = ", ".join(sorted(known))
    return f"has unknown agents at position {positions}{hint} (known agents: {listed})"


def similar_agents(names: Sequence[str], known: Iterable[str] = ()) -> list[str]:
    """Return the agents whose names resemble the given names.

    Args:
        names: The names.
        known: The agents. Defaults to those whose session files can be read.
    """
    import difflib

    agents = list(known or all_agents())
    longer = (
        [agent for agent in agents if name and agent.startswith(f"{name}-")] for name in names
    )
    matches = (
        one[:1] or difflib.get_close_matches(name[:60], agents, 1)
        for one, name in zip(longer, names, strict=True)
    )
    return list(dict.fromkeys(itertools.chain.from_iterable(matches)))


def unreachable_soft_caps(caps: Caps) -> list[str]:
    """Return the keys of soft caps that exceed the hard cap and therefore have no effect."""
    keys = []
    for key in (name for name in caps.__struct_fields__ if "soft_cap" in name):
        soft, hard = getattr(caps, key), getattr(caps, key.replace("soft", "hard"))
        if soft is not None and hard is not None and soft > hard:
            keys.append(key.replace("_", "-"))
    return keys


def _may_contain_secrets(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return "@" in parts.netloc or any(
        _SECRET.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)
    )


def _has_possible_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _convert_usd(value: object) -> Decimal:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return Decimal(repr(value))
    raise InvalidError(f"must be an amount in USD (0 or more), but is {describe_value(value)}")


def _without_none(wanted: object) -> object:
    """Return `X` for the type `X | None`."""
    if get_origin(wanted) in (Union, UnionType):
        return next(part for part in get_args(wanted) if part is not type(None))
    return wanted


def _without_metadata(wanted: object) -> object:
    return getattr(wanted, "__origin__", wanted) if hasattr(wanted, "__metadata__") else wanted
