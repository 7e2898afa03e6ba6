"""Generates documents with a fixed seed: logs, tables, records and encoded data."""

from __future__ import annotations

import base64
import csv
import io
import json
from typing import TYPE_CHECKING

from benchmarks.fitting.pictographs import emoji_text, rare_text

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


def _time(source: random.Random) -> str:
    day = f"20{source.randrange(10, 30)}-{source.randrange(1, 13):02}-{source.randrange(1, 29):02}"
    clock = ":".join(f"{source.randrange(60):02}" for _ in range(3))
    return f"{day}{source.choice('T ')}{clock}.{source.randrange(1000):03}"


_VERBS = [
    "accepted",
    "closed",
    "failed",
    "opened",
    "received",
    "refused",
    "retried",
    "sent",
    "started",
    "stopped",
    "timed-out",
]
_NOUNS = [
    "request",
    "connection",
    "session",
    "worker",
    "payment",
    "message",
    "upload",
    "job",
    "query",
    "transaction",
    "index",
]


def _service_log(source: random.Random) -> str:
    service = source.choice(("api-gateway", "billing", "scheduler", "search.indexer", "auth"))
    return "\n".join(
        f"{_time(source)}Z {source.choice(('INFO', 'WARN', 'ERROR', 'DEBUG'))} [{service}-"
        f"{source.randrange(64)}] {source.choice(_NOUNS)} {source.choice(_VERBS)} "
        f"id={source.randbytes(source.choice((4, 8, 16))).hex()} user={source.randrange(10**6)} "
        f"took={source.random() * 900:.2f}ms"
        for _ in range(120)
    )


def _web_log(source: random.Random) -> str:
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0"
    return "\n".join(
        f"{'.'.join(str(source.randrange(256)) for _ in range(4))} - - "
        f"[{source.randrange(1, 29):02}/Nov/2026:{source.randrange(24):02}:{source.randrange(60):02}:"
        f'{source.randrange(60):02} +0000] "{source.choice(("GET", "POST"))} /{source.choice(_NOUNS)}/'
        f'{source.randrange(10**5)}?page={source.randrange(50)} HTTP/1.1" '
        f'{source.choice((200, 301, 404, 500))} {source.randrange(10**5)} "-" "{agent}"'
        for _ in range(80)
    )


def _system_log(source: random.Random) -> str:
    return "\n".join(
        f"Nov {source.randrange(1, 29):2} {source.randrange(24):02}:{source.randrange(60):02}:"
        f"{source.randrange(60):02} host{source.randrange(9)} "
        f"{source.choice(('kernel', 'sshd', 'systemd', 'cron', 'dockerd'))}[{source.randrange(40000)}]: "
        f"{source.choice(_NOUNS)} {source.randrange(99)} {source.choice(_VERBS)} on port "
        f"{source.randrange(65536)} (0x{source.randrange(2**32):08x})"
        for _ in range(100)
    )


def _trace(source: random.Random) -> str:
    files = [f"/srv/app/{noun}/{verb}.py" for noun in _NOUNS[:6] for verb in _VERBS[:4]]
    return "\n".join(
        ["Traceback (most recent call last):"]
        + [
            f'  File "{source.choice(files)}", line {source.randrange(900)}, in '
            f"{source.choice(_VERBS)}_{source.choice(_NOUNS)}\n    return self.{source.choice(_NOUNS)}"
            f".{source.choice(_VERBS)}({source.choice(_NOUNS)}_id, timeout={source.randrange(60)})"
            for _ in range(source.randrange(4, 50))
        ]
        + [
            f"TimeoutError: {source.choice(_NOUNS)} {source.randrange(9999)} {source.choice(_VERBS)}"
        ]
    )


def _table(source: random.Random) -> str:
    made = io.StringIO()
    rows = csv.writer(made, delimiter=source.choice(",;\t"))
    rows.writerow(["id", "date", "name", "quantity", "price", "country"])
    for _ in range(200):
        name = f"{source.choice(_NOUNS).title()} {source.choice(_VERBS)}"
        price = f"{source.random() * 10 ** source.randrange(1, 6):.2f}"
        row = [source.randrange(10**6), _time(source)[:10], name, source.randrange(999), price]
        rows.writerow([*row, source.choice(("DE", "FR", "US", "JP", "BR"))])
    return made.getvalue()


def _measurements(source: random.Random) -> str:
    digits, columns = source.randrange(1, 9), source.randrange(2, 12)
    mark = source.choice((",", "\t", " ", ", ", "  "))
    scale = 10.0 ** source.randrange(-2, 6)
    lines = (
        mark.join(f"{source.gauss(0, scale):.{digits}f}" for _ in range(columns))
        for _ in range(300)
    )
    return "\n".join(lines)


def _rows(source: random.Random) -> str:
    top = 10 ** source.randrange(2, 10)
    return "\n".join(
        " ".join(str(source.randrange(top)) for _ in range(source.randrange(1, 10)))
        for _ in range(400)
    )


def _encoded(source: random.Random) -> str:
    plain = base64.b64encode(source.randbytes(6_000)).decode()
    width = source.choice((0, 64, 76))
    if not width:
        return plain
    return "\n".join(plain[at : at + width] for at in range(0, len(plain), width))


def _hexadecimal(source: random.Random) -> str:
    size = source.choice((8, 16, 20, 32))
    return "\n".join(source.randbytes(size).hex() for _ in range(300))


def _dump(source: random.Random) -> str:
    return "\n".join(
        f"{16 * line:08x}: " + " ".join(source.randbytes(2).hex() for _ in range(8))
        for line in range(200)
    )


def _ids(source: random.Random) -> str:
    parts = (4, 2, 2, 2, 6)
    one = source.choice((",", "\n", '",\n"'))
    return one.join("-".join(source.randbytes(n).hex() for n in parts) for _ in range(200))


def _record(source: random.Random) -> dict[str, object]:
    return {
        "id": source.randrange(10**9),
        "user": {"name": source.choice(_NOUNS), "active": source.random() < 0.5},
        "tags": source.sample(_VERBS, 3),
        "at": _time(source),
        "total": round(source.random() * 1000, 2),
        "hash": source.randbytes(8).hex(),
        "parent": None,
    }


def _lines_of_json(source: random.Random) -> str:
    return "\n".join(json.dumps(_record(source)) for _ in range(60))


def _minified_json(source: random.Random) -> str:
    made = [_record(source) for _ in range(60)]
    return (
        json.dumps(made, separators=(",", ":"))
        if source.random() < 0.5
        else json.dumps(made, indent=2)
    )


def _white(source: random.Random) -> str:
    return "\n".join(
        "\t" * source.randrange(6)
        + " " * source.randrange(30)
        + source.choice(("x", "end", "", "}"))
        for _ in range(300)
    )


def _calls(source: random.Random) -> str:
    """Return numbered lines of code, as in the tool results of agents."""
    return "\n".join(
        f"{line:6}\t{'    ' * source.randrange(4)}{source.choice(_NOUNS)}.{source.choice(_VERBS)}"
        f"({source.choice(_NOUNS)}={source.randrange(100)})"
        for line in range(source.randrange(900), 1200)
    )


def _diff(source: random.Random) -> str:
    lines = []
    for _ in range(40):
        lines.append(
            f"@@ -{source.randrange(999)},7 +{source.randrange(999)},9 @@ def {source.choice(_NOUNS)}():"
        )
        lines += [
            f"{mark}    {source.choice(_NOUNS)} = {source.choice(_VERBS)}_{source.choice(_NOUNS)}(1)"
            for mark in "  -++ "
        ]
    return "\n".join(lines)


MAKERS: tuple[Callable[[random.Random], str], ...] = (
    _service_log, _web_log, _system_log, _trace, _table, _measurements, _encoded, _hexadecimal,
    _dump, _rows, _ids, _lines_of_json, _minified_json, _white, _calls, _diff,
    emoji_text, rare_text,
)  # fmt: skip
"""Functions that each generate one kind of document."""
