"""An OTLP/HTTP receiver that uses the protocol's own types."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

Answer = tuple[int, bytes, dict[str, str]]
"""The status, body and additional headers of a response."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect before they get a response."""


class Collector:
    """A collector that responds to each request with `answer(path, body)`. By default, it accepts
    everything.

    It uses TLS if it gets a file with a certificate and its key.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        """Each request's path and uncompressed body."""
        self.accepted: list[bytes] = []
        """The bodies of requests whose records were all accepted."""
        self.headers: list[dict[str, str]] = []
        self.keeps_bodies = True
        self.answer: Callable[[str, bytes], Answer] = lambda _path, _body: (200, b"", {})
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if collector.keeps_bodies:
                    collector.bodies.append((self.path, body))
                    collector.headers.append(dict(self.headers))
                status, answer, headers = collector.answer(self.path, body)
                if status == 200 and not answer and collector.keeps_bodies:
                    collector.accepted.append(body)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def requests(self, kind: type[Any], path: str) -> list[Any]:
        """Return the requests to a path, decoded as messages of type `kind`."""
        return [kind.FromString(body) for at, body in self.bodies if at == path]

    def calls(self) -> list[dict[str, Any]]:
        """Return each accepted log record's attributes, including its resource attributes."""
        return [call for body in self.accepted for call in calls_of(body)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def calls_of(body: bytes) -> list[dict[str, Any]]:
    """Return the attributes of each log record in a request, including the resource attributes."""
    request = ExportLogsServiceRequest()
    if body.startswith(b"{"):
        json_format.Parse(body, request)
    else:
        request.ParseFromString(body)
    return [
        attributes(part.resource) | attributes(record) | {"at": record.time_unix_nano}
        for part in request.resource_logs
        for scope in part.scope_logs
        for record in scope.log_records
    ]


def attributes(holder: Any) -> dict[str, Any]:
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in holder.attributes
    }


def rejection(calls: int, reason: str = "") -> Answer:
    """Return the response of a collector that rejects some records."""
    response = ExportLogsServiceResponse()
    response.partial_success.rejected_log_records = calls
    response.partial_success.error_message = reason
    body = json_format.MessageToJson(response).encode()
    return 200, body, {"Content-Type": "application/json"}
