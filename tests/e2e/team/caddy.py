"""Runs Caddy, a real proxy with TLS, with the configuration in `contrib/team`."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.clickhouse import SCHEMA
from tests.e2e.team.rotel import free_port

CADDYFILE = SCHEMA.with_name("Caddyfile")
_PROGRAM = Path(sys.executable).with_name("caddy")


def caddy(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Caddy that ends."""
    return subprocess.run(
        [str(_PROGRAM), *arguments], env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


class Caddy:
    """The proxy's process, with certificates of a private authority for `localhost`."""

    def __init__(self, folder: Path, collector: str, store: str, grafana: str) -> None:
        ports = {name: str(free_port()) for name in ("HTTP_PORT", "HTTPS_PORT", "STORE_PORT")}
        upstreams = {"COLLECTOR": collector, "STORE": store, "GRAFANA": grafana}
        self.url = f"https://localhost:{ports['HTTPS_PORT']}"
        self.store_url = f"https://localhost:{ports['STORE_PORT']}"
        self.authority = folder / "caddy/pki/authorities/local/root.crt"
        self._environment = {
            **os.environ,
            **ports,
            **{name: urlsplit(url).netloc for name, url in upstreams.items()},
            "DOMAIN": "localhost",
            "TLS": "internal",
            "XDG_DATA_HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
        }
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [str(_PROGRAM), "run", "--config", str(CADDYFILE), "--adapter", "caddyfile"],
            env=self._environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr
        for line in self._process.stderr:
            if "certificate obtained successfully" in line:
                break
        else:
            raise RuntimeError("Caddy did not start")
        # It logs a certificate before it uses it.
        deadline = time.monotonic() + 30
        while not self._has_certificates():
            assert time.monotonic() < deadline, "Caddy does not use its certificates"
            time.sleep(0.02)

    def _has_certificates(self) -> bool:
        try:
            trusted = ssl.create_default_context(cafile=self.authority)
            for url in (self.url, self.store_url):
                port = urlsplit(url).port
                with socket.create_connection(("localhost", port), timeout=5) as connection:
                    trusted.wrap_socket(connection, server_hostname="localhost").close()
        except OSError:  # also of TLS
            return False
        return True

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
