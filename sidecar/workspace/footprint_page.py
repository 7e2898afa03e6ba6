"""Renders what coding agents send before the first word, as a page or as a part of one."""

from __future__ import annotations

import msgspec

from sidecar.counting.count_result import method_mark
from sidecar.text.pages import STYLE, Page, escape, parts_bar, table_html
from sidecar.workspace.footprint_report import (
    AgentFootprint,
    FootprintReport,
    agent_name,
    agent_notes,
    agent_rows,
    others_text,
    size_text,
)

_TITLE = "What your agent loads"
_MOST_COLORS = 7
"""Maximum number of parts with a color of their own."""
TABLE_STYLE = ".states :is(td,th){white-space:normal;vertical-align:top}\n"


def footprint_page(report: FootprintReport) -> Page:
    """Return the page of a report."""
    html = f"<h1>{_TITLE}</h1>{footprint_html(report)}"
    return Page(title=_TITLE, html=html, style=f"{STYLE}\n{TABLE_STYLE}")


def add_footprint(page: Page, report: FootprintReport) -> Page:
    """Return a page with a report at its end."""
    html = f"{page.html}<h1>{_TITLE}</h1>{footprint_html(report)}" if report.agents else page.html
    return msgspec.structs.replace(page, html=html, style=f"{page.style}\n{TABLE_STYLE}")


def footprint_html(report: FootprintReport) -> str:
    """Return a section for each agent, and what to do next."""
    ends = filter(None, (others_text(report), report.next_step))
    sections = "".join(map(_agent_html, report.agents))
    return sections + "".join(f"<p>{escape(text)}</p>" for text in ends)


def _agent_html(found: AgentFootprint) -> str:
    name = agent_name(found)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in agent_notes(found))
    rows = [(label, number, state) for label, number, state in agent_rows(found)]
    table = table_html(f"Parts of {name}", ("Part", "Tokens", "State"), rows, kind="states")
    return (
        f"<section><h2>{escape(name)}</h2>"
        f"<p>{escape(f'{size_text(found)} before the first word, for {found.model}')}</p>"
        f"{_bar_html(found, name)}{notes}{table}</section>"
    )


def _bar_html(found: AgentFootprint, name: str) -> str:
    """Return a bar of the parts that are sent. Small parts share a color."""
    sizes = [(part.label, part.tokens) for part in found.parts if part.tokens]
    sizes.sort(key=lambda part: -part[1])
    rest = sum(tokens for _, tokens in sizes[_MOST_COLORS:])
    parts = [*sizes[:_MOST_COLORS], *([("Smaller parts", rest)] if rest else [])]
    marks = method_mark(found.method), ""
    return parts_bar(parts, f"What {name} sends", marks=marks) if parts else ""
