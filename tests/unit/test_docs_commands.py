"""Runs the commands in the README, the guides and the tutorials as they are written.

A command that cannot run here is listed in `NOT_RUN` with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome
from sidecar.cli import main
from sidecar.config.paths import config_file, state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/how-to/*.md"))]
PAGES += sorted(ROOT.glob("docs/tutorial/*.md"))
BLOCK = re.compile(r"^( *)```(sh|bash|console)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:[^`]* \\\| )?token-sidecar\s+\w+\s[^`]+)`")
COMMENT = re.compile(r" +# .*")
SHELL = re.compile(r"[|>~$\n]")
TOOLS = ("jq", "less", "openssl")

NETWORK = "downloads packages"
HOOKS = "asks on a terminal, or needs an agent; tests/unit/test_hooks_install.py runs it"
DOCKER = "needs Docker"
COLLECTOR = "needs a collector; tests/e2e/team has one"
STORE = "needs ClickHouse; tests/e2e/team has it"
VSCODE = "needs VS Code; tests/e2e/vscode builds and installs the extension"
NOT_RUN = {
    "git clone https://github.com/token-sidecar/token-sidecar ~/src/token-sidecar": NETWORK,
    "pipx install .": NETWORK,
    "pipx install ~/src/token-sidecar": NETWORK,
    "pipx inject --force token-sidecar '.[mcp]'": NETWORK,
    "token-sidecar cost update-prices": NETWORK,
    "token-sidecar cost reconcile --from claude_api_tokens_2026_11.csv --from "
    "claude_api_cost_2026_11.csv": "needs a vendor's report; tests/unit/test_cost_vendor_bill.py",
    "token-sidecar cost reconcile --api anthropic": NETWORK,
    "token-sidecar usage --also ~/Sync/desktop.csv": "needs a session; "
    "tests/unit/test_cost_other_ledgers.py runs it",
    "python3 editors/try/neovim.py": f"{NETWORK}; tests/e2e/neovim runs it after its installation",
    "python3 tests/run.py": "is the command that runs this test",
    "cd editors/vscode && npm ci && npm run package": VSCODE,
    "cd ~/src/token-sidecar/editors/vscode": VSCODE,
    "npm ci && npm run package": VSCODE,
    "code --install-extension token-sidecar-0.1.0.vsix": VSCODE,
    "nvim prompt.md": "opens an editor; tests/e2e/neovim does this tutorial",
    "curl -s http://127.0.0.1:8080/v1/models": "needs a model server",
    "token-sidecar usage --watch": "runs until Ctrl-C; tests/unit/test_cli_statusline.py runs it",
    "token-sidecar mcp --install codex": "asks on a terminal; tests/e2e/agents installs it",
    "token-sidecar mcp --install claude-code": "asks on a terminal; tests/e2e/agents installs it",
    "token-sidecar mcp --uninstall codex --scope user": "needs Codex",
    "token-sidecar hooks": HOOKS,
    "token-sidecar hooks --install claude-code": HOOKS,
    "token-sidecar hooks --uninstall AGENT": HOOKS,
    "token-sidecar usage --session NAME": "stands for a session's name",
    "docker compose up --detach": DOCKER,
    "docker compose exec -T clickhouse clickhouse-client --multiquery < schema.sql": DOCKER,
    "token-sidecar cost ship": COLLECTOR,
    "docker compose exec -T caddy cat /data/caddy/pki/authorities/local/root.crt > team-ca.pem": DOCKER,
    "pipx install git+https://github.com/token-sidecar/token-sidecar": NETWORK,
    "token-sidecar team join": COLLECTOR,
    "token-sidecar team join https://costs.example.com": COLLECTOR,
    "token-sidecar team join https://costs.example.com --ca-file team-ca.pem": COLLECTOR,
    "token-sidecar cost ship --follow": COLLECTOR,
    "token-sidecar cost ship --since 2026-11-21": COLLECTOR,
    "sh add-user.sh jane@example.com platform": DOCKER,
    "token-sidecar cost --team --by team,user --since 2026-11-01": STORE,
    "token-sidecar cost --team --by day --json": STORE,
    "token-sidecar cost --team --html team.html": STORE,
}


class Step(NamedTuple):
    """A shell script, and the output that the page shows, if any."""

    script: str
    shown: str = ""


class Case(NamedTuple):
    """Commands that run in the same folder: all steps of a code block, or one inline command."""

    page: str
    steps: tuple[Step, ...]


def cases_of(page: Path) -> list[Case]:
    """Return the commands in a page. An `sh` block is one step, and so is each `$` line in a
    `console` block.
    """
    text, name = page.read_text("utf-8"), page.stem
    found = []
    for indent, language, body in BLOCK.findall(text):
        block = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        if language != "console":
            found.append(Case(name, (Step(COMMENT.sub("", block).strip()),)))
            continue
        parts = [part.split("\n", 1) for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
        steps = (Step(COMMENT.sub("", line), shown) for line, shown in parts)
        found.append(Case(name, tuple(steps)))
    inline = (" ".join(one.replace(r"\|", "|").split()) for one in INLINE.findall(text))
    return found + [Case(name, (Step(one),)) for one in inline]


ALL = [case for page in PAGES for case in cases_of(page)]


def runnable() -> list[Case]:
    """Return each case once, without the commands in `NOT_RUN`."""
    found: dict[tuple[Step, ...], Case] = {}
    for page, steps in ALL:
        kept = []
        for step in steps:
            lines = [line for line in step.script.splitlines() if line not in NOT_RUN]
            kept += [step._replace(script="\n".join(lines))] if lines else []
        if kept:
            found.setdefault(tuple(kept), Case(page, tuple(kept)))
    return list(found.values())


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A project with prompts, budgets, a log, uncommitted changes and recorded calls."""
    root = tmp_path / "project"
    texts = {
        "README.md": "# Sample\n",
        "AGENTS.md": "Answer in short sentences.\n",
        ".token-sidecar.toml": '[[budget]]\nfiles = "AGENTS.md"\nmax-tokens = 100\n',
        "docs/guide.md": "A guide.\n",
        "prompts/plan.md": "Plan the work in a few steps.\n\n",
        "prompts/review.md": "Review the diff, and list all the mistakes.\n",
        "prompts/system.md": "You are a careful code reviewer.\n",
        "build.log": "".join(f"step {number} of the build\n" for number in range(2_000)),
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "prompts/logo.png").write_bytes(b"\x89PNG\0\0")
    shutil.copytree(ROOT / "contrib/team", root / "contrib/team")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (
        ("init", "-q"), ("add", "."), ("commit", "-qm", "Add a sample"),
        ("update-ref", "refs/remotes/origin/main", "HEAD"),
    ):  # fmt: skip
        subprocess.run([*git, *arguments], cwd=root, check=True)
    (root / "README.md").write_text("# Sample\n\nChanged.\n")
    home = Path(os.environ["HOME"])
    (home / "src").mkdir()
    (home / "src/token-sidecar").symlink_to(ROOT)
    (home / "projects/site").mkdir(parents=True)
    record_calls()
    return root


def record_calls() -> None:
    """Record the calls in the first example of cost-reports.md."""
    book = CostBook(state_dir())
    sonnet = {"input_tokens": 2350, "cache_read_input_tokens": 48_000, "output_tokens": 758}
    for _ in range(12):
        book.record(
            CostRecordParams(model="claude-sonnet-4-5", usage=sonnet, estimated_tokens=43_000)
        )
    local = {"tokens_evaluated": 4130, "tokens_predicted": 300}
    for _ in range(3):
        book.record(CostRecordParams(model="qwen3-8b", provider="llamacpp", usage=local))
    book.close()


def prepare(page: str, root: Path) -> None:
    """Create the files that a page needs besides the sample project."""
    if page == "coding-agents":
        session = ClaudeHome(Path(os.environ["HOME"]) / ".claude").session(root)
        session.reply()
        session.write({"type": "ai-title", "aiTitle": "Fix the tokenizer"})
    if page == "cost-reports":
        (Path.home() / "Sync").mkdir()
    if page == "team":
        guide = (ROOT / "docs/how-to/team.md").read_text("utf-8")
        config_file().write_text(
            '[ledger]\notel-endpoint = "https://costs.example.com"\n'
            + re.findall(r"```toml\n(\[team\] .*?)```", guide, re.DOTALL)[0]
        )
        token = Path.home() / ".config/token-sidecar/team-token"
        token.parent.mkdir(parents=True, exist_ok=True)
        token.write_text("jane@example.com:4f1d0e")
    if page == "budgets":  # this page creates the project's configuration
        (root / ".token-sidecar.toml").unlink()
    if page == "local-models":  # this page creates the user's configuration
        config_file().unlink()


def run(script: str, folder: Path) -> tuple[int, str]:
    """Run a script, and return its exit code and output. A shell is used only if necessary."""
    words = shlex.split(script)
    if words[0] == "token-sidecar" and not SHELL.search(script):
        result = CliRunner().invoke(main, words[1:])
        return result.exit_code, result.output
    missing = [tool for tool in TOOLS if tool in words and not shutil.which(tool)]
    if missing:
        pytest.skip(f"needs {missing[0]}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.skipif(os.name == "nt", reason="the commands are for a POSIX shell")
@pytest.mark.parametrize(
    "case", runnable(), ids=lambda case: f"{case.page}: {case.steps[0].script}"
)
def test_the_commands_work_as_written(
    case: Case, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(case.page, sample)
    monkeypatch.chdir(sample)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    for step in case.steps:
        code, output = run(step.script, sample)
        assert code == 0, output
        assert not output.startswith(("No conversation", "This workspace has no session"))
        if "|" in step.script:  # the pipe's programs write at the same time
            assert step.shown == "" or sorted(step.shown.split("\n")) == sorted(output.split("\n"))
        else:
            assert step.shown in ("", output)


def test_each_command_that_is_not_run_is_on_a_page() -> None:
    steps = [step for case in ALL for step in case.steps]
    assert NOT_RUN.keys() - {line for step in steps for line in step.script.splitlines()} == set()
