"""Continue: `dev_data/*/tokensGenerated.jsonl`, a line a call: sums alone, of no session."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.fields import CamelRecord, Number, at_of, count, provider_of
from sidecar.agents.folding import Folded, fold_lines
from sidecar.agents.line_files import NamedFiles
from sidecar.agents.tail import lines_with
from sidecar.agents.values import Batch, Call, Found, Glance, Mark
from sidecar.messages.usage import disjoint

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "continue"


class _Line(CamelRecord):
    timestamp: str | float | None = None
    model: str | None = None
    provider: str | None = None
    prompt_tokens: Number = None
    generated_tokens: Number = None


class _State(msgspec.Struct, frozen=True):
    """Of a file whose lines each say all that is needed."""

    lines: int = 0


_line = typed.decoder(_Line)


class ContinueDev(NamedFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "dev_data"
    name = "tokensGenerated.jsonl"
    live = False

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        return super().find(places) if roots is None else iter(())

    def glance(self, look: Look) -> Glance:
        return Glance(look.found)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_lines(found, mark, _State(), _fold)


def _fold(state: _State, data: bytes) -> Folded[_State]:
    calls = []
    skipped = 0
    lines = state.lines
    for text in lines_with(data, b'"promptTokens"'):
        lines += 1
        try:
            one = _line(text)
        except msgspec.DecodeError:
            skipped += 1
            continue
        at = at_of(one.timestamp)
        prompt, output = count(one.prompt_tokens), count(one.generated_tokens)
        if at is None:
            continue
        model = one.model or "unknown"
        calls.append(
            Call(
                at=at,
                agent=AGENT,
                session="",
                model=model,
                provider=one.provider or provider_of(model),
                usage=disjoint(prompt, 0, 0, 0, output, 0),
                request=blake2b(b"%d %b" % (lines, text), digest_size=12).hexdigest(),
                quality="estimate",
            )
        )
    return Folded(_State(lines), calls, skipped)
