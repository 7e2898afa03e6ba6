"""Reports in plain text, a line a part: for every client that shows text and needs no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.workspace.status import tokens_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sidecar.context.results import ContextUsage
    from sidecar.counting.count import Count, Method

HEAD = ("model", "tokens", "of window", "as input", "method")


def comparison_text(counts: Iterable[Count]) -> str:
    """One text counted for several models, the fewest tokens first: a table with a head."""
    rows = [
        (
            count.model,
            _number(count.tokens, count.method),
            "?" if count.percent is None else f"{count.percent} %",
            _usd(count.input_cost_usd),
            count.method,
        )
        for count in sorted(counts, key=lambda count: count.tokens)
    ]
    return _table([HEAD, *rows])


def context_text(usage: ContextUsage) -> str:
    """How full the context is, of what, and what fills it; "" where none is known."""
    session = usage.session
    if usage.tokens is None or usage.method is None or session is None:
        return ""
    return "\n".join(
        [
            f"{_number(usage.tokens, usage.method)} of {usage.usable:,} usable tokens, "
            f"{usage.percent} %",
            f"window {usage.limit:,} ({usage.limit_source}), reserve {usage.reserve:,}",
            f"model {usage.model}, cost so far {_usd(usage.cost_usd)}",
            f"session {session.id} ({session.source}), {usage.turns} turns",
            "",
            _table(_parts(usage)),
        ]
    )


def _parts(usage: ContextUsage) -> list[tuple[str, str, str]]:
    parts = msgspec.structs.asdict(usage.breakdown) if usage.breakdown is not None else {}
    return [
        *((name, f"{tokens:,}", "") for name, tokens in parts.items()),
        *(("largest", f"{part.tokens:,}", " ".join(part.label.split())) for part in usage.largest),
    ]


def _number(tokens: int, method: Method) -> str:
    return tokens_text(tokens, method).removesuffix(" tokens")


def _usd(usd: float | None) -> str:
    return "unpriced" if usd is None else f"${usd:.6f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the last as it is, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, last]).rstrip())
    return "\n".join(lines)
