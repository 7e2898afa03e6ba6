"""Runs ClickHouse for the tests: chdb behind a small HTTP server, in a separate process.

`python -m tests.clickhouse FOLDER` prints the port, and runs until it is killed.
"""

from __future__ import annotations

import base64
import email
import email.policy
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

SCHEMA = Path(__file__).parents[1] / "contrib/team/schema.sql"
_INSERT = re.compile(r"INSERT INTO (\S+) \(([^)]*)\) FORMAT (\w+)\s*$", re.IGNORECASE)
_DATABASE = "otel"


def statements(sql: str) -> Iterator[str]:
    """Return the SQL statements in a script, without comments."""
    for part in sql.split(";\n"):
        lines = [line for line in part.splitlines() if not line.startswith("--")]
        if text := "\n".join(lines).strip():
            yield text


class ClickHouse:
    """A running server, and a client for it."""

    def __init__(self, folder: Path, password: str = "") -> None:
        environment = {**os.environ, "CLICKHOUSE_PASSWORD": password}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.clickhouse", str(folder)],
            stdout=subprocess.PIPE,
            cwd=SCHEMA.parents[2],
            env=environment,
            text=True,
        )
        assert self.process.stdout
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self._client = httpx.Client(
            base_url=self.url, timeout=120, auth=("default", password), trust_env=False
        )
        for statement in statements(SCHEMA.read_text("utf-8")):
            self.run(statement)

    def run(self, statement: str, **parameters: object) -> str:
        """Run a statement, and return the rows as TSV."""
        named = {f"param_{name}": str(value) for name, value in parameters.items()}
        answer = self._client.post("/", params=named, content=statement.encode())
        assert answer.status_code == 200, f"{statement[:200]}: {answer.text[:600]}"
        return answer.text.strip()

    def insert(self, statement: str, data: bytes) -> None:
        """Run `INSERT ... FORMAT ...` with the given data."""
        answer = self._client.post("/", params={"query": statement}, content=data)
        assert answer.status_code == 200, answer.text[:600]

    def rows(self, query: str, **parameters: object) -> list[list[str]]:
        text = self.run(query, **parameters)
        return [line.split("\t") for line in text.split("\n")] if text else []

    def compute_daily(self) -> None:
        """Refresh the daily totals. In production, a view does this every minute."""
        self.run("INSERT INTO llm.daily_sums SELECT * FROM llm.compute_daily")

    def age_reports(self) -> None:
        """Make machines' reports older, because the store checks them only after ten minutes."""
        self.run("CREATE TABLE llm.aged AS llm.day_totals")
        aged = "* REPLACE (reported - INTERVAL 1 HOUR AS reported)"
        self.run(f"INSERT INTO llm.aged SELECT {aged} FROM llm.day_totals FINAL")  # noqa: S608
        self.run("EXCHANGE TABLES llm.aged AND llm.day_totals")
        self.run("DROP TABLE llm.aged")

    def close(self) -> None:
        self._client.close()
        self.process.kill()
        self.process.communicate()


class Engine:
    """A chdb session that runs one statement at a time."""

    def __init__(self, folder: str) -> None:
        from chdb import session

        self._session: Any = session.Session(folder)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._types = dict[str, dict[str, str]]()

    def answer(self, named: dict[str, str], body: bytes) -> bytes:
        """Return ClickHouse's response to a request with these parameters."""
        text = named.get("query") or body.decode()
        if found := _INSERT.match(text):
            self._insert(found[1], found[2], found[3], body)
            return b""
        form = named.get("default_format", "TSV")
        if chosen := re.search(r"\sFORMAT\s+(\w+)\s*;?\s*$", text):
            form, text = chosen[1], text[: chosen.start()]
        values = {key[6:]: value for key, value in named.items() if key.startswith("param_")}
        return self._query(text, form, values)

    def _query(self, text: str, form: str, values: dict[str, str]) -> bytes:
        with self._lock:
            found: bytes = self._session.query(text, form, params=values).bytes()
        return found

    def _insert(self, table: str, columns: str, form: str, data: bytes) -> None:
        name = table if "." in table else f"{_DATABASE}.{table}"
        if name not in self._types:
            described = self._query(f"DESCRIBE TABLE {name}", "TSV", {}).decode()
            self._types[name] = dict(line.split("\t")[:2] for line in described.splitlines())
        parts = [column.strip(" `") for column in columns.split(",")]
        shape = ", ".join(f"{part} {self._types[name][part]}" for part in parts)
        shape = shape.replace("'", "\\'")
        with tempfile.NamedTemporaryFile(suffix=".data") as file:
            file.write(data)
            file.flush()
            source = f"file('{file.name}', '{form}', '{shape}')"
            self._query(f"INSERT INTO {name} ({', '.join(parts)}) SELECT * FROM {source}", "TSV", {})  # fmt: skip # noqa: S608


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine
    password = ""

    def do_POST(self) -> None:
        named = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self._read_body()
        kind = self.headers.get("Content-Type", "")
        if kind.startswith("multipart/form-data"):  # long parameters are sent as a form
            head = f"Content-Type: {kind}\r\n\r\n".encode()
            for part in email.message_from_bytes(
                head + body, policy=email.policy.HTTP
            ).iter_parts():
                name = str(part["content-disposition"].params["name"])
                named[name] = part.get_content()
            body = b""
        if self.password and not self._is_allowed():
            status, answer = 403, b"Code: 516. Authentication failed"
        else:
            try:
                status, answer = 200, self.engine.answer(named, body)
            except Exception as error:
                status, answer = 500, str(error).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST  # noqa: N815

    def _is_allowed(self) -> bool:
        expected = base64.b64encode(f"default:{self.password}".encode()).decode()
        basic = self.headers.get("Authorization", "") == f"Basic {expected}"
        return basic or self.headers.get("X-ClickHouse-Key") == self.password

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that are killed before they get a response."""


def main() -> None:
    Handler.engine = Engine(sys.argv[1])
    Handler.password = os.environ.get("CLICKHOUSE_PASSWORD", "")
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
