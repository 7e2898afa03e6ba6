"""What a request about a conversation can end in."""

from __future__ import annotations

from sidecar.errors import BadParamsError, RequestError


def no_text() -> RequestError:
    """The error for a session that was restored from its counts."""
    return RequestError(
        "noText",
        "this session is known by its counts only (it was restored): send its system prompt, "
        "tools and turns again after context/reset",
    )


def stale_plan() -> BadParamsError:
    """The error for a plan that was made for another state of the session, or never."""
    return BadParamsError("planId names no current plan: the session changed, ask for a new plan")
