"""A history of many megabytes with exact known totals: Claude Code's and Codex', profiled as real.

Most files are small, a few hold most of the bytes; most bytes are tool results and messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.agents import claude, codex

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.agents.truth import Truth

_PROJECTS = 20
_SIZES = (500, 1_000, 2_000, 4_000, 10_000)
"""Characters of a message, about."""
_TURNS = (3, 5, 8, 12, 40, 150)


def history(home: Path, megabytes: int, *, share: float = 0.7) -> tuple[Truth, Truth]:
    """Write about `megabytes` below `home`, `share` of it Claude Code's; both agents' truths.

    The newest session of each agent works in `home/work/0`.
    """
    roots = [home / "work" / str(number) for number in range(_PROJECTS)]
    for root in roots:
        root.mkdir(parents=True, exist_ok=True)
    claudes, codexes = claude.ClaudeHome(home / ".claude"), codex.CodexHome(home / ".codex")
    _fill(_claude(claudes, roots), int(megabytes * share * 1e6))
    _fill(_codex(codexes, roots), int(megabytes * (1 - share) * 1e6))
    claude.everyday(claudes, roots[0])
    codex.everyday(codexes, roots[0])
    return claudes.truth, codexes.truth


def _fill(files: Iterator[Path], size: int) -> None:
    """Write files until they are so many bytes."""
    written = 0
    while written < size:
        written += next(files).stat().st_size


def _claude(home: claude.ClaudeHome, roots: list[Path]) -> Iterator[Path]:
    rng = home.clock.rng
    while True:
        made = home.session(rng.choice(roots))
        made.size, made.trap_every = rng.choice(_SIZES), 200
        for turn in range(rng.choice(_TURNS)):
            made.user()
            made.reply()
            made.tool_result()
            made.reply(blocks=2)
            if turn % 30 == 29:
                made.subagent()
                made.compact()
        made.history.clear()
        yield made.path


def _codex(home: codex.CodexHome, roots: list[Path]) -> Iterator[Path]:
    rng = home.clock.rng
    while True:
        made = codex.everyday(home, rng.choice(roots), rng.choice(_TURNS), size=rng.choice(_SIZES))
        made.history.clear()
        yield made.path
