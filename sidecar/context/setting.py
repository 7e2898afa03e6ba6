"""What `context/set` changes in a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from sidecar.context.params import SectionSpec, SetParams
from sidecar.context.sections import Section, SectionSource, TextSource
from sidecar.errors import BadParamsError

if TYPE_CHECKING:
    from sidecar.context.session import Session

Follow = Callable[[SectionSpec], SectionSource]


def apply_set(session: Session, params: SetParams, follow: Follow) -> None:
    """Change what the params name; what they leave out stays, and null takes it away.

    The model is switched by setting `session.counter`. `follow` gives the source of a section
    that names a document. Raises SidecarError `badParams` for a section without exactly one of
    `text` and `textDocument`; then nothing is changed.
    """
    if params.sections is not UNSET:
        session.sections = sections_from(params.sections or (), session.sections, follow)
    if params.system_prompt is not UNSET:
        session.set_system(params.system_prompt)
    if params.tools is not UNSET:
        session.set_tools(params.tools)
    if params.limit is not UNSET:
        session.limit = params.limit
    if params.reserve is not UNSET:
        session.reserve = params.reserve
    if params.persist is not None:
        session.persist = params.persist
    session.touch()


def sections_from(
    specs: Sequence[SectionSpec], old: Sequence[Section], follow: Follow
) -> list[Section]:
    """Sections as they were asked for; a text that was there before is not counted again."""
    known = {
        section.source.text(): section.source
        for section in old
        if isinstance(section.source, TextSource)
    }
    named = {section.name: section for section in old}
    return [
        Section(
            name=spec.name,
            reported=named[spec.name].reported if spec.name in named else None,
            held=named[spec.name].held if spec.name in named else None,
            source=_source(spec, known, follow),
            cap=spec.cap,
            priority=spec.priority or 0,
            truncation=spec.truncation or "middle",
        )
        for spec in specs
    ]


def _source(spec: SectionSpec, known: Mapping[str, SectionSource], follow: Follow) -> SectionSource:
    if (spec.text is None) == (spec.text_document is None):
        raise BadParamsError("each section takes exactly one of `text` and `textDocument`")
    if spec.text is None:
        return follow(spec)
    return known.get(spec.text) or TextSource(spec.text)
