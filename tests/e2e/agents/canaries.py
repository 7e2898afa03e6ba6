"""Builds projects whose prompt files contain a canary, a unique word, in each place.

If an agent's request contains a canary, the agent sends that place.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CANARY = "canary####"
"""Stands for a new canary, which has the same length, in the texts of a layout."""
PATTERN = r"canary\d{4}"
"""Matches a canary."""

HOME, ABOVE, ROOT = "", "work", "work/project"
MID, START, BELOW = f"{ROOT}/pkg", f"{ROOT}/pkg/app", f"{ROOT}/pkg/app/below"
FOLDERS = (HOME, ABOVE, ROOT, MID, START, BELOW)
"""The folders of a layout, relative to the home folder. `ROOT` is the top of the repository."""

PLAIN = f"The {CANARY} sings at dawn.\n\nThe {CANARY} sings at night.\n"
SCOPED = f"""---
description: The {CANARY} in the front matter
paths: ["src/**"]
globs: "src/**"
applyTo: "src/**"
alwaysApply: false
---
{PLAIN}"""
SKILL_FOLDERS = (
    ".agents/skills", ".claude/skills", ".cline/skills", ".clinerules/skills", ".codex/skills",
    ".continue/skills", ".gemini/skills", ".github/skills", ".kilo/skills", ".kilocode/skills",
    ".kimi-code/skills", ".opencode/skill", ".opencode/skills", ".pi/skills", ".qwen/skills",
    ".vibe/skills",
)  # fmt: skip
INSTRUCTIONS = (
    ".claude/AGENTS.md", ".claude/CLAUDE.md", ".clinerules/plain.md", ".clinerules/deep/plain.md",
    ".cline/rules/plain.md", ".continue/rules/plain.md", ".continue/rules/deep/plain.md",
    ".cursorrules", ".github/copilot-instructions.md", ".github/instructions/plain.instructions.md",
    ".goosehints", ".kilo/rules/plain.md", ".kilocode/rules/other.md", ".kilocoderules",
    ".kimi-code/AGENTS.md", ".qwen/QWEN.local.md", ".qwen/QWEN.md", ".qwen/rules/plain.md",
    ".qwen/rules/deep/plain.md", ".windsurfrules", "AGENT.md", "AGENTS.local.md", "AGENTS.md",
    "AGENTS.override.md", "CLAUDE.local.md", "CLAUDE.md", "CONTEXT.md", "CONVENTIONS.md",
    "CRUSH.md", "GEMINI.md", "QWEN.local.md", "QWEN.md", "README.md", ".claude/rules/plain.md",
    ".claude/rules/deep/plain.md", ".claude/rules/plain.txt", ".claude/agents/reviewer.md",
)  # fmt: skip
SCOPED_RULES = (
    ".claude/rules/scoped.md", ".clinerules/scoped.md", ".continue/rules/scoped.md",
    ".cursor/rules/scoped.mdc", ".github/instructions/scoped.instructions.md",
    ".kilo/rules/scoped.md", ".qwen/rules/scoped.md",
)  # fmt: skip
USER_FILES = (
    ".agents/AGENTS.md", ".cline/rules/user.md", ".codex/AGENTS.md", ".codex/AGENTS.override.md",
    ".config/kilo/AGENTS.md", ".config/opencode/AGENTS.md", ".copilot/copilot-instructions.md",
    ".copilot/instructions/user.instructions.md", ".gemini/GEMINI.md", ".pi/agent/AGENTS.md",
    ".pi/agent/APPEND_SYSTEM.md", ".pi/agent/CLAUDE.md", ".qwen/AGENTS.md", ".vibe/AGENTS.md",
    "Cline/Rules/user.md", "Documents/Cline/Rules/plain.md",
)  # fmt: skip
USER_SKILL_FOLDERS = (
    ".config/kilo/skills", ".config/opencode/skill", ".config/opencode/skills", ".copilot/skills",
    ".pi/agent/skills",
)  # fmt: skip
SUB_AGENTS = (
    ".agents/agents", ".claude/agents", ".copilot/agents", ".gemini/agents", ".github/agents",
    ".kilo/agents", ".kimi-code/agents", ".opencode/agent", ".opencode/agents", ".qwen/agents",
)  # fmt: skip
COMMANDS = (
    ".claude/commands", ".codex/prompts", ".kilo/commands", ".opencode/command",
    ".opencode/commands", ".qwen/commands",
)  # fmt: skip


class Layout(NamedTuple):
    """A project with a user's files around it."""

    start: str
    """The folder in which the agent starts, relative to the home folder."""
    files: dict[str, str]
    """The text of each file, by its path relative to the home folder.

    In paths, `SLUG` stands for the name that some agents derive from the root's path. In texts,
    `HOME` stands for the home folder.
    """
    links: Mapping[str, str] = {}
    """Where each symbolic link leads, relative to its folder."""
    is_repository: bool = True
    """Whether the root is the top of a git repository."""


class Place(NamedTuple):
    """A place of a canary."""

    path: str
    """The file's path, relative to the home folder."""
    number: int
    """The number of the canary in the file, from 1."""


def write(layout: Layout, home: Path) -> dict[str, Place]:
    """Write a layout's files, and return the place of each canary."""
    places: dict[str, Place] = {}
    slug = re.sub(r"[^A-Za-z0-9]", "-", str(home / ROOT))
    for template_path, template in layout.files.items():
        path = template_path.replace("SLUG", slug)
        text, *rest = template.replace("HOME", str(home)).split(CANARY)
        for number, piece in enumerate(rest, 1):
            canary = f"canary{len(places):04}"
            places[canary] = Place(path, number)
            text += canary + piece
        _folder_for(home / path).write_bytes(text.encode())
    for path, target in layout.links.items():
        _folder_for(home / path).symlink_to(target)
    return places


def _folder_for(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def everything() -> Layout:
    """Return a layout with each known file in each folder."""
    files = {_join(folder, name): PLAIN for folder in FOLDERS for name in INSTRUCTIONS}
    files |= {_join(folder, name): SCOPED for folder in FOLDERS for name in SCOPED_RULES}
    files |= dict.fromkeys(USER_FILES, PLAIN)
    for number, folder in enumerate(FOLDERS):
        for kind in SKILL_FOLDERS:
            name = f"skill-{number}-{kind.strip('.').replace('/', '-')}"
            files[_join(folder, f"{kind}/{name}/SKILL.md")] = skill(name)
        for kind in SUB_AGENTS:
            name = f"agent-{number}-{kind.strip('.').replace('/', '-')}"
            files[_join(folder, f"{kind}/{name}.md")] = skill(name)
        for kind in COMMANDS:
            name = f"command-{number}-{kind.strip('.').replace('/', '-')}"
            files[_join(folder, f"{kind}/{name}.md")] = skill(name)
        files[_join(folder, f".codex/agents/agent-{number}.toml")] = _CODEX_AGENT
    for kind in USER_SKILL_FOLDERS:
        name = f"user-{kind.strip('.').replace('/', '-')}"
        files[f"{kind}/{name}/SKILL.md"] = skill(name)
    return Layout(START, files)


def sample(seed: int, share: float = 0.3, *, is_repository: bool = True) -> Layout:
    """Return a layout with some of the instruction files, so that others hide different files."""
    rng, whole = random.Random(seed), everything()
    known = {_join(folder, name) for folder in FOLDERS for name in INSTRUCTIONS}
    known |= set(USER_FILES)
    chosen = {path: text for path, text in whole.files.items() if path in known}
    files = {path: text for path, text in chosen.items() if rng.random() < share}
    empty = rng.sample(sorted(files), 4)
    files |= dict.fromkeys(empty[:2], "") | dict.fromkeys(empty[2:], f"<!-- {CANARY} -->\n")
    return Layout(START, files, is_repository=is_repository)


def details() -> Layout:
    """Return a layout with comments, front matter, imports and unusual skills in the root."""
    files: dict[str, str] = {}
    mains = ("AGENTS.md", "CLAUDE.md", "GEMINI.md", "QWEN.md", ".github/copilot-instructions.md")
    for name in mains:
        files |= _with_imports(name)
    for rules in (".claude/rules", ".clinerules", ".continue/rules", ".kilo/rules", ".qwen/rules"):
        files |= {_join(ROOT, f"{rules}/{name}.md"): text for name, text in _rules().items()}
    files |= {
        _join(ROOT, f".github/instructions/{name}.instructions.md"): text
        for name, text in _rules().items()
    }
    for folder in SKILL_FOLDERS:
        name = folder.strip(".").replace("/", "-")
        files |= {
            _join(ROOT, f"{folder}/{path.replace('NAME', name)}"): text.replace("NAME", name)
            for path, text in _unusual_skills().items()
        }
        # The user's skills come before and after the project's by name.
        files |= {
            f"{folder}/{one}-{name}/SKILL.md": skill(f"{one}-{name}") for one in ("ant", "zoo")
        }
    files[_join(ROOT, ".claude/settings.json")] = json.dumps({"outputStyle": "chirping"})
    for style in ("chirping", "silent"):
        files[_join(ROOT, f".claude/output-styles/{style}.md")] = skill(style)
    note = f"the birds wake up before the sun rises, in every month but one, says the {CANARY}"
    lines = "".join(f"- Note {number}: {note}\n" for number in range(1, 206))
    for folder in (".claude/projects", ".qwen/projects"):
        files[f"{folder}/SLUG/memory/MEMORY.md"] = lines
        files[f"{folder}/SLUG/memory/topic.md"] = PLAIN
    files[".gemini/tmp/project/memory/MEMORY.md"] = lines
    files[".codex/memories/memory_summary.md"] = PLAIN
    return Layout(ROOT, files)


def crowded() -> Layout:
    """Return a layout whose instructions and skills exceed the limits of some agents."""
    bird = f"The {CANARY} sings: “trüü”, “žwitschär” and “тиу”.\n"
    files = {
        ".codex/AGENTS.md": bird * 600,
        _join(ROOT, "AGENTS.md"): bird * 300,
        _join(MID, "AGENTS.md"): bird * 400,
        _join(START, "AGENTS.md"): bird * 10,
        _join(START, "QWEN.md"): bird * 900,
    }
    for folder in (".agents/skills", ".claude/skills"):
        for number in range(90):
            name = f"bird-{folder[1:7]}-{number:02}"
            files[_join(START, f"{folder}/{name}/SKILL.md")] = skill(name, 561)
    return Layout(START, files)


def settings() -> Layout:
    """Return a layout in which settings of the project change what agents send."""
    names = ("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", "CONVENTIONS.md", "EXTRA.md", "GEMINI.md")
    files = {_join(folder, name): PLAIN for folder in (ABOVE, ROOT) for name in names}
    files |= {f"{ROOT}/docs/{name}": PLAIN for name in ("first.md", "second.md", "third.txt")}
    values = {
        ".claude/settings.json": {"claudeMdExcludes": ["**/project/CLAUDE.md"]},
        ".gemini/settings.json": {"context": {"fileName": ["EXTRA.md", "GEMINI.md"]}},
        ".qwen/settings.json": {"context": {"fileName": ["EXTRA.md"]}},
        "kilo.json": {"instructions": ["docs/*.md", "EXTRA.md", "docs/missing.md"]},
        "opencode.json": {"instructions": ["docs/*.md", "EXTRA.md", "docs/missing.md"]},
    }
    files |= {_join(ROOT, path): json.dumps(value) for path, value in values.items()}
    files[f"{ROOT}/.aider.conf.yml"] = "read:\n  - CONVENTIONS.md\n  - docs/first.md\n"
    files[".gemini/trustedFolders.json"] = '{"HOME/work/project": "TRUST_FOLDER"}'
    return Layout(ROOT, files)


def links() -> Layout:
    """Return a layout with links to one instruction file."""
    names = ("CLAUDE.md", "GEMINI.md", "QWEN.md", ".clinerules/linked.md", ".kilo/rules/linked.md")
    targets = {_join(ROOT, name): "../" * name.count("/") + "AGENTS.md" for name in names}
    targets[f"{ROOT}/.github/copilot-instructions.md"] = "../AGENTS.md"
    targets[f"{START}/AGENTS.md"] = "../../AGENTS.md"
    targets[f"{START}/.claude/rules"] = "../shared"
    targets[f"{START}/.agents/skills/linked"] = "../../linked"
    files = {f"{ROOT}/AGENTS.md": PLAIN, f"{START}/shared/rule.md": PLAIN}
    files[f"{START}/linked/SKILL.md"] = skill("linked")
    for rules in (".clinerules", ".cline/rules", ".kilo/rules", ".continue/rules"):
        targets[f"{START}/{rules}/inner.md"] = "../" * (rules.count("/") + 1) + "shared/rule.md"
    return Layout(START, files, targets)


def many_imports() -> Layout:
    """Return a layout in which files import many others, some of which import one another."""
    files: dict[str, str] = {}
    for name, count in (("AGENTS", 70), ("CLAUDE", 30), ("GEMINI", 20), ("QWEN", 20)):
        paths = [f"docs/{name.lower()}-{number:02}.md" for number in range(count)]
        files |= {_join(ROOT, path): PLAIN for path in paths}
        files[_join(ROOT, paths[0])] = f"{PLAIN}\n@inner-{name.lower()}.md\n\n{PLAIN}"
        files[f"{ROOT}/docs/inner-{name.lower()}.md"] = PLAIN
        files[f"{ROOT}/{name}.md"] = PLAIN + "".join(f"\n@{path}\n" for path in paths)
    return Layout(ROOT, files)


def outside(*, is_approved: bool = False) -> Layout:
    """Return a layout with links and imports that lead out of the project.

    Args:
        is_approved: Whether the user has approved Claude Code's imports of other files.
    """
    imports = "@../outside/import.md\n\n@docs/inside.md\n\n@~/notes.md\n"
    files = {f"{ROOT}/CLAUDE.md": f"{PLAIN}\n{imports}", f"{ROOT}/docs/inside.md": PLAIN}
    files |= dict.fromkeys(("notes.md", "work/outside/import.md", "work/outside/file.md"), PLAIN)
    files |= {f"work/outside/{name}/one.md": PLAIN for name in ("rules", "other-rules")}
    files[f"{ROOT}/docs/rule.md"] = files[f"{MID}/.claude/rules/own.md"] = files[
        f"{START}/.clinerules/own.md"
    ] = PLAIN
    approval = {"hasClaudeMdExternalIncludesApproved": is_approved}
    files[".claude.json"] = json.dumps({"projects": {f"HOME/{ROOT}": approval}})
    targets = {
        f"{ROOT}/.claude/rules": "../../outside/rules",
        f"{MID}/CLAUDE.md": "../../outside/file.md",
        f"{MID}/.claude/rules/linked.md": "../../../../outside/other-rules/one.md",
        f"{MID}/.claude/rules/inner.md": "../../../docs/rule.md",
        f"{START}/AGENTS.md": "../../../outside/file.md",
        f"{START}/.clinerules/linked.md": "../../../../outside/other-rules/one.md",
    }
    return Layout(START, files, targets)


_CODEX_AGENT = f"""name = "chirper"
description = "Asks the {CANARY} first"
developer_instructions = "The {CANARY} is in the body."
"""


def skill(name: str, length: int = 0, extra: str = "") -> str:
    """Return a skill, sub-agent or command.

    Args:
        name: The name.
        length: The description's length in characters, or 0 for a short one.
        extra: Further lines of the front matter.
    """
    text = f"Ask the {CANARY} first"
    if length:
        end = f" and {CANARY}."
        text = (text + " and the next bird" * length)[: length - len(end)] + end
    return f"---\nname: {name}\ndescription: {text}\n{extra}---\n\nThe {CANARY} is in the body.\n"


def _rules() -> dict[str, str]:
    heads = {
        "title": f"title: {CANARY}",
        "empty-paths": "paths: []",
        "all-paths": 'paths: ["**"]',
        "all-files": 'paths: ["**/*"]',
        "apply-all": 'applyTo: "**"',
        "only-globs": 'globs: "src/**"',
        "never": "alwaysApply: false",
        "never-described": f"alwaysApply: false\ndescription: The {CANARY}",
        "always": 'alwaysApply: true\nglobs: "src/**"',
        "disabled": "disabled: true",
        "broken": "paths: [",
        "star": "globs: *.ts",
        "colon": "description: The bird: a canary",
    }
    body = f"<!-- {CANARY} -->\nThe {CANARY}.\n"
    return {name: f"---\n{head}\n---\n{body}" for name, head in heads.items()} | {"bare": body}


def _unusual_skills() -> dict[str, str]:
    """Return skills that some agents treat differently. `NAME` stands for the folder."""
    extras = {
        "not-by-model": "disable-model-invocation: true\n",
        "not-by-user": "user-invocable: false\n",
        "scoped": 'paths: ["src/**"]\n',
        "when": f"when_to_use: When the {CANARY} is silent\n",
    }
    skills = {name: skill(f"{name}-NAME", 0, extra) for name, extra in extras.items()}
    skills |= {f"long-{size}": skill(f"long-{size}-NAME", size) for size in (250, 251, 1024, 1025)}
    skills["undescribed"] = f"---\nname: undescribed-NAME\n---\n\nThe {CANARY} is in the body.\n"
    files = {f"{name}-NAME/SKILL.md": text for name, text in skills.items()}
    files["deep/nested-NAME/SKILL.md"] = skill("nested-NAME")
    files["flat-NAME.md"] = skill("flat-NAME")
    return files


def _with_imports(name: str) -> dict[str, str]:
    """Return an instruction file with comments and imports, and the files that it imports."""
    docs = "docs/" + name.strip(".").split("/")[-1].split(".")[0].lower()
    text = _IMPORTING.replace("DOCS", docs).replace("CANARY", CANARY)
    imported = set(re.findall(rf"{docs}/[\w/.-]*\w", text)) - {f"{docs}/missing.md"}
    # A relative path starts from the importing file.
    folder = "/".join([ROOT, *name.split("/")[:-1]])
    files = {f"{ROOT}/{name}": text, f"{folder}/{docs}/sp ace.md": PLAIN}
    files |= {f"{folder}/{path}": PLAIN for path in sorted(imported)}
    for hop in range(1, 12):
        files[f"{folder}/{docs}/hop{hop}.md"] = f"The {CANARY}.\n\n@hop{hop + 1}.md\n"
    files[f"work/outside/{docs}.md"] = files[f"outside/{docs}.md"] = PLAIN
    return files


_IMPORTING = r"""---
title: CANARY
---
Before CANARY <!-- inline CANARY --> after CANARY.

<!-- block CANARY -->
<!-- long CANARY
long CANARY --> tail CANARY
A paragraph with CANARY
<!-- between two lines CANARY -->
goes on with CANARY.

- item CANARY
  <!-- in an item CANARY -->

> <!-- in a quote CANARY -->

```
<!-- in a fence CANARY -->
@DOCS/fence.md
```

    <!-- in indented code CANARY -->

In a span: `@DOCS/span.md`.

@DOCS/alone.md

See @DOCS/sentence.md here.

- @DOCS/item.md
- @./DOCS/dot.md
- @DOCS/noext
- @DOCS/data.json

Read @DOCS/comma.md, or
@DOCS/stop.md.
(@DOCS/parens.md)
"@DOCS/quoted.md"
**@DOCS/bold.md**
@DOCS/sp\ ace.md

With a tag<br>@DOCS/tag.md

Mail bird@DOCS/mail.md to [us](DOCS/link.md), @{DOCS/braces.md}, @DOCS/missing.md and @DOCS

@DOCS/twice.md

@DOCS/twice.md

@../outside/DOCS.md

@~/outside/DOCS.md

<!-- @DOCS/comment.md -->

<div>
@DOCS/div.md
</div>

@DOCS/hop1.md

<!-- unclosed CANARY
@DOCS/unclosed.md
"""


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
