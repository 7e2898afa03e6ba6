"""Defines how each real agent is installed, connected to the fake vendor, run and resumed."""

from __future__ import annotations

import inspect
import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from sidecar.project.loading_rules import Kind as FileKind
from tests.e2e.agents.install import Package
from tests.fake_vendor import SIDE_TEXT, Kind, ToolUse

WINDOW = 200_000
"""The context window to configure for agents, in tokens. Some agents ignore it."""


class Agent(ABC):
    """A coding agent that can be run without a terminal."""

    name: ClassVar[str]
    """The agent's name in `agents.sources`."""
    variant: ClassVar[str] = ""
    """What distinguishes this configuration from another one of the same agent."""
    package: ClassVar[Package]
    model: ClassVar[str] = "gpt-5"
    in_ci: ClassVar[bool] = False
    side_calls: ClassVar[dict[str, Kind]] = {}
    """Phrases that identify requests outside of a turn, such as summary requests."""
    cannot: ClassVar[dict[str, str]] = {}
    """The scenes that the agent does not support, each with the reason."""
    unrecorded_kinds: ClassVar[dict[Kind, str]] = {}
    """Call kinds that are missing from the agent's files, each with an explanation."""
    limits: ClassVar[dict[str, str]] = {}
    """The checks to skip, each with the reason. `scene: check` skips a check in only one scene."""
    records_cache: ClassVar[bool] = True
    """Whether the agent's files record cache reads."""
    records_reasoning: ClassVar[bool] = True
    """Whether the agent's files contain a separate count of reasoning tokens."""
    kinds_without_reasoning: ClassVar[frozenset[Kind]] = frozenset()
    """Call kinds for which the agent does not record the number of reasoning tokens."""
    kinds_without_cache_ttl: ClassVar[frozenset[Kind]] = frozenset()
    """Call kinds for which the agent does not record that cache writes last five minutes."""
    model_in_files: ClassVar[str | None] = None
    """The model's name in the agent's files, if it differs from `model`."""
    state_at_end: ClassVar[str] = "idle"
    """The state of a session after its agent has exited."""
    has_tools: ClassVar[bool] = True
    """Whether requests in turns define tools. Title and summary requests never do."""
    window: ClassVar[int] = WINDOW
    """The context window that the agent assumes with this configuration, in tokens."""
    merges_summaries: ClassVar[bool] = False
    """Whether the agent's files contain the sum of the calls that make one summary."""
    resumes: ClassVar[bool] = True
    """Whether another run can continue a session."""
    fills_window: ClassVar[int] = WINDOW - 8_000
    """The number of prompt tokens at which the agent compacts the conversation."""
    compacts_within_turn: ClassVar[bool] = False
    """Whether the agent compacts only within a turn, before it sends a tool result."""
    padding: ClassVar[str] = ""
    """Text to append to the first prompt of each session."""
    compact_command: ClassVar[str | None] = None
    """The prompt that makes the agent compact its conversation."""
    band_percent: ClassVar[float] = 0
    """The margin of error for sizes in the agent's files, in percent (±)."""
    reply_seconds: ClassVar[float] = 0
    """The vendor's delay before each reply, in seconds."""

    unsorted: ClassVar[frozenset[FileKind]] = frozenset()
    """The kinds of files that the agent sends in the order of the file system."""

    @property
    def id(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @abstractmethod
    def configure(self, home: Path, url: str) -> None:
        """Write the agent's configuration, which contains the fake vendor's URL."""

    @abstractmethod
    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        """Return the program's arguments for a prompt.

        Args:
            prompt: The prompt.
            resume: Whether to continue the newest session.
        """

    @abstractmethod
    def shell(self, command: str) -> ToolUse:
        """Return the tool call that runs a shell command."""

    def subagent(self, prompt: str) -> ToolUse:
        """Return the tool call that starts a sub-agent with a prompt."""
        raise NotImplementedError(self.cannot["subagent"])

    def title(self, _prompt: str) -> str | None:
        """Return the expected title of a session that starts with this prompt."""
        return None

    def estimate_after_compaction(self, _home: Path) -> int | None:
        """Return the agent's own estimate of the context size after a compaction, in tokens."""
        return None

    def environment(self, _url: str) -> dict[str, str]:
        """Return additional environment variables."""
        return {}


class Codex(Agent):
    name = "codex"
    package = Package("npm", "@openai/codex", "0.171.0", "codex")
    in_ci = True
    window = WINDOW * 95 // 100
    side_calls: ClassVar[dict[str, Kind]] = {"CONTEXT CHECKPOINT COMPACTION": "summary"}

    def configure(self, home: Path, url: str) -> None:
        _write(
            home / ".codex/config.toml",
            f"""
            model = "{self.model}"
            model_provider = "fake"
            model_context_window = {WINDOW}
            approval_policy = "never"
            sandbox_mode = "danger-full-access"
            check_for_update_on_startup = false
            [model_providers.fake]
            name = "fake"
            base_url = "{url}/v1"
            wire_api = "responses"
            stream_max_retries = 2
            [analytics]
            enabled = false
            """,
        )

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        resumed = ["resume", "--last"] if resume else []
        return ["exec", "--skip-git-repo-check", *resumed, prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("exec_command", {"cmd": command})

    def subagent(self, prompt: str) -> ToolUse:
        return ToolUse("spawn_agent", {"message": prompt}, namespace="multi_agent_v1")


class CodexNewModel(Codex):
    """Codex with a model that it knows, and for which it has other tools and instructions."""

    variant = "new-model"
    model = "gpt-6.2-sol"
    in_ci = False
    cannot: ClassVar[dict[str, str]] = {
        "subagent": "its tasks are no user messages, by which the vendor's script knows its calls"
    }

    def shell(self, command: str) -> ToolUse:
        return ToolUse("exec", f"text(await tools.exec_command({json.dumps({'cmd': command})}));")

    def subagent(self, prompt: str) -> ToolUse:
        task = {"task_name": "cellar", "message": prompt, "fork_turns": "none"}
        return ToolUse("spawn_agent", task, namespace="collaboration")


class OpenCode(Agent):
    name = "opencode"
    package = Package("npm", "opencode-ai", "1.18.33", "opencode")
    folder: ClassVar[str] = "opencode"
    side_calls: ClassVar[dict[str, Kind]] = {
        "Generate a title for this conversation": "title",
        "Keep every section, even when empty.": "summary",
    }
    unrecorded_kinds: ClassVar[dict[Kind, str]] = {"title": "title calls are in no file"}
    limits: ClassVar[dict[str, str]] = {
        "abort: state": "an interrupted run writes nothing after the prompt",
        "tool_call: context while a tool runs": "a reply's usage is written after its tools",
    }

    def configure(self, home: Path, url: str) -> None:
        model = {"name": self.model, "limit": {"context": WINDOW, "output": 32_000}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "dummy"},
            "models": {self.model: model | {"tool_call": True}},
        }
        settings: dict[str, object] = {
            "provider": {"fake": provider},
            "model": f"fake/{self.model}",
        }
        settings |= {"autoupdate": False, "share": "disabled", "permission": "allow"}
        _write(home / f".config/{self.folder}/{self.folder}.json", json.dumps(settings))

    def environment(self, _url: str) -> dict[str, str]:
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["run", *(["-c"] if resume else []), prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("bash", {"command": command, "description": "Runs a command"})

    def subagent(self, prompt: str) -> ToolUse:
        task = {"description": "Look around", "subagent_type": "general", "prompt": prompt}
        return ToolUse("task", task)

    def title(self, _prompt: str) -> str | None:
        return SIDE_TEXT


class Pi(Agent):
    name = "pi"
    package = Package("npm", "@earendil-works/pi-coding-agent", "1.6.0", "pi")
    merges_summaries = True
    in_ci = True
    side_calls: ClassVar[dict[str, Kind]] = {
        "Create a structured context checkpoint summary": "summary",
        "Create a concise checkpoint of the user's request": "summary",
    }
    cannot: ClassVar[dict[str, str]] = {"subagent": "it has no sub-agents"}
    limits: ClassVar[dict[str, str]] = {
        "abort: state": "an interrupted run writes nothing after the prompt"
    }

    def configure(self, home: Path, url: str) -> None:
        model = {"id": self.model, "contextWindow": self.window, "maxTokens": 32_000}
        prices = {"input": 1.25, "output": 10, "cacheRead": 0.125, "cacheWrite": 0}
        provider = {
            "baseUrl": f"{url}/v1",
            "api": "openai-completions",
            "apiKey": "dummy",
            "models": [model | {"cost": prices}],
        }
        _write(home / ".pi/agent/models.json", json.dumps({"providers": {"fake": provider}}))
        # By default, Pi does not summarize the newest 20,000 tokens. The texts in the test are short.
        settings = {"compaction": {"keepRecentTokens": 1}}
        _write(home / ".pi/agent/settings.json", json.dumps(settings))

    def environment(self, _url: str) -> dict[str, str]:
        return {"PI_OFFLINE": "1"}

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        resumed = ["-c"] if resume else []
        return ["--provider", "fake", "--model", self.model, *resumed, "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("bash", {"command": command})


class QwenCode(Agent):
    name = "qwen-code"
    package = Package("npm", "@qwen-code/qwen-code", "0.24.4", "qwen")
    fills_window = 172_000
    side_calls: ClassVar[dict[str, Kind]] = {
        "produce the <state_snapshot> XML": "summary",
        "managed memory extraction subagent": "subagent",
    }

    def configure(self, home: Path, _url: str) -> None:
        settings = {
            "security": {"auth": {"selectedType": "openai"}},
            "model": {
                "name": self.model,
                "generationConfig": {"contextWindowSize": WINDOW, "maxRetries": 2},
            },
            "general": {"enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
        }
        _write(home / ".qwen/settings.json", json.dumps(settings))

    def environment(self, url: str) -> dict[str, str]:
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "dummy",
            "OPENAI_MODEL": self.model,
        }

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["-y", *(["-c"] if resume else []), "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("run_shell_command", {"command": command, "is_background": False})

    def subagent(self, prompt: str) -> ToolUse:
        task = {"description": "Look around", "prompt": prompt}
        return ToolUse("agent", task | {"subagent_type": "general-purpose"})


class GeminiCli(Agent):
    name = "gemini-cli"
    unsorted: ClassVar[frozenset[FileKind]] = frozenset({"skill"})
    package = Package("npm", "@google/gemini-cli", "0.61.0", "gemini")
    model = "gemini-2.5-pro"
    window = 1_048_576
    fills_window = 550_000
    compacts_within_turn = True
    limits: ClassVar[dict[str, str]] = {
        "abort: state": "an interrupted run writes nothing after the prompt"
    }
    side_calls: ClassVar[dict[str, Kind]] = {"<state_snapshot>": "summary"}
    unrecorded_kinds: ClassVar[dict[Kind, str]] = {"summary": "a compression writes no usage"}

    def configure(self, home: Path, _url: str) -> None:
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
        }
        _write(home / ".gemini/settings.json", json.dumps(settings))

    def environment(self, url: str) -> dict[str, str]:
        return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "dummy"}

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        resumed = ["-r", "latest"] if resume else []
        return ["--skip-trust", "-y", "-m", self.model, *resumed, "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("run_shell_command", {"command": command, "description": "Runs a command"})

    def subagent(self, prompt: str) -> ToolUse:
        return ToolUse("invoke_agent", {"agent_name": "generalist", "prompt": prompt})


class KimiCode(Agent):
    name = "kimi-code"
    records_reasoning = False
    package = Package("npm", "@moonshot-ai/kimi-code", "2.1.0", "kimi")
    in_ci = True
    model = "kimi-k2-0905-preview"
    side_calls: ClassVar[dict[str, Kind]] = {
        "Respond with text only. Do not call any tools": "summary"
    }

    def configure(self, home: Path, url: str) -> None:
        _write(
            home / ".kimi-code/config.toml",
            f"""
            default_model = "k2"
            telemetry = false
            [providers.fake]
            type = "openai"
            base_url = "{url}/v1"
            api_key = "dummy"
            [models.k2]
            provider = "fake"
            model = "{self.model}"
            max_context_size = {WINDOW}
            """,
        )

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return [*(["-c"] if resume else []), "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("Bash", {"command": command})

    def subagent(self, prompt: str) -> ToolUse:
        return ToolUse("Agent", {"description": "Look around", "prompt": prompt})


class ClaudeCode(Agent):
    name = "claude-code"
    unsorted: ClassVar[frozenset[FileKind]] = frozenset({"rule"})
    package = Package("npm", "@anthropic-ai/claude-code", "2.1.332", "claude")
    model = "claude-sonnet-4-5"
    compact_command = "/compact"
    kinds_without_cache_ttl: ClassVar[frozenset[Kind]] = frozenset({"summary"})
    side_calls: ClassVar[dict[str, Kind]] = {
        "an <analysis> block followed by a <summary> block": "summary"
    }

    def configure(self, home: Path, _url: str) -> None:
        _write(home / ".claude/settings.json", json.dumps({"autoUpdates": False}))

    def environment(self, url: str) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "dummy",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        resumed = ["-c"] if resume else []
        tools = ["--allowedTools", "Bash,Agent,Task"]
        return ["--model", self.model, *tools, *resumed, "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("Bash", {"command": command, "description": "Runs a command"})

    def subagent(self, prompt: str) -> ToolUse:
        task = {"description": "Look around", "prompt": prompt}
        return ToolUse("Agent", task | {"subagent_type": "general-purpose"})

    def estimate_after_compaction(self, home: Path) -> int | None:
        paths = sorted(
            home.glob(".claude/projects/*/*.jsonl"), key=lambda path: path.stat().st_mtime
        )
        lines = map(json.loads, paths[-1].read_text().splitlines())
        compactions = [line["compactMetadata"] for line in lines if "compactMetadata" in line]
        return int(compactions[-1]["postTokens"])


class Continue(Agent):
    name = "continue"
    unsorted: ClassVar[frozenset[FileKind]] = frozenset({"rule", "skill"})
    package = Package("npm", "@continuedev/cli", "1.5.47", "cn")
    in_ci = True
    cannot: ClassVar[dict[str, str]] = {
        "subagent": "its sub-agents are an experiment",
        "compaction": "it counts the texts itself, and the texts in the test are short",
    }
    records_cache = False
    records_reasoning = False
    limits: ClassVar[dict[str, str]] = {
        "cost": "cache reads are not written, so the cost is an upper bound",
        "footprint: sum": "its calls have no times, so no first request is known",
        "tool_call: context while a tool runs": "the session is written at the end of a turn",
        "tool_call: state while a tool runs": "the session is written at the end of a turn",
    }

    def configure(self, home: Path, url: str) -> None:
        model = {
            "name": self.model,
            "provider": "openai",
            "model": self.model,
            "apiBase": f"{url}/v1",
            "apiKey": "dummy",
            "roles": ["chat"],
            "defaultCompletionOptions": {"contextLength": self.window, "maxTokens": 16_000},
            "capabilities": ["tool_use"],
            "useResponsesApi": False,
        }
        settings = {"name": "test", "version": "1.0.0", "schema": "v1", "models": [model]}
        _write(home / ".continue/config.yaml", json.dumps(settings))

    def environment(self, _url: str) -> dict[str, str]:
        return {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_AUTO_UPDATED": "1"}

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["--auto", *(["--resume"] if resume else []), "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("Bash", {"command": command})


class Cline(Agent):
    name = "cline"
    records_reasoning = False
    package = Package("npm", "cline", "3.0.65", "cline")
    provider = "openai-compatible"
    state_at_end = "ended"
    window = 400_000
    resumes = False
    cannot: ClassVar[dict[str, str]] = dict.fromkeys(
        ("abort", "compaction"), "it resumes a session only in a terminal"
    )

    def configure(self, home: Path, url: str) -> None:
        settings = {"provider": self.provider, "apiKey": "dummy", "model": self.model}
        settings |= {"baseUrl": f"{url}/v1"}
        provider = {"settings": settings, "updatedAt": "2026-11-23T12:00:00.000Z"}
        providers = {
            "version": 1,
            "lastUsedProvider": self.provider,
            "modes": {},
            "providers": {self.provider: provider | {"tokenSource": "manual"}},
        }
        _write(home / ".cline/data/settings/providers.json", json.dumps(providers))

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:  # noqa: ARG002
        return ["-P", self.provider, prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("run_commands", {"commands": [command]})

    def subagent(self, prompt: str) -> ToolUse:
        return ToolUse("spawn_agent", {"systemPrompt": "Look around.", "task": prompt})


class Vibe(Agent):
    name = "vibe"
    # Vibe deletes a journal when the next two replies have arrived. The delay gives our server time
    # to read the journal first.
    reply_seconds = 0.5
    # Vibe corrects its own estimates by the vendor's numbers, and compacts a conversation only if
    # the result fits by these estimates. So most of the text must be in the old messages.
    padding = " and so on" * 10_000
    records_reasoning = False
    unsorted: ClassVar[frozenset[FileKind]] = frozenset({"skill"})
    package = Package("pypi", "mistral-vibe", "3.0.3", "vibe", python=(3, 12))
    model = "devstral-2512"
    side_calls: ClassVar[dict[str, Kind]] = {
        "You are performing a CONTEXT CHECKPOINT COMPACTION": "summary"
    }

    def configure(self, home: Path, url: str) -> None:
        _write(
            home / ".vibe/config.toml",
            f"""
            active_model = "dev"
            enable_telemetry = false
            enable_update_checks = false
            enable_auto_update = false
            [[providers]]
            name = "fake"
            api_base = "{url}/v1"
            api_key_env_var = "MISTRAL_API_KEY"
            api_style = "openai"
            backend = "generic"
            [[models]]
            name = "{self.model}"
            alias = "dev"
            provider = "fake"
            max_context_length = {WINDOW}
            """,
        )

        # With `--trust`, it would trust only the folder where it starts.
        trusted = json.dumps([str(home / "work/project")])
        _write(home / ".vibe/trusted_folders.toml", f"trusted = {trusted}")

    def environment(self, _url: str) -> dict[str, str]:
        return {"MISTRAL_API_KEY": "dummy"}

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["--auto-approve", *(["-c"] if resume else []), "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("bash", {"command": command})

    def subagent(self, prompt: str) -> ToolUse:
        spawn = json.dumps({"name": "cellar", "message": prompt})
        code = f"async function main() {{ return await tools.agents.spawn({spawn}); }}"
        return ToolUse("run_typescript", {"code": code})


class Aider(Agent):
    name = "aider"
    unsorted: ClassVar[frozenset[FileKind]] = frozenset({"instructions"})
    package = Package("pypi", "aider-chat", "0.86.2", "aider")
    model_in_files = "openai/gpt-5"
    has_tools = False
    resumes = False
    window = 400_000
    band_percent = 75
    side_calls: ClassVar[dict[str, Kind]] = {
        "*Briefly* summarize this partial conversation": "summary"
    }
    cannot: ClassVar[dict[str, str]] = {
        "tool_call": "it offers the model no tools",
        "subagent": "it has no sub-agents",
        "compaction": "it counts the texts itself, and the texts in the test are short",
    }
    limits: ClassVar[dict[str, str]] = {
        "cost": "it counts tokens itself and rounds them",
        "calls left": "each run starts a new chat",
        "abort: context after the abort": "an interrupted chat has no numbers",
        "footprint: sum below the root": "its history is in the root, wherever it starts",
        "abort: state": "an interrupted chat ends with the prompt",
    }

    def configure(self, home: Path, url: str) -> None:
        settings = {
            "model": f"openai/{self.model}",
            "openai-api-base": f"{url}/v1",
            "openai-api-key": "dummy",
            "yes-always": True,
        }
        off = ("check-update", "show-release-notes", "show-model-warnings", "gitignore")
        settings |= dict.fromkeys((*off, "suggest-shell-commands", "analytics"), False)
        _write(home / ".aider.conf.yml", json.dumps(settings))

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return [*(["--restore-chat-history"] if resume else []), "--message", prompt]

    def shell(self, command: str) -> ToolUse:
        raise NotImplementedError(self.cannot["tool_call"])


class CopilotCli(Agent):
    name = "copilot-cli"
    unsorted: ClassVar[frozenset[FileKind]] = frozenset({"skill", "command", "rule"})
    package = Package("npm", "@github/copilot", "1.0.102", "copilot")
    compact_command = "/compact"
    kinds_without_reasoning: ClassVar[frozenset[Kind]] = frozenset({"summary"})
    side_calls: ClassVar[dict[str, Kind]] = {
        "Please create a detailed summary of the conversation so far.": "summary"
    }

    def configure(self, home: Path, url: str) -> None:
        """Do nothing, because the environment configures the provider."""

    def environment(self, url: str) -> dict[str, str]:
        return {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
            "COPILOT_PROVIDER_API_KEY": "dummy",
            "COPILOT_MODEL": self.model,
            "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(self.window),
        }

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["--allow-all-tools", *(["--continue"] if resume else []), "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("bash", {"command": command, "description": "Runs a command"})

    def subagent(self, prompt: str) -> ToolUse:
        task = {"description": "Look around", "prompt": prompt, "name": "cellar"}
        return ToolUse("task", task | {"agent_type": "general-purpose", "mode": "sync"})


class Kilo(OpenCode):
    name = "kilo-code"
    unsorted: ClassVar[frozenset[FileKind]] = frozenset({"rule"})
    package = Package("npm", "@kilocode/cli", "7.7.7", "kilo")
    folder = "kilo"
    limits: ClassVar[dict[str, str]] = OpenCode.limits | {
        "another_session: title": "a short run ends before the title is made"
    }


class OhMyPi(Pi):
    """A fork of Pi. It runs on Bun, which is installed beside it."""

    name = "oh-my-pi"
    package = Package("npm", "@oh-my-pi/pi-coding-agent", "18.2.3", "omp", beside="bun@1.4.5")
    in_ci = False
    window = 400_000
    cannot: ClassVar[dict[str, str]] = {
        "subagent": "not tried: its tool for tasks has other arguments",
        "compaction": "it archives old messages without a call",
    }

    def configure(self, home: Path, url: str) -> None:
        model = {"id": self.model, "contextWindow": self.window, "maxTokens": 32_000}
        provider = {
            "baseUrl": f"{url}/v1",
            "api": "openai-completions",
            "apiKey": "dummy",
            "models": [model | {"name": self.model, "reasoning": False}],
        }
        _write(home / ".omp/agent/models.yml", json.dumps({"providers": {"fake": provider}}))

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["--model", f"fake/{self.model}", *(["-c"] if resume else []), "-p", prompt]


_NO_STATE = "its files do not say when a turn ends"


class Gptme(Agent):
    name = "gptme"
    package = Package("pypi", "gptme", "0.35.1", "gptme")
    window = 400_000
    cannot: ClassVar[dict[str, str]] = {
        "subagent": "its sub-agents are threads of a Python tool",
        "compaction": "it counts the texts itself, and the texts in the test are short",
    }
    side_calls: ClassVar[dict[str, Kind]] = {"Your task: Create a 2-4 word title": "title"}
    unrecorded_kinds: ClassVar[dict[Kind, str]] = {"title": "title calls are in no file"}
    limits: ClassVar[dict[str, str]] = (
        dict.fromkeys(
            ("answered calls", "calls of the turn", "calls left"),
            "without a terminal, it asks again until the model calls its tool `complete`",
        )
        | dict.fromkeys(("state", "state while a tool runs"), _NO_STATE)
        | {"context while a tool runs": "a reply is written after its tools"}
    )

    def title(self, _prompt: str) -> str | None:
        return SIDE_TEXT

    def configure(self, home: Path, _url: str) -> None:
        _write(home / ".config/gptme/config.toml", '[prompt]\n[env]\nGPTME_CHECK = "false"')

    def environment(self, url: str) -> dict[str, str]:
        return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "dummy"}

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        options = ["--model", f"local/{self.model}", "--tool-format", "tool", "--non-interactive"]
        return [*options, *(["--resume"] if resume else []), prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("shell", {"command": command})


class Hermes(Agent):
    name = "hermes"
    package = Package("pypi", "hermes-agent", "0.19.0", "hermes")
    window = 400_000
    cannot: ClassVar[dict[str, str]] = {
        "compaction": "it makes no summary of the short texts in the test"
    }
    limits: ClassVar[dict[str, str]] = dict.fromkeys(
        ("state", "state while a tool runs"), _NO_STATE
    )

    def configure(self, home: Path, url: str) -> None:
        model = {"default": self.model, "provider": "custom", "base_url": f"{url}/v1"}
        model |= {"api_key": "dummy"}
        settings = {"model": model | {"context_length": self.window}}
        _write(home / ".hermes/config.yaml", json.dumps(settings))

    def environment(self, _url: str) -> dict[str, str]:
        return {"OPENAI_API_KEY": "dummy"}

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["chat", "-Q", "--yolo", *(["-c"] if resume else []), "-q", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("terminal", {"command": command})

    def subagent(self, prompt: str) -> ToolUse:
        return ToolUse("delegate_task", {"goal": prompt})


class OpenHands(Agent):
    name = "openhands"
    package = Package("pypi", "openhands", "1.16.0", "openhands", python=(3, 12))
    window = 272_000
    fills_window = 264_000
    cannot: ClassVar[dict[str, str]] = {
        "compaction": "it counts the messages of a conversation, not its tokens"
    }
    limits: ClassVar[dict[str, str]] = dict.fromkeys(
        ("context while a tool runs", "state while a tool runs"),
        "it writes its state when the tool has ended",
    ) | {"abort: state": "an interrupted run does not write that it ended"}

    def configure(self, home: Path, url: str) -> None:
        """Do nothing, because the environment configures the provider."""

    def environment(self, url: str) -> dict[str, str]:
        return {
            "LLM_MODEL": f"openai/{self.model}",
            "LLM_BASE_URL": f"{url}/v1",
            "LLM_API_KEY": "dummy",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
            "OPENHANDS_SUPPRESS_BANNER": "1",
        }

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        options = ["--headless", "--override-with-envs", "--always-approve"]
        return [*options, *(["--resume", "--last"] if resume else []), "-t", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("terminal", {"command": command})

    def subagent(self, prompt: str) -> ToolUse:
        task = {"description": "Look around", "prompt": prompt, "security_risk": "LOW"}
        return ToolUse("task", task | {"subagent_type": "general-purpose"})


class GrokBuild(Agent):
    name = "grok-build"
    package = Package("npm", "@xai-official/grok", "1.0.41", "grok", installs_into="GROK_HOME")

    compacts_within_turn = True
    side_calls: ClassVar[dict[str, Kind]] = {
        '"session_title"': "title",
        "- Summarize earlier turns or the whole session": "other",
        "produce your summary from the conversation text only": "summary",
    }
    unrecorded_kinds: ClassVar[dict[Kind, str]] = dict.fromkeys(
        ("title", "other", "summary"), "calls that make titles and summaries are in no file"
    )
    limits: ClassVar[dict[str, str]] = {
        "title": "it wants titles by a tool, which the vendor's script does not call",
        "abort: state": "an interrupted run writes nothing after the prompt",
    }

    def configure(self, home: Path, url: str) -> None:
        _write(
            home / ".grok/config.toml",
            f"""
            [models]
            default = "{self.model}"
            [model.{self.model}]
            model = "{self.model}"
            base_url = "{url}/v1"
            env_key = "FAKE_API_KEY"
            context_window = {self.window}
            [features]
            telemetry = false
            """,
        )

    def environment(self, _url: str) -> dict[str, str]:
        return {"FAKE_API_KEY": "dummy", "GROK_DISABLE_AUTOUPDATER": "1"}

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["--always-approve", *(["-c"] if resume else []), "-p", prompt]

    def shell(self, command: str) -> ToolUse:
        task = {"command": command, "description": "Runs a command"}
        return ToolUse("run_terminal_command", task)

    def subagent(self, prompt: str) -> ToolUse:
        task = {"description": "Look around", "prompt": prompt, "background": False}
        return ToolUse("spawn_subagent", task)


class OpenClaw(Agent):
    """OpenClaw without its gateway. Its workspace is the project."""

    name = "openclaw"
    package = Package("npm", "openclaw", "2026.9.6", "openclaw")
    cannot: ClassVar[dict[str, str]] = {
        "subagent": "it starts sub-agents only with its gateway",
        "compaction": "it counts the texts itself, and the texts in the test are short",
    }
    unrecorded_kinds: ClassVar[dict[Kind, str]] = {"other": "title calls are in no file"}
    limits: ClassVar[dict[str, str]] = {
        "abort: state": "an interrupted run writes nothing after the prompt"
    }

    def configure(self, home: Path, url: str) -> None:
        model = {"id": self.model, "name": self.model, "contextWindow": self.window}
        model |= {"maxTokens": 32_000, "input": ["text"]}
        provider = {
            "baseUrl": f"{url}/v1",
            "api": "openai-completions",
            "apiKey": "dummy",
            "models": [model],
        }
        defaults = {
            "workspace": str(home / "work/project"),
            "skipBootstrap": True,
            "model": {"primary": f"fake/{self.model}"},
        }
        settings = {
            "agents": {"defaults": defaults},
            "models": {"providers": {"fake": provider}},
            "plugins": {"slots": {"memory": "none"}},
            "tools": {"profile": "coding", "toolSearch": False},
        }
        _write(home / ".openclaw/openclaw.json", json.dumps(settings))

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        if not resume:
            self._session = re.sub(r"\W+", "-", prompt[:20].lower())
        return ["agent", "--local", "--session-key", f"agent:main:{self._session}", "-m", prompt]

    def shell(self, command: str) -> ToolUse:
        return ToolUse("exec", {"command": command})

    def subagent(self, prompt: str) -> ToolUse:
        return ToolUse("sessions_spawn", {"task": prompt})


class Cecli(Aider):
    """The fork of aider that is still developed."""

    name = "cecli"
    package = Package("pypi", "cecli-dev", "1.10.0", "cecli")
    band_percent = 5
    cannot: ClassVar[dict[str, str]] = Aider.cannot | {
        "refusal_and_retry": "it ends with 1 after a refused request, even if a retry succeeds"
    }

    def configure(self, home: Path, url: str) -> None:
        super().configure(home, url)
        (home / ".aider.conf.yml").rename(home / ".cecli.conf.yml")

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        return ["--model", f"openai/{self.model}", *super().arguments(prompt, resume=resume)]


_AGENTS = (
    Codex(),
    CodexNewModel(),
    OpenCode(),
    Kilo(),
    Pi(),
    CopilotCli(),
    QwenCode(),
    GeminiCli(),
    KimiCode(),
    ClaudeCode(),
    Continue(),
    Cline(),
    Vibe(),
    Aider(),
    OhMyPi(),
    Gptme(),
    Hermes(),
    OpenHands(),
    Cecli(),
    OpenClaw(),
    GrokBuild(),
)
AGENTS: dict[str, Agent] = {agent.id: agent for agent in _AGENTS}


def mcp_agents() -> list[Agent]:
    """Return the agents that the tests connect to our MCP server."""
    wanted = (Codex, OpenCode, GeminiCli, QwenCode)
    return [agent() for agent in wanted]


def chosen_agents(names: list[str]) -> list[Agent]:
    """Return the agents with these names.

    Without names, return the agents that CI tests. The name `all` stands for all agents.
    """
    if not names:
        return [agent for agent in AGENTS.values() if agent.in_ci]
    return list(AGENTS.values()) if names == ["all"] else [AGENTS[name] for name in names]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(inspect.cleandoc(text) + "\n")
