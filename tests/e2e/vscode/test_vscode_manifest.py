"""Tests the extension's manifest against the server's settings."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import msgspec
import pytest

from sidecar.config.load import TRUSTED_KEYS
from sidecar.config.settings import Settings, to_camel_case
from tests.e2e.vscode.harness import EXTENSION

MANIFEST = json.loads((EXTENSION / "package.json").read_text())
PREFIX = "tokenSidecar."
DECLARED: dict[str, dict[str, Any]] = {
    key.removeprefix(PREFIX): value
    for group in MANIFEST["contributes"]["configuration"]
    for key, value in group["properties"].items()
}
OWN_KEYS = ("server.path", "server.logLevel", "fileDecorations", "coldNotifications")
"""Settings that only the extension reads."""
COMMANDS = [
    "count",
    "compareModels",
    "fitToBudget",
    "contextUsage",
    "costReport",
    "selectModel",
    "resetContext",
    "sessions",
    "fitContext",
    "undoFitContext",
    "probeEndpoints",
    "restart",
    "showLog",
]


def leaves(table: type[msgspec.Struct], prefix: str = "") -> dict[str, Any]:
    """Return the default of each setting, keyed by the setting's dotted camelCase name.

    A list of tables counts as one setting.
    """
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(table):
        key = prefix + to_camel_case(field.encode_name)
        made = field.default_factory is not msgspec.NODEFAULT
        default = field.default_factory() if made else field.default
        if isinstance(default, msgspec.Struct):
            found |= leaves(type(default), f"{key}.")
        else:
            encoder = msgspec.json.Encoder(decimal_format="number")
            found[key] = json.loads(encoder.encode(default))
    return found


def test_budget_step_explains_the_setting_that_it_opens() -> None:
    (walkthrough,) = MANIFEST["contributes"]["walkthroughs"]
    (step,) = [step for step in walkthrough["steps"] if step["id"] == "budget"]
    guide = (EXTENSION / step["media"]["markdown"]).read_text()
    samples = dict(re.findall(r"```(\w+)\n(.*?)```", guide, re.DOTALL))
    setting = json.loads("{" + samples["json"] + "}")
    assert list(setting) == ["tokenSidecar.budget"]
    assert f"openSettings?%22{'tokenSidecar.budget'}" in step["description"]
    (budget,) = setting["tokenSidecar.budget"]
    assert budget.keys() <= DECLARED["budget"]["items"]["properties"].keys()
    assert budget.keys() >= {"files", "maxTokens"}


def test_every_setting_of_the_server_is_declared_with_its_default() -> None:
    """The manifest must not declare any settings that the server does not know."""
    of_server = {key: each for key, each in DECLARED.items() if key not in OWN_KEYS}
    shown = {key: value["default"] for key, value in of_server.items()}
    known = leaves(Settings)
    assert set(shown) == set(known)
    # the settings editor does not support strings that can be null
    assert {key: value or None for key, value in shown.items()} == {
        key: value or None for key, value in known.items()
    }


@pytest.mark.parametrize("key", DECLARED)
def test_every_setting_has_a_scope_and_a_description(key: str) -> None:
    """Settings that start programs or open connections can be set only by the user."""
    setting = DECLARED[key]
    trusted = key.split(".")[0] in TRUSTED_KEYS | {"server"}
    assert setting["scope"] in ({"machine"} if trusted else {"resource", "window"})
    assert len(setting["markdownDescription"]) > 15
    if trusted:
        restricted = MANIFEST["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]
        assert PREFIX + key in restricted


def test_the_commands_of_the_protocol_are_in_the_palette() -> None:
    """Each command has a title and our category."""
    declared = {command["command"]: command for command in MANIFEST["contributes"]["commands"]}
    assert {PREFIX + name for name in COMMANDS} <= set(declared)
    assert {each["category"] for each in declared.values()} == {"Token Sidecar"}


def test_the_manifest_names_the_publisher_and_its_limits() -> None:
    """Its limits are what it supports in untrusted and virtual workspaces."""
    assert (MANIFEST["publisher"], MANIFEST["name"]) == ("token-sidecar", "token-sidecar")
    project = (EXTENSION.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{MANIFEST["version"]}"' in project
    assert MANIFEST["capabilities"]["untrustedWorkspaces"]["supported"] == "limited"
    assert MANIFEST["capabilities"]["virtualWorkspaces"]["supported"] == "limited"


def test_the_lock_names_no_registry() -> None:
    lock = (EXTENSION / "package-lock.json").read_text()
    assert not re.search(r'"resolved": "https?://', lock)
    tracked = subprocess.run(
        ["git", "ls-files", "."], cwd=EXTENSION, capture_output=True, text=True, check=True
    ).stdout
    assert ".npmrc" in tracked.split()
    assert "omit-lockfile-registry-resolved=true" in (EXTENSION / ".npmrc").read_text()
