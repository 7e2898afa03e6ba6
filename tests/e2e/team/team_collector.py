"""Runs the authenticator and the processors in `contrib/team/collector.yaml`.

rotel has neither, so this stands in front of it. Only the parts that `collector.yaml` uses exist.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import httpx
import yaml
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.clickhouse import SCHEMA
from tests.collector import Answer, Collector
from tests.e2e.team.rotel import Rotel

SALT = "the collector's salt"
_SET_MISSING_TIME = "set(time_unix_nano, observed_time_unix_nano) where time_unix_nano == 0"
_HASH_USER = (
    'set(attributes["user.hash"], '
    'Substring(SHA256(Concat([attributes["user.hash"], "${env:USER_SALT}"], " ")), 0, 32)) '
    'where attributes["user.hash"] != nil'
)


def user_hash(name: str) -> str:
    """Return a user's hash, as `_HASH_USER` computes it."""
    return hashlib.sha256(f"{name} {SALT}".encode()).hexdigest()[:32]


def users_line(name: str, secret: str) -> str:
    """Return a user's line in the file `users`, as `add-user.sh` writes it."""
    digest = hashlib.sha1(secret.encode()).digest()  # noqa: S324 - one of htpasswd's forms
    return f"{name}:{{SHA}}{base64.b64encode(digest).decode()}"


class TeamCollector:
    """Authenticates requests, processes them, and forwards the results to rotel."""

    def __init__(self, target: Rotel, users: str) -> None:
        self._target = target
        self._users = dict(line.split(":", 1) for line in users.splitlines())
        self.requests: list[ExportLogsServiceRequest] = []
        """The requests that were forwarded to rotel."""
        config = yaml.safe_load((SCHEMA.parent / "collector.yaml").read_text("utf-8"))
        for protocol in config["receivers"]["otlp"]["protocols"].values():
            assert protocol["auth"] == {"authenticator": "basicauth"}
        order = ["memory_limiter", "filter/calls", "resource/user", "transform/allow"]
        assert config["service"]["pipelines"]["logs"]["processors"] == order
        processors = config["processors"]
        (drop,) = processors["filter/calls"]["logs"]["log_record"]
        self._events = set(re.findall(r'attributes\["event.name"\] == "([\w.]+)"', drop))
        self._user_actions = processors["resource/user"]["attributes"]
        statements = {
            group["context"]: group["statements"]
            for group in processors["transform/allow"]["log_statements"]
        }
        self._allowed = {
            context: set(re.findall(r'"([\w.]+)"', text))
            for context, texts in statements.items()
            for text in texts
            if text.startswith("keep_keys(")
        }
        assert _SET_MISSING_TIME in statements["log"]
        assert statements["resource"][0] == _HASH_USER
        assert statements["scope"] == ['delete_matching_keys(attributes, ".*")']

    def receive(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Process and forward a request. Return False if its token is refused."""
        named = {name.lower(): value for name, value in headers.items()}
        user = self._authenticate(named.get("authorization", ""))
        if user is None:
            return False
        plain = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
        request = ExportLogsServiceRequest()
        if plain.startswith(b"{"):
            json_format.Parse(plain, request)
        else:
            request.ParseFromString(plain)
        self._process(request, user)
        self.requests.append(request)
        self._send(request)
        return True

    def serve(self) -> Collector:
        """Start an HTTP server for requests. The caller closes it."""
        server = Collector()

        def answer(_path: str, body: bytes) -> Answer:
            return (200 if self.receive(server.headers[-1], body) else 401), b"", {}

        server.answer = answer
        return server

    def send_again(self) -> None:
        for request in self.requests:
            self._send(request)

    def _authenticate(self, header: str) -> str | None:
        scheme, _, credentials = header.partition(" ")
        if scheme != "Basic":
            return None
        name, _, secret = base64.b64decode(credentials).decode().partition(":")
        known = self._users.get(name)
        return name if f"{name}:{known}" == users_line(name, secret) else None

    def _process(self, request: ExportLogsServiceRequest, user: str) -> None:
        for resource in request.resource_logs:
            attributes = resource.resource.attributes
            is_own = ("service.name", "token-sidecar") in values_of(attributes)
            for scope in resource.scope_logs:
                scope.scope.ClearField("attributes")
                kept = [record for record in scope.log_records if is_own or self._is_call(record)]
                for record in kept:
                    record.time_unix_nano = record.time_unix_nano or record.observed_time_unix_nano
                    record.ClearField("body")
                    self._keep_keys(record.attributes, "log")
                del scope.log_records[:]
                scope.log_records.extend(kept)
            for action in self._user_actions:
                values = dict(values_of(attributes))
                if action["action"] == "delete":
                    values.pop(action["key"], None)
                elif action == {
                    "key": action["key"], "action": "insert", "from_context": "auth.username",
                }:  # fmt: skip
                    values.setdefault(action["key"], user)
                else:
                    raise ValueError(action)
                del attributes[:]
                for key, value in values.items():
                    attributes.add(key=key).value.string_value = value
            for attribute in attributes:
                if attribute.key == "user.hash":
                    attribute.value.string_value = user_hash(attribute.value.string_value)
            self._keep_keys(attributes, "resource")

    def _is_call(self, record: Any) -> bool:
        return any(
            attribute.key == "event.name" and attribute.value.string_value in self._events
            for attribute in record.attributes
        )

    def _keep_keys(self, attributes: Any, context: str) -> None:
        kept = [attribute for attribute in attributes if attribute.key in self._allowed[context]]
        del attributes[:]
        attributes.extend(kept)

    def _send(self, request: ExportLogsServiceRequest) -> None:
        httpx.post(
            f"{self._target.url}/v1/logs",
            content=request.SerializeToString(),
            headers={"Content-Type": "application/x-protobuf"},
            trust_env=False,
        ).raise_for_status()


def values_of(attributes: Any) -> list[tuple[str, str]]:
    return [(attribute.key, attribute.value.string_value) for attribute in attributes]
