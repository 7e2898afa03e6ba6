"""The session's sections as one text, each cut to its cap; presets of caps for context packs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.config.settings import Truncation
from sidecar.context.results import PackPart

if TYPE_CHECKING:
    from sidecar.context.counter import Counter
    from sidecar.context.sections import Section


class Pack(msgspec.Struct, frozen=True):
    """Caps for the sections of a context pack, in tokens."""

    total: int
    caps: Mapping[str, int]
    truncation: Truncation = "middle"


PRESETS: Mapping[str, Pack] = {
    "mind": Pack(
        total=8000,
        caps={
            "intent_summary": 300,
            "product_overview": 600,
            "api_signatures": 2200,
            "recent_diffs": 1200,
            "impl_snippets": 3000,
            "configs_profiles": 700,
        },
    )
}


class Rendered(NamedTuple):
    """A context as it was rendered."""

    text: str
    parts: tuple[PackPart, ...] = ()


def render(sections: Sequence[Section], counter: Counter, preset: str | None = None) -> Rendered:
    """The sections under their names, in their order, each within its cap.

    A preset gives caps to the sections that have none, and bounds the whole: over that, the
    sections of lowest priority are shortened first, the later ones first among equals.
    """
    pack = PRESETS.get(preset or "")
    texts = [_capped(section, counter, pack) for section in sections]
    whole = _joined(sections, texts)
    if pack is not None and counter.text(whole).tokens > pack.total:
        whole = _within(sections, texts, counter, pack)
    return Rendered(whole, tuple(_parts(sections, texts, counter)))


def _parts(
    sections: Sequence[Section], texts: Sequence[str], counter: Counter
) -> Iterator[PackPart]:
    for section, text in zip(sections, texts, strict=True):
        cut = text != section.source.text()
        measure = counter.text(text) if cut else section.whole(counter)
        yield PackPart(name=section.name, tokens=measure.tokens, trimmed=cut)


def _capped(section: Section, counter: Counter, pack: Pack | None) -> str:
    cap = section.cap
    if cap is None and pack is not None:
        cap = pack.caps.get(section.name)
    text = section.source.text()
    return text if cap is None else counter.fit(text, cap, section.truncation)


def _joined(sections: Sequence[Section], texts: Sequence[str]) -> str:
    return "\n\n".join(
        f"## {section.name}\n\n{text}"
        for section, text in zip(sections, texts, strict=True)
        if text
    )


def _within(sections: Sequence[Section], texts: list[str], counter: Counter, pack: Pack) -> str:
    """The whole within the pack's total."""
    order = sorted(range(len(sections)), key=lambda index: (sections[index].priority, -index))
    for index in order:
        over = counter.text(_joined(sections, texts)).tokens - pack.total
        if over <= 0:
            break
        left = max(0, counter.text(texts[index]).tokens - over)
        texts[index] = counter.fit(texts[index], left, sections[index].truncation)
    whole = _joined(sections, texts)
    if counter.text(whole).tokens <= pack.total:
        return whole
    return counter.fit(whole, pack.total, pack.truncation)
