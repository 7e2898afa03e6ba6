"""Continue's extensions: `dev_data/*/tokensGenerated.jsonl`, a line per call, without sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.events import CallFinished, SessionSnapshot, Store, StoreRead, StoreReader
from sidecar.agents.fields import CamelRecord, Number, parse_time, provider_of, token_count
from sidecar.agents.line_files import NamedFiles
from sidecar.agents.stores import Lines, read_lines
from sidecar.messages.usage import usage_from_parts

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

AGENT = "continue"


class _Line(CamelRecord):
    timestamp: str | float | None = None
    model: str | None = None
    provider: str | None = None
    prompt_tokens: Number = None
    generated_tokens: Number = None


_line = typed.decoder(_Line)


class ContinueDev(NamedFiles, StoreReader):
    """See `sidecar.agents.events.StoreReader`."""

    agent = AGENT
    inner = "dev_data"
    name = "tokensGenerated.jsonl"
    live = False

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        return super().find(places) if roots is None else iter(())

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_lines(store, state, _File)


class _File(msgspec.Struct):
    lines: int = 0

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        for line in lines.records(_line, b'"promptTokens"'):
            self.lines += 1
            at = parse_time(line.timestamp)
            if at is None:
                continue
            prompt, output = token_count(line.prompt_tokens), token_count(line.generated_tokens)
            model = line.model or "unknown"
            number = b"%d %b" % (self.lines, lines.line)
            yield CallFinished(
                at=at,
                agent=AGENT,
                session="",
                model=model,
                provider=line.provider or provider_of(model),
                usage=usage_from_parts(prompt, 0, 0, 0, output, 0),
                request=blake2b(number, digest_size=12).hexdigest(),
            )

    def snapshots(self) -> Iterable[SessionSnapshot]:
        return ()
