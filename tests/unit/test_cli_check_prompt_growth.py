"""Tests what `check --diff BASE` says about agents' calls, in a real git repository."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from benchmarks.agents.claude import ClaudeHome
from sidecar.agents.session_index import LOCK_NAME
from sidecar.budgets.check_report import (
    START,
    FileReport,
    Growth,
    PromptGrowth,
    Report,
    ReportedFinding,
    as_github,
    as_json,
    as_markdown,
    as_text,
)
from sidecar.cli.check import check
from sidecar.config.paths import state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.ledger_events import Buckets
from sidecar.cost.prompt_file_costs import AgentUsage, ChangePrice, PrefixCalls, UsageProfile
from sidecar.project import footprint
from tests.unit.cost_calls import call_of

BASE = "Use short sentences.\n"
MORE = BASE + "Run the tests before you commit.\n"
ADDED = 7


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    git("init", "-q", "-b", "main")
    Path("CLAUDE.md").write_text(BASE)
    commit()
    return root


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def commit() -> None:
    git("add", "-A")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "x")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(check, ["--diff", "main", *arguments, "."], catch_exceptions=False)


def growth() -> dict[str, tuple[int, int]]:
    """Return the tokens before and after, by agent."""
    found = json.loads(run("--json").stdout)["promptGrowth"]
    return {one["agent"]: (one["before"], one["tokens"]) for one in found}


def write_profile(path: str, **agents: int) -> None:
    """Write a profile with some cached calls of each agent."""
    usages = tuple(
        AgentUsage(
            agent=name.replace("_", "-"),
            model="gpt-5",
            provider="openai",
            sessions=1,
            main=PrefixCalls(reads=calls),
        )
        for name, calls in agents.items()
    )
    Path(path).write_bytes(msgspec.json.encode(UsageProfile(days=30, agents=usages)))


def test_text_ends_with_the_price_by_the_profile_of_the_project(repository: Path) -> None:
    write_profile("usage-profile.json", claude_code=4_000_000)
    commit()
    Path("CLAUDE.md").write_text(MORE)
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == (  # 4 million reads * 7 tokens * $0.125 / 10^6
        f"Every Claude Code call: +{ADDED} tokens (4 → {4 + ADDED}); at 4,000,000 calls in the "
        "last 30 days about +$3.50 a month, 100 % of it cache reads."
    )


def test_another_profile_can_be_named(repository: Path) -> None:
    write_profile("usage-profile.json", claude_code=1)
    write_profile("team.json", claude_code=2, codex=1)
    Path("CLAUDE.md").write_text(MORE)
    found = json.loads(run("--json", "--profile", "team.json").stdout)["promptGrowth"]
    assert [(one["agent"], one["calls"]) for one in found] == [("claude-code", 2)]


def test_without_a_profile_the_own_calls_count(repository: Path) -> None:
    book, now = CostBook(state_dir()), datetime.now(UTC)
    cached = Buckets(cache_read=5_000, input=10)
    for age in (40, 2, 1, 0):
        call = call_of(
            "claude-code",
            at=now - timedelta(days=age),
            workspace=repository.as_uri(),
            session=f"{age}",
            buckets=cached,
        )
        book.ledger.record(call)
    book.close()
    Path("CLAUDE.md").write_text(MORE)
    (found,) = json.loads(run("--json").stdout)["promptGrowth"]
    assert (found["calls"], found["days"], found["model"]) == (3, 30, "gpt-5")
    assert found["uncachedUsd"] == pytest.approx(3 * ADDED * 1.25e-6)


def test_markdown_can_end_with_what_the_branch_has_cost(repository: Path) -> None:
    book = CostBook(state_dir())
    for session, branch, agent in (
        ("a", "main", "claude-code"),
        ("b", "main", "claude-code"),
        ("b", "topic", "claude-code"),
        ("c", "main", "aider"),
    ):
        book.ledger.record(
            call_of(
                agent,
                tokens=2_000_000,
                workspace=repository.as_uri(),
                session=session,
                branch=branch,
            )
        )
    book.close()
    options = ("--format", "markdown", "--branch-cost")
    assert run(*options).stdout.endswith("\n\nThis branch has cost $7.50 (3 sessions).\n")
    git("switch", "-q", "-c", "topic")
    assert run(*options).stdout.endswith("\n\nThis branch has cost $2.50 (1 session).\n")
    git("switch", "-q", "--detach")
    detached = run(*options)
    assert (detached.exit_code, "has cost" in detached.stdout) == (0, False)
    assert "no git branch is checked out" in detached.stderr
    git("switch", "-q", "-c", "unused")
    assert "no calls are recorded on the git branch that is checked out" in run(*options).stderr
    wrong = run("--branch-cost")
    assert wrong.exit_code == 2
    assert "--branch-cost requires --format markdown" in wrong.stderr


def test_the_cost_of_a_branch_is_a_lower_bound_while_calls_are_unread(
    repository: Path, tmp_path: Path
) -> None:
    with closing(CostBook(state_dir())) as book:
        place = {"workspace": repository.as_uri(), "session": "a", "branch": "main"}
        book.ledger.record(call_of("claude-code", tokens=2_000_000, **place))
    ClaudeHome(tmp_path / "home" / ".claude").session(repository).reply()
    with closing(sqlite3.connect(state_dir() / LOCK_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")  # another process reads the session's file
        result = run("--format", "markdown", "--branch-cost")
    assert result.stdout.endswith("\n\nThis branch has cost ≥$2.50 (1 session).\n")
    assert "may be missing" in result.stderr


def test_without_known_calls_each_agent_has_a_sentence_without_a_price(repository: Path) -> None:
    Path("AGENTS.md").write_text(MORE)
    Path("CLAUDE.md").write_text(MORE)
    found = json.loads(run("--json").stdout)["promptGrowth"]
    by_agent = {one["agent"]: one for one in found}
    assert {"claude-code", "codex"} <= by_agent.keys()
    assert by_agent["codex"]["costUsd"] is None
    assert "token-sidecar cost profile" in by_agent["codex"]["message"]
    assert "gemini-cli" not in by_agent


def test_a_broken_profile_is_an_error(repository: Path) -> None:
    Path("usage-profile.json").write_text("{}")
    Path("CLAUDE.md").write_text(MORE)
    result = run()
    assert result.exit_code == 2
    assert "write it again with `token-sidecar cost profile`" in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_a_profile_outside_of_the_project_is_not_read(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    Path("usage-profile.json").symlink_to(tmp_path / "secret.json")
    Path("CLAUDE.md").write_text(MORE)
    result = run()
    assert result.exit_code == 0
    assert "No calls are known" in result.stdout
    assert "secret" not in result.stderr


def test_unchanged_prompts_have_no_sentence(repository: Path) -> None:
    Path("notes.md").write_text(MORE)
    Path("CLAUDE.md").write_text(f"<!-- a comment that Claude Code removes -->\n{BASE}")
    assert "claude-code" not in growth()


def test_files_that_are_sent_later_do_not_count(repository: Path) -> None:
    (repository / "pkg").mkdir()
    Path("pkg/CLAUDE.md").write_text(MORE)
    assert "claude-code" not in growth()


def test_an_import_and_its_file_count_together(repository: Path) -> None:
    write_profile("usage-profile.json", claude_code=1)
    Path("docs.md").write_text(MORE)
    commit()
    Path("CLAUDE.md").write_text(f"{BASE}@docs.md\n")
    before, after = growth()["claude-code"]
    assert before == 4
    assert after > 4 + 4 + ADDED


def test_a_removed_rule_and_a_renamed_file(repository: Path) -> None:
    (repository / ".claude/rules").mkdir(parents=True)
    Path(".claude/rules/a.md").write_text(MORE)
    Path(".claude/rules/b.md").write_text(MORE)
    commit()
    Path(".claude/rules/a.md").unlink()
    Path(".claude/rules/b.md").rename(".claude/rules/c.md")
    assert growth()["claude-code"] == (4 + 2 * (4 + ADDED), 4 + 4 + ADDED)


def write_skill(folder: str, description: str, body: str = "") -> None:
    path = Path(folder, "skills/tests/SKILL.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: tests\ndescription: {description}\n---\n{body}")


def test_of_a_skill_only_the_description_counts(repository: Path) -> None:
    write_skill(".claude", "Run the tests.")
    commit()
    write_skill(".claude", "Run the tests.", MORE * 50)
    assert growth() == {}
    write_skill(".claude", "Run the tests. Use it before each commit and after a merge.")
    before, after = growth()["claude-code"]
    assert 5 < after - before < 20


def test_what_sub_agents_do_not_send_costs_nothing_in_their_calls(repository: Path) -> None:
    usage = AgentUsage(
        agent="cline",
        model="gpt-5",
        provider="openai",
        main=PrefixCalls(reads=10),
        subagents=PrefixCalls(reads=10),
    )
    profile = msgspec.json.encode(UsageProfile(days=30, agents=(usage,)))
    Path("usage-profile.json").write_bytes(profile)
    commit()
    write_skill(".cline", "Run the tests.")
    (skill,) = json.loads(run("--json").stdout)["promptGrowth"]
    assert (skill["added"] > 0, skill["subagentsUsd"]) == (True, 0)
    Path("AGENTS.md").write_text(MORE)
    (both,) = json.loads(run("--json").stdout)["promptGrowth"]
    rule = both["added"] - skill["added"]
    assert both["subagentsUsd"] == pytest.approx(10 * rule * 0.125e-6)


@pytest.mark.skipif(os.name == "nt", reason="git for Windows writes links as files")
def test_a_link_follows_its_target(repository: Path) -> None:
    Path("CLAUDE.md").unlink()
    Path("AGENTS.md").write_text(BASE)
    Path("CLAUDE.md").symlink_to("AGENTS.md")
    commit()
    Path("AGENTS.md").write_text(MORE)
    found = growth()
    assert found["claude-code"] == found["codex"] == (4, 4 + ADDED)


@pytest.mark.skipif(os.name == "nt", reason="git for Windows writes links as files")
def test_a_file_that_becomes_a_link_to_its_twin_grows_by_nothing(repository: Path) -> None:
    Path("AGENTS.md").write_text(BASE)
    commit()
    Path("CLAUDE.md").unlink()
    Path("CLAUDE.md").symlink_to("AGENTS.md")
    assert growth() == {}


def test_the_chain_above_the_project_counts(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repository / "pkg"
    inner.mkdir()
    (inner / ".token-sidecar.toml").write_text("")
    commit()
    Path("CLAUDE.md").write_text(MORE)
    monkeypatch.chdir(inner)
    assert growth()["claude-code"] == (4, 4 + ADDED)


def test_the_users_own_files_do_not_grow(repository: Path) -> None:
    own = Path(os.environ["HOME"]) / ".claude"
    own.mkdir(parents=True, exist_ok=True)
    (own / "CLAUDE.md").write_text(BASE)
    Path("CLAUDE.md").write_text(MORE)
    assert growth()["claude-code"] == (8, 8 + ADDED)


def test_without_known_calls_the_agents_of_the_findings_have_a_sentence(repository: Path) -> None:
    Path("AGENTS.md").write_text(MORE)
    Path("CLAUDE.md").write_text(MORE)
    Path(".token-sidecar.toml").write_text('[footprint]\nagents = ["codex", "gemini-cli"]\n')
    assert growth().keys() == {"codex"}


def test_without_known_calls_agents_that_are_not_used_here_have_no_sentence(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    Path("CLAUDE.md").write_text(MORE)
    monkeypatch.setenv("CI", "")
    assert growth().keys() == {"claude-code"}
    monkeypatch.setenv("CI", "true")
    assert growth().keys() > {"claude-code"}


def test_agents_that_are_disabled_have_no_sentence(repository: Path) -> None:
    from sidecar.config.paths import config_file

    config_file().write_text("[agents]\nenabled = false\n")
    Path("CLAUDE.md").write_text(MORE)
    assert growth() == {}


def fields_of(value: Any) -> set[str]:
    return set(value) if isinstance(value, dict) else set()


def test_without_diff_nothing_is_said(repository: Path) -> None:
    result = CliRunner().invoke(check, ["--json", "."])
    assert not {"growth", "promptGrowth"} & fields_of(json.loads(result.stdout))


def test_each_model_is_priced_by_its_own_tokenizer(repository: Path) -> None:
    Path("CLAUDE.md").write_text(BASE + "変更の前にすべてのテストを実行する。\n" * 20)
    usages = [
        AgentUsage(
            agent="claude-code", model=model, provider="openai", main=PrefixCalls(uncached=calls)
        )
        for model, calls in (("gpt-4", 1_000), ("gpt-5", 2_000))
    ]

    def found(*usages: AgentUsage) -> tuple[str, int, float]:
        profile = msgspec.json.encode(UsageProfile(days=30, agents=usages))
        Path("team.json").write_bytes(profile)
        (one,) = json.loads(run("--json", "--profile", "team.json").stdout)["promptGrowth"]
        return one["model"], one["added"], one["costUsd"]

    (_, old, old_usd), (_, new, new_usd) = found(usages[0]), found(usages[1])
    assert old != new
    model, tokens, usd = found(*usages)
    assert (model, tokens) == ("gpt-5", new)
    assert usd == pytest.approx(old_usd + new_usd)
    assert found(*usages) == found(*usages[::-1])


@pytest.mark.parametrize("agents", [{}, {"claude_code": 0}, {"my_own": 5}])
def test_a_profile_without_calls_of_known_agents_is_said_to_have_none(
    repository: Path, agents: dict[str, int]
) -> None:
    write_profile("team.json", **agents)
    commit()
    Path("CLAUDE.md").write_text(MORE)
    text = run("--profile", "team.json").stdout
    assert f" +{ADDED} tokens (4 → {4 + ADDED}). The usage profile has no such calls;" in text


def test_another_model_than_that_of_the_report_is_named(repository: Path) -> None:
    write_profile("usage-profile.json", claude_code=5)
    commit()
    Path("CLAUDE.md").write_text(MORE)
    assert f"call: +{ADDED} tokens (4" in run().stdout
    assert f"call: +{ADDED} tokens for gpt-5 (4" in run("--model", "gpt-4").stdout


def test_agents_without_calls_are_counted_for_the_named_model(repository: Path) -> None:
    Path("CLAUDE.md").write_text(MORE)
    found = json.loads(run("--json", "--model", "gpt-4").stdout)["promptGrowth"]
    assert {one["model"] for one in found} == {"gpt-4"}


def test_another_encoding_is_no_growth(repository: Path) -> None:
    encoding = "utf-16"
    Path("CLAUDE.md").write_text(BASE, encoding=encoding)
    assert growth() == {}
    Path("CLAUDE.md").write_text(MORE, encoding=encoding)
    assert growth()["claude-code"] == (4, 4 + ADDED)
    git("checkout", "-q", "-b", "wide")
    commit()
    git("branch", "-f", "main")
    Path("CLAUDE.md").write_text(BASE)
    assert growth()["claude-code"] == (4 + ADDED, 4)


def grown(*arguments: str) -> tuple[int, str]:
    """Return the exit code, and the growth of CLAUDE.md or the error."""
    result = CliRunner().invoke(check, ["--json", *arguments, "."])
    if result.exit_code:
        return result.exit_code, " ".join(result.stderr.split())
    (one,) = json.loads(result.stdout)["growth"]
    (sent,) = [
        each for each in json.loads(result.stdout)["promptGrowth"] if each["agent"] == "claude-code"
    ]
    assert (one["before"], one["tokens"]) == (sent["before"], sent["tokens"])
    return one["before"], one["message"]


def test_three_dots_compare_with_the_commit_where_the_branch_began(repository: Path) -> None:
    git("checkout", "-qb", "work")
    Path("CLAUDE.md").write_text(MORE)
    commit()
    git("checkout", "-q", "main")
    Path("CLAUDE.md").write_text(MORE * 9)
    commit()
    git("checkout", "-q", "work")
    assert grown("--diff", "main")[0] > 4
    for base in ("main...HEAD", "main..."):
        assert grown("--diff", base) == (4, f"7 tokens more than in {base} (4 → 11)")


@pytest.mark.parametrize("base", ["main..HEAD", "main...other", "main..other...HEAD"])
def test_other_ranges_are_an_error_that_says_what_to_write(repository: Path, base: str) -> None:
    code, error = grown("--diff", base)
    assert code == 2
    assert error.endswith(
        "files are compared as they are on disk; name one revision, such as main or main...HEAD"
    )


def test_branches_without_a_common_commit_are_an_error(repository: Path) -> None:
    git("checkout", "-q", "--orphan", "other")
    Path("CLAUDE.md").write_text(MORE)
    commit()
    code, error = grown("--diff", "main...HEAD")
    assert code == 2
    assert error.endswith("main and HEAD have no common commit")


def test_a_shallow_clone_says_how_to_fetch_the_revision(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("CLAUDE.md").write_text(MORE)
    commit()
    git("clone", "-q", "--depth=1", repository.as_uri(), str(tmp_path / "clone"))
    assert grown("--diff", "HEAD~2")[1].endswith("the repository has no such revision")
    monkeypatch.chdir(tmp_path / "clone")
    code, error = grown("--diff", "HEAD~1")
    assert code == 2
    assert error.endswith(
        "the repository has no such revision; this is a shallow clone, so set `fetch-depth: 0` "
        "for actions/checkout, or run `git fetch --unshallow`"
    )


TOO_LARGE = "x " * (2 << 20) + "x"


def unknown() -> dict[str, Any]:
    """Return the growth of Claude Code, of which no number may be known."""
    (found,) = json.loads(run("--json").stdout)["promptGrowth"]
    assert found["agent"] == "claude-code"
    assert {found[name] for name in ("before", "tokens", "added", "costUsd", "calls")} == {None}
    return dict(found)


def test_the_growth_of_a_file_that_is_too_large_is_unknown(repository: Path) -> None:
    write_profile("usage-profile.json", claude_code=1_000)
    commit()
    Path("CLAUDE.md").write_text(TOO_LARGE)
    assert unknown()["message"] == (
        "Every Claude Code call: unknown growth. CLAUDE.md was not read: it is larger than 4 MB. "
        "To see the growth, make it a file of at most 4 MB in the project."
    )
    commit()
    git("branch", "large")
    Path("CLAUDE.md").write_text(MORE)
    found = CliRunner().invoke(check, ["--diff", "large", "."]).stdout
    assert found.splitlines()[-1] == (
        "Every Claude Code call: unknown growth. CLAUDE.md in large was not read: it is larger "
        "than 4 MB."
    )


@pytest.mark.skipif(os.name == "nt", reason="git for Windows writes links as files")
def test_the_growth_of_a_link_out_of_the_project_is_unknown(
    repository: Path, tmp_path: Path
) -> None:
    write_profile("usage-profile.json", claude_code=1_000)
    commit()
    (tmp_path / "secret.md").write_text(MORE)
    Path("CLAUDE.md").unlink()
    Path("CLAUDE.md").symlink_to(tmp_path / "secret.md")
    assert unknown()["message"] == (
        "Every Claude Code call: unknown growth. CLAUDE.md was not read: it is outside the "
        "project. To see the growth, make it a file of at most 4 MB in the project."
    )
    git("checkout", "-q", "-b", "linked")
    commit()
    git("branch", "-f", "main")
    Path("CLAUDE.md").unlink()
    Path("CLAUDE.md").write_text(MORE)
    assert "CLAUDE.md in main was not read: it is outside the project" in unknown()["message"]


def test_the_growth_of_a_skill_that_is_too_large_is_unknown(repository: Path) -> None:
    write_profile("usage-profile.json", claude_code=1_000)
    write_skill(".claude", "Run the tests.")
    commit()
    write_skill(".claude", "Run the tests.", TOO_LARGE)
    assert ".claude/skills/tests/SKILL.md was not read" in unknown()["message"]


def test_a_file_that_stays_unread_makes_no_growth(repository: Path) -> None:
    write_profile("usage-profile.json", claude_code=1_000)
    Path("CLAUDE.md").write_text(TOO_LARGE)
    commit()
    Path("notes.md").write_text(MORE)
    assert growth() == {}
    Path("CLAUDE.md").write_text(TOO_LARGE + MORE)
    assert "CLAUDE.md was not read: it is larger than 4 MB" in unknown()["message"]


def test_growth_is_unknown_if_not_all_files_are_looked_at(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "MAX_PARTS", 3)
    Path(".claude/rules").mkdir(parents=True)
    for number in range(6):
        Path(f".claude/rules/{number}.md").write_text(f"Rule {number}.")
    commit()
    Path(".claude/rules/5.md").write_text("Another rule, which is not looked at.")
    write_profile("usage-profile.json", claude_code=1)
    sentence = run().stdout
    (one,) = json.loads(run("--json").stdout)["promptGrowth"]
    assert (one["before"], one["tokens"], one["added"]) == (None, None, None)
    assert "unknown growth" in sentence
    assert "not looked at, because only 3 are" in sentence


PRICE = ChangePrice(
    calls=4_210,
    reads=Decimal("3.78"),
    writes=Decimal("0.40"),
    uncached=Decimal("0.02"),
    subagents=Decimal("0.50"),
)


def growth_of(**fields: Any) -> PromptGrowth:
    return PromptGrowth(
        **{
            "agent": "claude-code",
            "title": "Claude Code",
            "model": "claude-sonnet-5",
            "before": 3_601,
            "tokens": 3_918,
            "method": "exact",
            "base": "main",
            "price": PRICE,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 4,210 calls in the last 30 "
            "days about +$4.20 a month, 90 % of it cache reads.",
        ),
        (
            {
                "tokens": 3_600,
                "method": "estimate",
                "days": 1,
                "price": ChangePrice(calls=4_210, reads=Decimal("-3.78"), writes=Decimal("-0.42")),
            },
            "Every Claude Code call: ~-1 token (~3,601 → ~3,600); at 4,210 calls in the last 1 day "
            "about -$4.20 a month, 90 % of it cache reads.",
        ),
        (
            {"price": replace(PRICE, open_session=Decimal("0.12")), "after_change": "appended"},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 4,210 calls in the last 30 "
            "days about +$4.20 a month, 90 % of it cache reads. An open session costs $0.12 more "
            "once, because the new text is appended.",
        ),
        (
            {"price": replace(PRICE, open_session=Decimal("0.2112573"))},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 4,210 calls in the last 30 "
            "days about +$4.20 a month, 90 % of it cache reads. An open session costs $0.21 more "
            "once, because its history is no longer in the cache.",
        ),
        (
            {"price": None},
            "Every Claude Code call: +317 tokens (3,601 → 3,918). No calls are known; to see the "
            "price, write a profile with `token-sidecar cost profile`.",
        ),
        (
            {"price": ChangePrice(calls=1, unpriced_calls=1)},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 1 call in the last 30 days, "
            "unpriced. Add a [[price]] for claude-sonnet-5 to see the price.",
        ),
        (
            {"price": ChangePrice(calls=12, unpriced_calls=2, reads=Decimal("0.004"))},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 12 calls in the last 30 days "
            "about +$0.0040 a month, 100 % of it cache reads; 2 calls unpriced.",
        ),
        (
            {"price": ChangePrice(calls=12, reads=Decimal("0.0004"))},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 12 calls in the last 30 days "
            "less than $0.001 a month.",
        ),
        (
            {"price": ChangePrice(calls=12, uncached=Decimal("3.20"))},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 12 calls in the last 30 days "
            "about +$3.20 a month.",
        ),
        (
            {"price": None, "has_profile": True, "is_other_model": True},
            "Every Claude Code call: +317 tokens for claude-sonnet-5 (3,601 → 3,918). The usage "
            "profile has no such calls; to see the price, write it again with "
            "`token-sidecar cost profile`.",
        ),
        (
            {"price": ChangePrice(calls=12)},
            "Every Claude Code call: +317 tokens (3,601 → 3,918); at 12 calls in the last 30 days "
            "$0.00 a month.",
        ),
    ],
)
def test_the_sentence(fields: dict[str, Any], message: str) -> None:
    assert growth_of(**fields).message == message


FINDING = ReportedFinding(
    severity="warning",
    budget=10,
    tokens=12,
    over=2,
    section=None,
    code="budget-exceeded",
    message="<a|b>.md is 12 tokens",
    rule="budget[0]",
    model="gpt-5",
    method="exact",
    line=START.line,
    column=START.column,
    end_line=START.end_line,
    end_column=START.end_column,
)
FILE = FileReport("<a|b>.md", 12, "exact", (FINDING,))


def report_of(*growth: PromptGrowth) -> Report:
    return Report(
        files=(FILE,),
        distinct_findings=((FILE, FINDING),),
        growth=(
            Growth("b.md", 9, 5, "exact", "main"),
            Growth("<a|b>.md", 2, 1_012, "estimate", "main"),
        ),
        prompt_growth=growth,
        budgets=1,
    )


def test_text_ends_with_a_sentence_for_each_agent() -> None:
    growths = growth_of(), growth_of(title="Codex", tokens=4_000)
    assert as_text(report_of(*growths)).splitlines()[-2:] == [one.message for one in growths]


def test_agents_that_grow_alike_share_a_sentence() -> None:
    names = "Codex", "Pi", "Amp", "Goose", "Crush"
    growths = [growth_of(title=name, price=None) for name in names]
    assert as_text(report_of(*growths)).splitlines()[-1] == (
        "Every call of Codex, Pi, Amp and 2 more: +317 tokens (3,601 → 3,918). No calls are known; "
        "to see the price, write a profile with `token-sidecar cost profile`."
    )


def test_annotations_have_a_notice_for_each_agent() -> None:
    (line,) = [line for line in as_github(report_of(growth_of())).splitlines() if "Every" in line]
    assert line == f"::notice title=Token budget::{growth_of().message.replace('%', '%25')}"


def test_json_has_the_parts_of_the_price() -> None:
    (found,) = json.loads(as_json(report_of(growth_of())))["promptGrowth"]
    assert found.pop("message") == growth_of().message
    assert found == {
        "agent": "claude-code",
        "model": "claude-sonnet-5",
        "before": 3_601,
        "tokens": 3_918,
        "added": 317,
        "method": "exact",
        "base": "main",
        "unread": [],
        "calls": 4_210,
        "unpricedCalls": 0,
        "days": 30,
        "costUsd": 4.2,
        "readsUsd": 3.78,
        "writesUsd": 0.4,
        "uncachedUsd": 0.02,
        "subagentsUsd": 0.5,
        "openSessionUsd": None,
    }


@pytest.mark.parametrize("price", [None, ChangePrice(calls=1, unpriced_calls=1)])
def test_json_of_an_unknown_price_is_null(price: ChangePrice | None) -> None:
    (found,) = json.loads(as_json(report_of(growth_of(price=price))))["promptGrowth"]
    assert {found[name] for name in found if name.endswith("Usd")} == {None}


def test_markdown_answers_first_what_every_call_costs() -> None:
    assert as_markdown(report_of(growth_of())).splitlines() == [
        "### Token budgets",
        "",
        "**Every Claude Code call: +317 tokens (3,601 → 3,918); at 4,210 calls in the last 30 days "
        "about +$4.20 a month, 90 % of it cache reads.**",
        "",
        "1 file checked: 1 budget exceeded, 0 near",
        "",
        "| Place | Severity | Finding |",
        "|---|---|---|",
        r"| \<a\|b\>.md:1 | warning | \<a\|b\>.md is 12 tokens |",
        "",
        "| File | Tokens in main | Now | Added |",
        "|---|---:|---:|---|",
        r"| \<a\|b\>.md | ~2 | ~1,012 | +1,010 |",
        "| b.md | 9 | 5 | -4 |",
    ]


def test_markdown_without_findings_is_the_summary() -> None:
    report = Report(files=(FILE,), distinct_findings=(), budgets=1)
    assert as_markdown(report) == "### Token budgets\n\n1 file checked: all within budget"
