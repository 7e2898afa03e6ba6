"""Tests that the editor and `token-sidecar check` report the same findings for generated files."""

# token-budget: ignore (the budgets below are samples)

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from sidecar.budgets.budget_rules import Rules
from sidecar.budgets.check_report import FileReport, ReportedFinding
from sidecar.budgets.findings import (
    Finding,
    GroupMember,
    RestOfGroup,
    TextCounter,
    evaluate,
    members_to_name,
)
from sidecar.config.load import load
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.text.document import Range, TextDocument
from sidecar.text.outline import has_ignore_mark
from sidecar.workspace.check_paths import check_paths as run

FILES = 2_000
CONFIGURATION = """\
presets = true
[[budget]]
files = ["docs/**/*.md", "!skip.md"]
max-tokens = 90
warn-at = 0.6
sections = { "Context" = 30, "Plan > Recent diffs" = 25 }
[[budget]]
files = "*.py"
max-tokens = 60
model = "claude-sonnet-4-5"
[[budget]]
files = ["AGENTS.md", "CLAUDE.md"]
max-tokens = 2000
sum = true
[[budget]]
files = "d1*/**"
max-tokens = 15000
sum = true
model = "gpt-4"
"""
WORDS = [
    *("context", "the", "token", "budget", "Überprüfung", "上下文窗口", "😀", "👩‍💻", "हिन्दी"),
    *("x=1;", "  ", "\t", "don't", "https://example.org/a?b=c", "0123456789", "{}", "ſ", "é"),
    "\u2028",
]
LINES = [
    *("# Plan", "## Context", "### Recent diffs", "## Recent diffs", "Setext", "---", "```", ""),
    *("<!-- token-budget: 12 -->", "// token-budget: end", "# token-budget: ignore"),
]


def generated(random: random.Random) -> str:
    lines = []
    for _ in range(random.randrange(25)):
        if random.random() < 0.3:
            weights = [9] * 8 + [2, 2, 0.3]
            lines.append(random.choices(LINES, weights)[0])
        else:
            lines.append(" ".join(random.choices(WORDS, k=random.randrange(12))))
    return random.choice(["\n", "\n", "\r\n", "\r"]).join(lines)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Generate files. Return their texts by relative path. The key `""` holds the root folder."""
    root = tmp_path_factory.mktemp("tree")
    made = {"": str(root)}
    chance = random.Random(4)
    (root / ".token-sidecar.toml").write_text(CONFIGURATION)
    for number in range(FILES):
        folder = chance.choice(["docs", "docs/deep", "src", f"d{number % 30}"])
        name = chance.choice([f"f{number}.md", f"f{number}.py", f"f{number}.txt", "AGENTS.md"])
        name = f"{folder}/n{number}/{name}" if name == "AGENTS.md" else f"{folder}/{name}"
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        made[name] = generated(chance)
        path.write_bytes(made[name].encode())
    return made


class Editor:
    """Simulates an editor: edits documents and reports the findings in them."""

    def __init__(self, tree: Mapping[str, str]) -> None:
        from pathlib import Path

        settings = load(Path(tree[""]), None, None).settings
        self.model = settings.model
        self.rules = Rules(settings)
        self.tokenizers = Tokenizers(settings.tokenizers, settings.tokenize.estimator)
        self.chance = random.Random(5)
        self.texts = {path: text for path, text in tree.items() if path}

    def typed(self, text: str) -> TextDocument:
        """Return a document whose text is the result of several edits."""
        cut = self.chance.randrange(len(text) + 1)
        if text[cut - 1 : cut + 1] == "\r\n":
            cut += 1
        document = TextDocument("file:///x", text[cut:], 1, "utf-16")
        start = document.position_at(0)
        document.apply(Range(start, start), text[:cut])
        assert document.text == text
        return document

    def tokens(self, path: str, model: str | None) -> int:
        return self.tokenizers.for_model(model or self.model).count(self.texts[path])

    def together(self) -> dict[str, dict[str, int]]:
        """For each rule that defines a group, return the token count of each file in the group."""
        return {
            rule.key: {
                path: self.tokens(path, rule.budget.model)
                for path, text in self.texts.items()
                if self.rules.matches(rule, path) and not has_ignore_mark(text, path)
            }
            for rule in self.rules.sums
        }

    def findings(self, path: str, sums: Mapping[str, Mapping[str, int]]) -> list[Finding]:
        document = self.typed(self.texts[path])
        counter = TextCounter(document.text, self.tokenizers.for_model, document.pieces)
        others = {
            key: RestOfGroup(
                sum(files.values()) - files.get(path, 0),
                len(files),
                members_to_name([GroupMember(*file) for file in files.items() if file[0] != path]),
            )
            for key, files in sums.items()
        }
        rules = self.rules.of(path)
        return evaluate(path, document.text, rules, counter, self.model, others)


def key(finding: Finding | ReportedFinding) -> tuple[object, ...]:
    public = (finding.severity, finding.budget, finding.tokens, finding.over, finding.section)
    return (*map(str, public), finding.rule, finding.message, finding.code, finding.method)


def test_editor_and_command_line_agree_on_every_file(tree: dict[str, str]) -> None:
    editor = Editor(tree)
    sums = editor.together()
    cold, problems = run([tree[""]])
    warm, _ = run([tree[""]])
    assert problems == []
    assert warm == cold
    reports: dict[str, FileReport] = {
        file.path.removeprefix(f"{tree['']}/"): file for file in cold.files
    }
    assert reports.keys() - {".token-sidecar.toml"} == editor.texts.keys()
    seen: dict[str, int] = {}
    for path in editor.texts:
        report, findings = reports[path], editor.findings(path, sums)
        assert report.tokens == editor.tokens(path, None)
        assert sorted(map(key, report.findings)) == sorted(map(key, findings)), path
        for finding in findings:
            kind = f"{finding.kind} {finding.code} {finding.rule}"
            seen[kind] = seen.get(kind, 0) + 1
    # The generated files cause every kind of finding.
    assert {kind.split()[0] for kind in seen} == {"file", "section", "region"}
    assert {kind.split()[2] for kind in seen} >= {f"budget[{index}]" for index in range(4)}
    assert sum(seen.values()) > 1_000
