"""Generates a large, realistic history with known totals and all known traps for readers.

As in real histories, most files are small, a few contain most of the bytes, and most bytes are tool
results and messages. Nearly all of it belongs to Claude Code and Codex. Only VS Code's chats and
Gemini CLI's sessions have truncated logs and rewinds.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from benchmarks.agents import (
    claude,
    codex,
    continue_cli,
    copilot,
    gemini,
    kimi_code,
    qwen,
    vibe,
)
from sidecar.agents.compressed import zstd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.agents.truth import Clock, Truth

SOURCES = (
    "claude-code", "codex", "copilot-chat", "gemini-cli", "qwen-code", "kimi-code", "vibe",
    "continue",
)  # fmt: skip
_PROJECTS = 20
_SIZES = (500, 1_000, 2_000, 4_000, 10_000)
"""Approximate lengths of messages, in characters."""
_TURNS = (3, 5, 8, 12, 40, 150)
_COPIED = 12
"""Longer sessions are never resumed or forked, because each copy repeats their bytes."""
_VERSIONS: tuple[dict[str, Any], ...] = (
    {},
    {"records": True},
    {"records": True, "counts": False},
    {"records": True, "ordinals": True},
    {"spaces": True},
    {"turn_ids": False},
)
"""Options for the formats in which versions of Codex record the tokens of a call."""


class History(NamedTuple):
    """The expected calls and contexts of the agents in `SOURCES`."""

    claude: Truth
    codex: Truth
    copilot: Truth
    gemini: Truth
    qwen: Truth
    kimi: Truth
    vibe: Truth
    continue_cli: Truth


def history(home: Path, megabytes: float, *, share: float = 0.7) -> History:
    """Write about `megabytes` of session files below `home`.

    `share` of it belongs to Claude Code, 4 % to chats of VS Code and Gemini CLI, and 1 % each to
    Qwen Code, Kimi Code, Vibe and Continue. The newest session of Claude Code and of Codex works in
    `home/work/0`.
    """
    roots = [home / "work" / str(number) for number in range(_PROJECTS)]
    for root in roots:
        root.mkdir(parents=True, exist_ok=True)
    chats = copilot.CodeHome(home / ".config" / "Code" / "User", seed=3)
    geminis = gemini.GeminiHome(home / ".gemini", seed=4)
    claudes = claude.ClaudeHome(home / ".claude", seed=1)
    codexes = codex.CodexHome(home / ".codex", seed=2)  # another seed, because ids depend on it
    _fill(_copilot(chats, roots), megabytes * 0.02)
    _fill(_gemini(geminis, roots), megabytes * 0.02)
    _fill(_claude(claudes, roots), megabytes * share)
    _fill(_codex(codexes, roots), megabytes * (0.92 - share))
    others: list[_Home] = [
        qwen.QwenHome(home / ".qwen", seed=5),
        kimi_code.KimiHome(home / ".kimi-code", seed=6),
        vibe.VibeHome(home / ".vibe", seed=7),
        continue_cli.ContinueHome(home / ".continue", seed=8),
    ]
    for other in others:
        _fill(_sessions(other, roots), megabytes * 0.01)
    claude.everyday(claudes, roots[0])
    codex.everyday(codexes, roots[0])
    truths = (one.truth for one in others)
    return History(claudes.truth, codexes.truth, chats.truth, geminis.truth, *truths)


class _Home(Protocol):
    """An agent's home folder, to which sessions can be written."""

    truth: Truth
    clock: Clock

    def session(self, root: Path, turns: int, size: int) -> Path: ...


def _sessions(home: _Home, roots: list[Path]) -> Iterator[Path]:
    rng = home.clock.rng
    for number in count():
        yield home.session(rng.choice(roots), _TURNS[number % len(_TURNS)], rng.choice(_SIZES))


def _fill(files: Iterator[Path], megabytes: float) -> None:
    """Write files up to this total size."""
    written = 0
    while written < megabytes * 1e6:
        written += next(files).stat().st_size


def _claude(home: claude.ClaudeHome, roots: list[Path]) -> Iterator[Path]:
    """Write Claude Code's sessions: partial streams, sub-agents, compaction, missing ids, forks."""
    rng, copies = home.clock.rng, count()
    for number in count():
        made = home.session(rng.choice(roots), spaces=number % 5 == 0)
        made.size, made.trap_every = rng.choice(_SIZES), 200
        turns = _TURNS[number % len(_TURNS)]
        for turn in range(turns):
            made.user()
            first = made.reply()
            made.tool_result()
            made.reply(blocks=2)
            if turn % 10 == 4:
                made.synthetic()
                made.sidechain()
                made.sidechain(replays=first)
                made.nameless()
            if turn % 30 == 29:
                made.subagent(workflow="w" if turn % 20 == 9 else None)
                made.compact_with_costs() if number % 2 else made.compact()
        if number % 7 == 0:
            made.half_line()
        if turns <= _COPIED and number % 3 == 0:
            yield _copy(made, next(copies))
        made.history.clear()
        yield made.path


def _copy(made: claude.Transcript, number: int) -> Path:
    """Continue a session as a resumed session, a background fork, or a fork of its beginning."""
    copy = made.copy(background=number % 3 == 1, keeps=12 if number % 3 == 2 else None)
    copy.reply()
    if number % 2:
        copy.half_line()
    copy.history.clear()
    return copy.path


def _codex(home: codex.CodexHome, roots: list[Path]) -> Iterator[Path]:
    """Write Codex's threads: repeated events, resets, nulls, removed turns, all versions, forks."""
    rng, forks = home.clock.rng, count()
    for number in count():
        turns = _TURNS[number % len(_TURNS)]
        made = codex.everyday(
            home,
            rng.choice(roots),
            turns,
            size=rng.choice(_SIZES),
            **_VERSIONS[number * 7 // 6 % 6],
        )
        made.event("token_count", info=None, rate_limits=None)
        if number % 5 == 1:
            made.roll_back()
        if turns <= _COPIED:
            kind = next(forks)
            fork = made.fork(restamped=kind % 2 == 0, spawned=kind % 3 == 1)
            fork.begin_turn()
            fork.call()
            yield _ended(fork, kind)
        yield _ended(made, number)


def _ended(made: codex.Rollout, number: int) -> Path:
    """Leave a thread's file complete, half written or compressed."""
    made.history.clear()
    if number % 7 == 3:
        made.half_line()
    return made.compress(zstd.compress) if number % 5 == 2 else made.path


def _copilot(home: copilot.CodeHome, roots: list[Path]) -> Iterator[Path]:
    """Write chats: growing prompts, truncating pushes, compacted logs, flat files, half lines.

    A file that is rewritten as a whole no longer contains the turns that were removed.
    """
    rng = home.clock.rng
    for number in count():
        flat = number % 4 == 3
        made = copilot.everyday(home, rng.choice(roots), rng.choice((2, 4, 8)), flat=flat)
        made.size = rng.choice(_SIZES)
        if not flat and number % 5 != 2:
            made.undo(1)
        made.turn()
        if number % 3 == 1:
            made.compact()
            made.turn()
        if number % 5 == 2:
            made.log_every = 0
            made.turn()
        if not flat and number % 2:
            made.half_line()
        yield made.path


def _gemini(home: gemini.GeminiHome, roots: list[Path]) -> Iterator[Path]:
    """Write Gemini CLI's sessions: repeated messages, rewinds, checkpoints and compressions."""
    rng = home.clock.rng
    for number in count():
        made = gemini.everyday(home, rng.choice(roots), rng.choice((2, 4, 8)), flat=number % 4 == 3)
        made.size = rng.choice(_SIZES)
        asked = made.user()
        made.reply()
        if made.path.suffix == ".jsonl":
            made.rewind(asked["id"])
            if number % 3 == 1:
                made.compress()
                made.user()
                made.reply()
            if number % 2:
                made.half_line()
        yield made.path
