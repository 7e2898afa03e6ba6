"""Tests `token-sidecar team join`, the sources of the token and the machine's configuration."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.cli.team import STORED_NAME
from sidecar.config.load import load
from sidecar.config.paths import config_file, state_dir, system_config_file
from sidecar.config.settings import Team
from sidecar.config.toml import parse, set_key
from sidecar.cost import shipping
from sidecar.cost.book import CostBook
from sidecar.cost.shipping import ShippingError, read_token
from tests.cases import read_rows
from tests.collector import Collector
from tests.unit.cost_calls import call_of

TOKEN = "t0ken-of-jane"  # noqa: S105 - not a real one
AUTHORITY = Path(__file__).parents[1] / "fixtures/self-signed.pem"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that accepts only requests with the token."""
    collector = Collector()

    def answer(_path: str, _body: bytes) -> tuple[int, bytes, dict[str, str]]:
        sent = collector.headers[-1].get("authorization")
        return (200 if sent == f"Bearer {TOKEN}" else 401), b"", {}

    collector.answer = answer
    yield collector
    collector.close()


def run(*arguments: str, given: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, input=given)
    assert result.exit_code == code, result.output
    return result


def test_one_command_and_one_secret_ship_the_first_call(collector: Collector) -> None:
    config_file().write_text('# mine\nmodel = "gpt-5"\n\n[ledger]\nalso = []\n')
    book = CostBook(state_dir())
    book.ledger.record(call_of())
    book.close()

    assert "Joined" in run("team", "join", collector.url, given=f"{TOKEN}\n").stdout
    written = config_file().read_text()
    assert written.startswith('# mine\nmodel = "gpt-5"\n\n[ledger]\n')
    assert TOKEN not in written
    assert (config_file().parent / "team-token").stat().st_mode & 0o777 == 0o600
    assert run("cost", "ship").stdout == "Sent 1 call.\n"
    call, *reports = collector.calls()
    assert call["gen_ai.request.model"] == "gpt-5"
    assert {report["event.name"] for report in reports} == {
        "token_sidecar.day",
        "token_sidecar.price",
    }
    doctor = json.loads(run("doctor", "--json").stdout)
    assert doctor["collector"] == {"url": collector.url, "problem": None}


def test_a_refused_token_changes_nothing(collector: Collector) -> None:
    config_file().write_text('model = "gpt-5"\n')
    result = run("team", "join", collector.url, given="wrong\n", code=1)
    assert "refused the token" in result.stderr
    assert "wrong" not in result.output
    assert config_file().read_text() == 'model = "gpt-5"\n'
    assert not (config_file().parent / "team-token").exists()

    run("team", "join", collector.url, given=f"{TOKEN}\n")
    before = config_file().read_text()
    run("team", "join", collector.url, given="wrong\n", code=1)
    assert config_file().read_text() == before
    assert (config_file().parent / "team-token").read_text() == f"{TOKEN}\n"


def test_a_collector_that_cannot_be_reached_is_not_joined(collector: Collector) -> None:
    collector.close()
    result = run("team", "join", collector.url, given=f"{TOKEN}\n", code=1)
    assert "cannot be reached" in result.stderr
    assert config_file().read_text() == ""
    assert "must be" in run("team", "join", "not a url", given="x\n", code=2).stderr


@pytest.mark.parametrize("is_configured", [False, True])
def test_the_token_is_not_sent_without_encryption(
    monkeypatch: pytest.MonkeyPatch, is_configured: bool
) -> None:
    async def check(_: object) -> None:
        raise AssertionError("the token was sent")

    monkeypatch.setattr(shipping, "check_collector", check)
    url = "http://collector.test"
    before = f'[ledger]\notel-endpoint = "{url}"\n' if is_configured else ""
    config_file().write_text(before)
    arguments = () if is_configured else (url,)
    problem = run("team", "join", *arguments, given=f"{TOKEN}\n", code=2).stderr
    assert f"could be intercepted on the way to {url}" in problem
    assert "https://" in problem
    assert config_file().read_text() == before
    assert not config_file().with_name(STORED_NAME).exists()


def test_a_missing_authority_is_reported_if_nothing_is_queued() -> None:
    config_file().write_text(
        '[ledger]\notel-endpoint = "https://127.0.0.1:9"\n[team]\nca-file = "/no/such/file"\n'
    )
    result = run("cost", "ship", code=1)
    assert "the file /no/such/file ([team] ca-file) cannot be used" in " ".join(
        result.stderr.split()
    )
    assert result.stdout == ""


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector whose certificate is signed by a private authority."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    collector = Collector(AUTHORITY)
    yield collector
    collector.close()


def test_a_private_authority_must_be_named(private: Collector) -> None:
    config_file().write_text("")
    problem = run("team", "join", private.url, given=f"{TOKEN}\n", code=1).stderr
    assert " ".join(problem.split()).endswith(
        "does not trust (self-signed certificate); set [team] ca-file (`token-sidecar team join "
        "URL --ca-file FILE`) or SSL_CERT_FILE to its authority's certificate"
    )
    assert (private.bodies, config_file().read_text()) == ([], "")


def test_a_private_authority_is_trusted_by_option_and_setting(
    private: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = CostBook(state_dir())
    book.ledger.record(call_of())
    book.close()
    monkeypatch.chdir(AUTHORITY.parent)
    run("team", "join", private.url, "--ca-file", AUTHORITY.name, given=f"{TOKEN}\n")
    monkeypatch.chdir(tmp_path)
    assert load(None).settings.team.ca_file == str(AUTHORITY)
    assert run("cost", "ship").stdout == "Sent 1 call.\n"
    assert json.loads(run("doctor", "--json").stdout)["collector"]["problem"] is None


def test_a_private_authority_is_trusted_by_the_environment(
    private: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(AUTHORITY))
    run("team", "join", private.url, given=f"{TOKEN}\n")
    assert load(None).settings.team.ca_file is None


def test_a_machine_that_knows_the_collector_needs_only_the_token(private: Collector) -> None:
    assert "give the URL" in run("team", "join", given=f"{TOKEN}\n", code=2).stderr
    system_config_file().parent.mkdir(parents=True)
    system_config_file().write_text(
        f'[ledger]\notel-endpoint = "{private.url}"\n[team]\nca-file = "{AUTHORITY}"\n'
    )
    run("team", "join", given=f"{TOKEN}\n")
    assert parse(config_file().read_text()).keys() == {"team"}
    assert json.loads(run("doctor", "--json").stdout)["collector"]["problem"] is None


@pytest.mark.parametrize(
    ("file", "reason"),
    [("/no/such/file", "No such file or directory"), (__file__, "it contains no certificate")],
)
def test_an_authority_that_cannot_be_read_is_explained(
    private: Collector, file: str, reason: str
) -> None:
    joined = run("team", "join", private.url, "--ca-file", file, given=f"{TOKEN}\n", code=1)
    text = " ".join(joined.stderr.split())
    assert f"the file {file} ([team] ca-file) cannot be used: {reason}" in text


@pytest.mark.parametrize("source", ["env", "file", "command"])
def test_the_token_may_come_from_a_variable_a_file_or_a_command(
    collector: Collector, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "a token"
    stored.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    script = f"print(open({str(stored)!r}).read())"
    value = {
        "env": "MY_TOKEN",
        "file": str(stored),
        "command": f'{sys.executable} -c "{script}"',
    }[source]
    run("team", "join", collector.url, f"--token-{source}", value)
    assert tomllib.loads(config_file().read_text())["team"] == {f"token-{source}": value}
    run("team", "join", collector.url, given=f"{TOKEN}\n")
    assert [*tomllib.loads(config_file().read_text())["team"]] == ["token-file"]


def test_a_stored_token_is_deleted_when_another_place_is_named(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    monkeypatch.setenv("WRONG", "wrong")
    stored = config_file().with_name(STORED_NAME)
    run("team", "join", collector.url, given=f"{TOKEN}\n")
    run("team", "join", collector.url, "--token-file", str(stored))
    run("team", "join", collector.url, "--token-command", f"cat {stored}")
    run("team", "join", collector.url, "--token-env", "WRONG", code=1)
    assert stored.exists()
    run("team", "join", collector.url, "--token-env", "MY_TOKEN")
    assert not stored.exists()


@pytest.mark.parametrize(("key", "value", "reason"), read_rows("team", "unreadable_tokens"))
def test_a_token_that_cannot_be_read_is_explained(key: str, value: str, reason: str) -> None:
    with pytest.raises(ShippingError, match=reason):
        read_token(msgspec.convert({key: value}, Team))


@pytest.mark.parametrize(
    ("settings", "command", "code", "text"), read_rows("team", "unusable_settings")
)
def test_settings_that_cannot_be_used_are_explained(
    settings: str, command: list[str], code: int, text: str
) -> None:
    book = CostBook(state_dir())
    book.ledger.record(call_of(workspace="file:///site"))
    book.close()
    default = "" if "[ledger]" in settings else '[ledger]\notel-endpoint = "https://127.0.0.1:9"\n'
    config_file().write_text(default + settings)
    assert text in " ".join(run(*command, code=code).output.split())


def test_the_output_of_a_failing_command_is_not_shown(collector: Collector) -> None:
    script = f"{sys.executable} -c \"import sys; print('SECRET'); sys.exit('SECRET')\""
    result = run("team", "join", collector.url, "--token-command", script, code=1)
    assert "token-command failed" in result.stderr
    assert "SECRET" not in result.output


def test_backslashes_in_a_token_command_stay_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    command = r'C:\tools\pass.exe show "team token"'
    commands = []

    def start(arguments: object, **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(arguments)
        return subprocess.CompletedProcess([], 0, TOKEN)

    monkeypatch.setattr(shipping, "IS_WINDOWS", True)
    monkeypatch.setattr(subprocess, "run", start)
    assert read_token(Team(token_command=command)) == TOKEN
    assert commands == [command]


def test_an_administrator_can_deploy_the_settings(collector: Collector) -> None:
    """The machine's file has the lowest precedence, and may set what a project may not."""
    system_config_file().parent.mkdir(parents=True)
    stored = system_config_file().with_name("token")
    stored.write_text(TOKEN)
    system_config_file().write_text(
        f'[ledger]\notel-endpoint = "{collector.url}"\n[team]\ntoken-file = "{stored}"\n'
        "[cost]\nsoft-cap-usd = 5\nhard-cap-usd = 9\n"
    )
    config_file().write_text("[cost]\nsoft-cap-usd = 7\n")
    settings = load(None).settings
    assert settings.cost.soft_cap_usd == 7
    assert settings.cost.hard_cap_usd == 9
    origins = {
        row["key"]: row["from"]
        for row in json.loads(run("config", "show", "--json").stdout)["values"]
    }
    assert origins["ledger.otel-endpoint"] == f"{system_config_file()}:2"
    assert origins["cost.soft-cap-usd"] == f"{config_file()}:2"
    report = json.loads(run("doctor", "--json").stdout)
    assert report["collector"]["problem"] is None
    assert report["configuration"]["systemFile"] == str(system_config_file())

    system_config_file().write_text("[team\n")
    assert [problem.file for problem in load(None).problems] == [system_config_file()]


@pytest.mark.parametrize(("before", "after"), read_rows("team", "set_keys"))
def test_a_key_is_set_without_other_changes(before: str, after: str) -> None:
    assert set_key(before, "t", "k", "v") == after
    assert parse(after)["t"]["k"] == "v"
    assert "k" not in parse(set_key(after, "t", "k", None)).get("t", {})


def test_any_value_can_be_set() -> None:
    value = 'a "b" \\ \n \x7f é 😀'
    assert parse(set_key("", "t", "k", value)) == {"t": {"k": value}}


@pytest.mark.parametrize(
    ("text", "value"),
    [('t = { j = "x" }\n', "v"), ('t.j = "x"\n', "v"), ('t = { k = "x", j = "y" }\n', None)],
)
def test_a_table_in_another_form_is_not_damaged(text: str, value: str | None) -> None:
    with pytest.raises(ValueError, match=r"below a line \[t\]"):
        set_key(text, "t", "k", value)


def test_a_configuration_that_cannot_be_changed_keeps_the_stored_token(
    collector: Collector,
) -> None:
    run("team", "join", collector.url, given=f"{TOKEN}\n")
    config_file().write_text('team.user = "jane"\n')
    problem = run("team", "join", collector.url, given="another\n", code=2).stderr
    assert "below a line [team]" in problem
    assert config_file().read_text() == 'team.user = "jane"\n'
    assert config_file().with_name(STORED_NAME).read_text() == f"{TOKEN}\n"


def test_the_users_token_replaces_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its form is: a file has no lower precedence than a variable."""
    monkeypatch.setenv("MACHINES", "machine's")
    system_config_file().parent.mkdir(parents=True, exist_ok=True)
    system_config_file().write_text('[team]\ntoken-env = "MACHINES"\nuser = "u"\n')
    stored = config_file().with_name("mine")
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_text("mine")
    assert read_token(load(None).settings.team) == "machine's"
    config_file().write_text(f'[team]\ntoken-file = "{stored}"\n')
    assert read_token(load(None).settings.team) == "mine"
    assert load(None).settings.team.user == "u"


@pytest.mark.parametrize("key", ["token-command", "token-file", "token-env", "ca-file"])
def test_a_project_cannot_say_where_the_token_is_and_whom_to_trust(
    tmp_path: Path, key: str
) -> None:
    (tmp_path / ".token-sidecar.toml").write_text(f'[team]\n{key} = "X"\n')
    loaded = load(tmp_path)
    assert loaded.settings.team == Team()
    assert "only in your own settings" in loaded.problems[0].message


def test_a_repository_cannot_replace_a_relative_token_command_or_file(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command runs in the home folder, and a relative path is stored as an absolute one."""
    repository = tmp_path / "repository"
    repository.mkdir()
    for folder, answer in ((repository, "theirs"), (Path.home(), "mine")):
        script = folder / "get-token"
        script.write_text(f"#!/bin/sh\necho {answer}\n")
        script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    run("team", "join", collector.url, "--token-file", "token")
    monkeypatch.chdir(repository)
    (repository / "token").write_text("theirs")
    assert read_token(load(None).settings.team) == TOKEN
    assert read_token(Team(token_command="./get-token")) == "mine"  # noqa: S106 - a command
