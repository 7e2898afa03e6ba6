"""Installs Debian programs for the tests if this process has the necessary permissions."""

from __future__ import annotations

import os
import shutil
import subprocess


def ensure(program: str, *packages: str) -> str:
    """Return a program's path, installing it if necessary.

    Raises:
        RuntimeError: The program cannot be installed. The message names the missing packages.
    """
    if found := shutil.which(program):
        return found
    names = " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise RuntimeError(f"these tests need {program}: apt-get install {names}")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    subprocess.run(install, check=True, env=env, stdout=subprocess.DEVNULL)
    if found := shutil.which(program):
        return found
    raise RuntimeError(f"apt-get installed {names}, but {program} is not on PATH")
