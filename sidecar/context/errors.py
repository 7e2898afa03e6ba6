"""What a request about a conversation can end in."""

from __future__ import annotations

from typing import Literal


class ContextError(Exception):
    """A request about a conversation that cannot be done; `kind` is the contract's error kind.

    The message is for people and quotes no text of theirs.
    """

    def __init__(self, kind: Literal["badParams", "noText"], message: str) -> None:
        super().__init__(message)
        self.kind: Literal["badParams", "noText"] = kind


def no_text() -> ContextError:
    """The error for a session that was restored from its counts."""
    return ContextError(
        "noText",
        "this session is known by its counts only (it was restored): send its system prompt, "
        "tools and turns again after context/reset",
    )


def stale_plan() -> ContextError:
    """The error for a plan that was made for another state of the session, or never."""
    return ContextError(
        "badParams", "planId names no current plan: the session changed, ask for a new plan"
    )
