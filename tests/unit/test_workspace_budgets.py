"""Tests `token-budget` marks that span pieces, and where ignore marks are searched for."""

from __future__ import annotations

from pathlib import Path
from threading import current_thread

import pytest

from sidecar.budgets.budget_rules import Rule, Rules
from sidecar.config.settings import Budget, Loaded, Settings
from sidecar.counting.open_documents import Snapshot
from sidecar.text.document import TextDocument
from sidecar.text.outline import HEAD_CHARACTERS
from sidecar.text.pieces import Piece
from sidecar.workspace.document_budgets import find_lowest_budget
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Workspace
from tests.file_opens import recorded_opens

URI = "file:///ws/notes.md"
MARK = "token-budget: ignore"


def budgeted() -> Workspace:
    settings = Settings(budgets=(Budget(files=("*.md",), max_tokens=10),))
    return Workspace(None, None, loaded=Loaded(settings, (), {}), rules=Rules(settings))


class ReadPiece(Piece):
    """A piece that records whether its text has been read."""

    __slots__ = ("_content", "read")

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.read = False

    @property
    def text(self) -> str:
        self.read = True
        return self._content

    @text.setter
    def text(self, text: str) -> None:
        self._content = text


@pytest.mark.parametrize("before", [0, 5, 2_030, 20_000])
def test_ignore_mark_in_any_piece_of_the_first_lines_applies(before: int) -> None:
    document = TextDocument(URI, f"{'x, ' * (before // 3)}\n<!-- {MARK} -->\n" + "word\n" * 9_000)
    assert find_lowest_budget(Snapshot.of(document), budgeted()) is None
    document.apply(None, document.text.replace(MARK, "no mark"))
    assert find_lowest_budget(Snapshot.of(document), budgeted()) == 10


def test_ignore_mark_is_searched_for_only_at_the_beginning() -> None:
    pieces = [ReadPiece("x, " * 700) for _ in range(100)]
    assert find_lowest_budget(Snapshot(pieces, uri=URI), budgeted()) == 10
    read = [piece.read for piece in pieces]
    assert sum(read) * 2_100 < HEAD_CHARACTERS + 2_100
    assert not any(read[sum(read) :])


async def test_region_that_begins_and_ends_in_other_pieces_is_found(services: Services) -> None:
    services.roots.outside.rules = Rules(Settings())
    text = "y" * 2_040 + " # token-budget: 1\nmore words\n" + "word\n" * 2_000
    document = TextDocument(URI, text)
    assert document.pieces[0].text.endswith(" # token-budget: 1"), "its text is in later pieces"
    workspace, snapshot = services.roots.outside, Snapshot.of(document)
    subject = services.budgets.subject(snapshot, workspace)
    (finding,) = await services.budgets.findings(subject, workspace)
    assert finding.rule == "region"


class ThreadedRules(Rules):
    """Rules that record the thread on which each file is matched."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.threads: dict[str, str] = {}

    def matches(self, rule: Rule, path: str) -> bool:
        self.threads[path] = current_thread().name
        return super().matches(rule, path)


@pytest.mark.slow
async def test_unchanged_files_of_a_large_group_are_counted_once(
    tmp_path: Path, services: Services
) -> None:
    root = tmp_path / "work"
    root.mkdir()
    for number in range(10_010):
        (root / f"{number}.md").write_text("one")
    workspace = services.roots.add(root.as_uri())
    rule = Budget(files=("*.md",), max_tokens=1, sum=True)
    workspace.loaded = Loaded(Settings(budgets=(rule,)), (), {})
    workspace.rules = Rules(workspace.settings)
    for expected in (10_009, 0):
        snapshot = Snapshot.of(TextDocument((root / "0.md").as_uri(), "two"))
        subject = services.budgets.subject(snapshot, workspace)
        with recorded_opens(root) as opened:
            (finding,) = await services.budgets.findings(subject, workspace)
        assert finding.files == 10_010
        assert len([path for path in opened if path.endswith(".md")]) == expected


async def test_other_files_of_a_group_are_matched_on_a_worker(
    tmp_path: Path, services: Services
) -> None:
    for name in ("own.md", "other.md", "code.py"):
        (tmp_path / name).write_text("one two three")
    workspace = services.roots.add(tmp_path.as_uri())
    rule = Budget(files=("*.md",), max_tokens=1, sum=True)
    workspace.loaded = Loaded(Settings(budgets=(rule,)), (), {})
    workspace.rules = rules = ThreadedRules(workspace.settings)
    snapshot = Snapshot.of(TextDocument((tmp_path / "own.md").as_uri(), "one two three"))
    subject = services.budgets.subject(snapshot, workspace)
    (finding,) = await services.budgets.findings(subject, workspace)
    assert finding.files == 2
    assert current_thread().name not in (rules.threads["other.md"], rules.threads["code.py"])
