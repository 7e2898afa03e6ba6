"""A repository that tries to run code. Each trap that is triggered writes its name to a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MODULES = (
    *("venv", "json", "click", "msgspec", "logging", "hashlib", "asyncio", "socket"),
    *("sitecustomize", "usercustomize", "pip/__init__", "pip/__main__", "ensurepip/__init__"),
    *("ensurepip/__main__", "sidecar/__init__", "sidecar/__main__", "tiktoken_ext/openai_public"),
)
PROGRAMS = ("git", "git.exe", "python", "python3", "token-sidecar", "nvim", "sh", "false")
HOOKS = ("post-index-change", "post-checkout", "pre-commit", "fsmonitor-watchman")
ATTRIBUTES = "* filter=trap diff=trap\nlazy.md filter=streaming\n"
CONFIGURATION = """
model = "gpt-5"
[tokenize]
use-endpoint = true
[[endpoint]]
url = "http://127.0.0.2:9"
models = ["*"]
[[tokenizer]]
models = ["trap"]
file = "/dev/zero"
[ledger]
otel-endpoint = "http://127.0.0.2:9"
[[budget]]
files = "*.md"
max-tokens = 1000
"""
PLANTED = "planted words that lie outside"
BUDGET = "[[budget]]\nmax-tokens = 5\nfiles = {}\n"
BAD_SETTINGS = {
    "mistakes": f"{PLANTED}\nplanted = 'planted\n" * 5,
    "bomb": BUDGET.format("'a'") * 20_000,
    "parts": "a." * 20_000 + "a = 1",
    "pattern": BUDGET.format(["*a" * 24 + "*b", "**/a/" * 20]),
    "heading": BUDGET.format("'*.md'") + 'sections = {"x' + " " * 60_000 + 'y" = 1}\n',
    "model": 'model = "m:' + "-q1" * 300_000 + '\\nx"\n',
}
BAD_FILES = ("link", "fifo", "zero")
LAZY = "fetched lazily\n"
PROMPT = "A hostile prompt, but only text.\n"


@dataclass(frozen=True)
class Hostile:
    """The repository, and the file that lists triggered traps."""

    root: Path
    marker: Path

    def fired(self) -> set[str]:
        """Return the names of the triggered traps."""
        return set(self.marker.read_text().split()) if self.marker.exists() else set()

    def bad(self) -> list[Path]:
        """Return the folders that contain a bad settings file and a CLAUDE.md."""
        return [self.root / "bad" / name for name in (*BAD_SETTINGS, *BAD_FILES)]

    def path(self) -> str:
        """Return a PATH that lists the repository's folders as relative and absolute paths."""
        folders = (self.root, self.root / "bin", self.root / ".venv/bin")
        return os.pathsep.join(["", ".", "bin", *map(str, folders)])


def make(folder: Path) -> Hostile:
    """Create a repository with one commit, changed files, and traps for Python, PATH and git."""
    repository = Hostile(folder / "hostile", folder / "trapped")
    root = repository.root
    root.mkdir(parents=True)
    _git(root, "init", "-q", "-b", "main")
    (root / "CLAUDE.md").write_text(PROMPT)
    (root / "lazy.md").write_text(LAZY)
    _submodule(repository)
    _git(root, "add", ".")
    _git(root, "commit", "-qm", "base")
    (root / "CLAUDE.md").write_text(PROMPT * 2)
    (root / "lazy.md").write_text(LAZY * 2)
    _python(repository)
    _environment(repository)
    _programs(repository)
    _editors(repository)
    _embedded_bare(repository)
    _arm(repository, root / ".git", root)
    _forget(root, "lazy.md")
    return repository


def add_bad_settings(repository: Hostile) -> None:
    """Add bad settings files, FIFOs named `.gitignore`, and an AGENTS.md that links to a secret."""
    (repository.root.parent / "secret").write_text(PLANTED)
    for folder in repository.bad():
        folder.mkdir(parents=True)
        (folder / "CLAUDE.md").write_text(PROMPT)
        os.mkfifo(folder / ".gitignore")
        write_bad_settings(folder, folder.name, repository.root.parent / "secret")
    (repository.root / "bad/AGENTS.md").symlink_to("../../secret")


def write_bad_settings(folder: Path, name: str, secret: Path) -> None:
    """Write the bad settings file called `name` to a folder."""
    settings = folder / ".token-sidecar.toml"
    if name in BAD_SETTINGS:
        settings.write_text(BAD_SETTINGS[name])
    elif name == "fifo":
        os.mkfifo(settings)
    else:
        settings.symlink_to("/dev/zero" if name == "zero" else secret)


def give_back(repository: Hostile) -> None:
    """Restore the blob that `make` removes."""
    store = ["git", "hash-object", "-w", "--stdin", "--no-filters"]
    subprocess.run(
        store,
        cwd=repository.root,
        env={"PATH": os.defpath},
        input=LAZY,
        capture_output=True,
        text=True,
        check=True,
    )


def trap(repository: Hostile, name: str) -> str:
    """Return a shell command that triggers a trap."""
    return f"echo {name} >> '{repository.marker}'"


def _python(repository: Hostile) -> None:
    for name in MODULES:
        path = repository.root / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        spring = f"open({str(repository.marker)!r}, 'a').write({name + '.py '!r})"
        path.write_text(f"{spring}\nraise SystemExit(9)\n")


def _environment(repository: Hostile) -> None:
    """Create a virtual environment with a real Python. Its modules are traps."""
    folder = repository.root / ".venv"
    modules = folder / f"lib/python3.{sys.version_info.minor}/site-packages"
    for each in (folder / "bin", modules):
        each.mkdir(parents=True)
    python = Path(sys.executable).resolve()
    (folder / "bin/python3").symlink_to(python)
    (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    spring = f"open({str(repository.marker)!r}, 'a').write('environment ')\n"
    (modules / "sitecustomize.py").write_text(spring)


def _programs(repository: Hostile) -> None:
    for folder in (repository.root, repository.root / "bin"):
        folder.mkdir(exist_ok=True)
        for name in PROGRAMS:
            _script(folder / name, trap(repository, f"program-{name}"))


def _editors(repository: Hostile) -> None:
    """Write files with settings and commands for various editors."""
    root = repository.root
    settings = {
        "tokenSidecar.server.path": str(root / "token-sidecar"),
        "python.defaultInterpreterPath": str(root / "python3"),
        "git.path": str(root / "git"),
    }
    (root / ".token-sidecar.toml").write_text(CONFIGURATION)
    (root / ".vscode").mkdir()
    (root / ".vscode/settings.json").write_text(json.dumps(settings))
    spring = trap(repository, "neovim")
    (root / ".nvim.lua").write_text(f"os.execute([[{spring}]])\n")
    (root / ".exrc").write_text(f"silent !{spring}\n")
    (root / ".python-version").write_text("../../bin\n")


def _submodule(repository: Hostile) -> None:
    """Add a submodule with a hostile configuration. `git diff` runs git inside the submodule."""
    folder = repository.root / "module"
    folder.mkdir()
    _git(folder, "init", "-q", "-b", "main")
    (folder / "a.md").write_text("one\n")
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "module")
    (folder / "a.md").write_text("two\n")
    _arm(repository, folder / ".git", folder, "module-")


def _embedded_bare(repository: Hostile) -> None:
    """Add a folder with the structure of a bare repository. A clone can contain such a folder."""
    folder = repository.root / "docs"
    bare = repository.root / "docs.git"
    _git(
        repository.root, "clone", "-q", "--bare", "--no-hardlinks", str(repository.root), str(bare)
    )
    bare.rename(folder)
    (folder / "guide.md").write_text("a guide\n")
    config = (folder / "config").read_text().replace("bare = true", "bare = false")
    (folder / "config").write_text(f"{config}[core]\n\tworktree = .\n")
    _arm(repository, folder, None, "bare-")


def _arm(repository: Hostile, folder: Path, work_tree: Path | None, lead: str = "") -> None:
    """Configure git so that every option that can run a command triggers a trap."""
    commands = {
        "core.fsmonitor": "fsmonitor",
        "core.pager": "pager",
        "core.sshCommand": "ssh",
        "core.editor": "editor",
        "diff.external": "external",
        "diff.trap.textconv": "textconv",
        "filter.trap.clean": "clean",
        "filter.trap.smudge": "smudge",
        "filter.streaming.process": "process",
    }
    for name in commands.values():
        line = f'{trap(repository, lead + name)}; cat "$1" 2>/dev/null || cat'
        _script(folder / "traps" / name, line)
    for name in HOOKS:
        for where in ("armed-hooks", "hooks"):
            _script(folder / where / name, trap(repository, f"{lead}hook"))
    settings = {key: str(folder / "traps" / name) for key, name in commands.items()} | {
        "core.hooksPath": str(folder / "armed-hooks"),
        "filter.trap.required": "true",
        "filter.streaming.required": "true",
        "extensions.partialClone": "origin",
        "core.repositoryFormatVersion": "1",
        "remote.origin.promisor": "true",
        "protocol.ext.allow": "always",
        "remote.origin.url": f"ext::sh -c {trap(repository, lead + 'fetch').replace(' ', '% ')}",
    }
    with (folder / "config").open("a") as config:
        config.writelines(_setting(*item) for item in settings.items())
    (folder / "info").mkdir(exist_ok=True)
    (folder / "info/attributes").write_text(ATTRIBUTES)
    if work_tree:
        (work_tree / ".gitattributes").write_text(ATTRIBUTES)


def _setting(key: str, value: str) -> str:
    section, _, name = key.rpartition(".")
    section, _, own = section.partition(".")
    header = f'[{section} "{own}"]' if own else f"[{section}]"
    return f'{header}\n\t{name} = "{value}"\n'


def _forget(root: Path, name: str) -> None:
    """Remove a blob from the object store, as in a partial clone."""
    blob = _git(root, "rev-parse", f"main:{name}").strip()
    (root / ".git/objects" / blob[:2] / blob[2:]).unlink()


def _script(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _git(folder: Path, *arguments: str) -> str:
    """Run git while creating the repository, without triggering traps. Return git's output."""
    who = {
        f"GIT_{role}_{what}": "t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    return subprocess.run(
        ["git", "-c", "core.fsmonitor=false", *arguments],
        cwd=folder,
        env=os.environ | who,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
