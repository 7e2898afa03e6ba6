"""`check` and `count` of paths alone do without click, and nobody can tell."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sidecar.cli.plain import is_plain
from sidecar.config import paths

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there click expands the paths")

CLICKS = "import sys; from sidecar.cli.group import main; sys.argv[0] = 'token-sidecar'; main()"
PLAIN = "import sys; from sidecar.__main__ import start; sys.argv[0] = 'token-sidecar'; start()"


def test_plain_are_two_verbs_with_paths() -> None:
    plain = [["count", "a"], ["check", "a", "b"], ["count", "-"], ["check", "a", "-"]]
    others = [[], ["count"], ["check"], ["count", "--json", "a"], ["check", "a", "--no-cache"]]
    others += [["count", "--", "a"], ["fit", "a"], ["--version"], ["-h"], ["check", "-h"]]
    assert [is_plain(one) for one in plain] == [True] * len(plain)
    assert [is_plain(one) for one in others] == [False] * len(others)


@pytest.mark.parametrize(
    "arguments",
    [
        ("count", "a.md"),
        ("count", "."),
        ("count", "-"),
        ("count", "missing.md", "a.md"),
        ("check", "."),
        ("check", "a.md", "-"),
        ("check", "missing.md"),
    ],
    ids=" ".join,
)
def test_it_says_and_ends_as_with_click(arguments: tuple[str, ...], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.md").write_text("hello world, and more\n")
    (tree / "b.bin").write_bytes(b"\0\1")
    (tree / "\u202eb\n.md").write_text("a name that is not printed as it is\n")
    (tree / ".token-sidecar.toml").write_text(
        '[[budget]]\nfiles = "*.md"\nmax-tokens = 3\n[tokenise]\nwrong = true\n'
    )

    def outcome(code: str) -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-P", "-c", code, *arguments]
        ran = subprocess.run(command, cwd=tree, input=b"piped", capture_output=True)
        return ran.returncode, ran.stdout, ran.stderr

    assert outcome(PLAIN) == outcome(CLICKS)


@pytest.mark.parametrize("code", [PLAIN, CLICKS], ids=["plain", "click"])
def test_nobody_reads_on(code: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("hello\n")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, "count", "a.md"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # long before the first line is printed, or just after
        said = process.stderr.read()
    assert said == b""
    assert process.returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs is asked")
@pytest.mark.parametrize(
    "home", ["/home/some.one", "", "relative", "/", "/with a blank", "~", "/home/../x", "//two"]
)
@pytest.mark.parametrize("named", [None, "", "/else/where", "relative", "~/x", "/a b", "/end/"])
def test_folders_are_those_of_platformdirs(
    home: str, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from platformdirs import user_cache_path, user_config_path, user_state_path

    monkeypatch.delenv("TOKEN_SIDECAR_CONFIG", raising=False)
    monkeypatch.delenv("TOKEN_SIDECAR_STATE", raising=False)
    monkeypatch.setenv("HOME", home)
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        if named is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, named)
    app = paths.APP
    assert paths.config_file() == user_config_path(app, appauthor=False) / "config.toml"
    assert paths.state_dir() == user_state_path(app, appauthor=False)
    assert paths.cache_dir() == user_cache_path(app, appauthor=False)
