"""The system prompt that tools bring with them, where the maker publishes how long it is.

docs/reference/sources.md names the pages and the day they were read.
"""

from __future__ import annotations

import re

from sidecar.counting.images import Seen
from sidecar.models.families import claude_version

_CHOICE = 130
"""How much longer it is at most where a tool has to be called, which is not known here."""

_CLAUDE: dict[tuple[str, tuple[int, int]], int] = {
    ("opus", (5, 0)): 286,
    ("opus", (4, 8)): 290,
    ("opus", (4, 7)): 675,
    ("opus", (4, 6)): 497,
    ("opus", (4, 5)): 496,
    ("opus", (4, 1)): 313,
    ("opus", (4, 0)): 313,
    ("sonnet", (5, 0)): 354,
    ("sonnet", (4, 6)): 497,
    ("sonnet", (4, 5)): 496,
    ("sonnet", (4, 0)): 313,
    ("haiku", (4, 5)): 496,
    ("haiku", (3, 5)): 264,
    # Of an earlier edition of the same page: models that it does not list any more.
    ("sonnet", (3, 7)): 346,
    ("sonnet", (3, 5)): 346,
    ("opus", (3, 0)): 530,
    ("sonnet", (3, 0)): 159,
    ("haiku", (3, 0)): 264,
}
_LINE = re.compile(r"opus|sonnet|haiku")
_NEWEST, _NEWEST_DOUBT = 354, 400


def tool_prompt(bare: str, generation: str) -> Seen:
    """Tokens that any tools bring with them, beside their schemas; 0 where none are published."""
    if not generation.startswith("claude"):
        return Seen(0)
    line, version = _LINE.search(bare), claude_version(bare)
    known = _CLAUDE.get((line[0], version)) if line and version else None
    return Seen(_NEWEST, _NEWEST_DOUBT) if known is None else Seen(known, _CHOICE)
