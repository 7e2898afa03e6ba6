"""Tests that settings are polled every two seconds if the system cannot watch any more files."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.client import SERVER, StdioClient

# in a user namespace, the limit can be changed without affecting other processes
EXHAUSTED = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'


def test_settings_are_polled_if_files_cannot_be_watched(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    settings = project / ".token-sidecar.toml"
    settings.write_text('model = "gpt-4"\n')
    unshare = shutil.which("unshare")
    assert unshare is not None
    command = [unshare, "-Ur", "sh", "-c", EXHAUSTED, "sh", *SERVER]
    client = StdioClient(command, subprocess.PIPE)
    try:
        client.initialize(project)
        for model in ("gpt-4", "gpt-4o", "gpt-5"):
            settings.write_text(f'model = "{model}"\n')
            wait_for(client, model)
        client.close()
        errors = client.errors()
    finally:
        client.process.kill()
        client.process.wait()
        client.end_streams()
    assert errors.count(b"cannot watch files for changes") == 1
    assert b"increase fs.inotify.max_user_instances" in errors


def wait_for(client: StdioClient, model: str) -> None:
    counted = ""
    for _ in range(300):
        counted = client.request("tokens/count", {"text": "a"})["model"]
        if counted == model:
            return
        time.sleep(0.1)
    raise AssertionError(f"expected {model}, but the model is {counted}")
