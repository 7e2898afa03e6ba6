"""Reports what coding agents lose of checked files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from sidecar.budgets.check_report import ReportedInstruction
from sidecar.budgets.file_reader import decode_text, range_of
from sidecar.budgets.instruction_findings import check_instructions, locate
from sidecar.project.source_files import SourceFiles

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.config.settings import Settings


def report_instructions(
    root: Path, settings: Settings, names: Mapping[str, str], texts: Mapping[str, bytes]
) -> Iterator[ReportedInstruction]:
    """Yield the findings in checked files, in the order of the files.

    Args:
        root: The root folder.
        settings: The root's settings.
        names: How the report names each file, by absolute path.
        texts: What files contain instead of their contents on disk, by path.
    """
    files = SourceFiles(texts, below=names)
    problems = check_instructions(root, settings, files)
    for path in (one for one in names if one in problems):
        data = files.data(path)
        text = decode_text(data) or ""
        for finding in locate(problems[path], data):
            yield ReportedInstruction(
                path=names[path],
                severity=finding.severity,
                code=finding.code,
                message=finding.message,
                agents=finding.agents,
                **msgspec.structs.asdict(range_of(text, finding.start, finding.end)),
            )
