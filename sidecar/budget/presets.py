"""Budgets for well-known prompt files, switched on by `presets = true`.

The numbers are what the makers of the tools advise, at 12 tokens a line where they speak of lines:

- CLAUDE.md: under 200 lines (Claude Code's documentation, "Manage Claude's memory"); AGENTS.md and
  GEMINI.md are the same kind of file.
- .github/copilot-instructions.md: no longer than two pages (GitHub's documentation), 1,500 tokens.
- .cursor/rules: under 500 lines each (Cursor's documentation, "Rules").
- SKILL.md: under 5,000 tokens (the Agent Skills specification, "Progressive disclosure").
- *.prompt.md and .prompty: no maker names a number; half of a small model's 8,192 tokens.
"""

from __future__ import annotations

from sidecar.config.settings import Budget

PRESETS: tuple[Budget, ...] = (
    Budget(files=("AGENTS.md", "CLAUDE.md", "GEMINI.md"), max_tokens=2_400),
    Budget(files=(".github/copilot-instructions.md",), max_tokens=1_500),
    Budget(files=("**/.cursor/rules/**",), max_tokens=6_000),
    Budget(files=("SKILL.md",), max_tokens=5_000),
    Budget(files=("*.prompt.md", "*.prompty"), max_tokens=4_000),
)
