"""Runs rotel, a real OpenTelemetry collector that writes to ClickHouse."""

from __future__ import annotations

import importlib.resources
import socket
import subprocess
import time

import httpx


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Rotel:
    """The collector's process. If it is restarted, it uses the same port."""

    def __init__(self, store: str, password: str = "") -> None:
        self._store, self._password, self._port = store, password, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        program = importlib.resources.files("rotel") / "rotel-agent"
        arguments = {
            "exporter": "clickhouse",
            "clickhouse-exporter-endpoint": self._store,
            "clickhouse-exporter-compression": "none",
            "clickhouse-exporter-async-insert": "false",
            "clickhouse-exporter-user": "default",
            "clickhouse-exporter-password": self._password,
            "otlp-http-endpoint": f"127.0.0.1:{self._port}",
            "otlp-grpc-endpoint": f"127.0.0.1:{free_port()}",
        }
        flags = [
            part for name, value in arguments.items() if value for part in (f"--{name}", value)
        ]
        self._process = subprocess.Popen(
            [str(program), "start", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.starts += 1

    def kill(self) -> None:
        """Kill the process with SIGKILL. Records that have not been written are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def await_ready(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                httpx.get(self.url, trust_env=False, timeout=1)
            except httpx.HTTPError:
                time.sleep(0.02)
            else:
                return
        raise TimeoutError("the collector does not answer")
