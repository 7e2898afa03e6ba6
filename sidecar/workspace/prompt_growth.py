"""Computes how much more agents send with every call than in a git revision, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from sidecar.agents.folders import Places
from sidecar.budgets.check_report import PromptGrowth, UnreadFile
from sidecar.budgets.instruction_findings import choose_agents
from sidecar.config.settings import Settings
from sidecar.cost.prices import Prices, UnitPrices
from sidecar.cost.prompt_file_costs import (
    AgentUsage,
    ChangedCalls,
    ChangePrice,
    UsageProfile,
    models_by_calls,
    price_change,
    price_open_session,
)
from sidecar.counting.count_result import Measure, Method, weakest_method
from sidecar.errors import BadParamsError, SidecarError
from sidecar.project.footprint import Part, find_for_model
from sidecar.project.loading_rules import loading_rules
from sidecar.project.source_files import Contents, SourceFiles
from sidecar.workspace.footprint_report import short_forms, short_path

CountText = Callable[[str, str], Measure]
"""Counts a text for a model."""


class _SentPart(NamedTuple):
    """What is sent of a file, and whether sub-agents send it, too."""

    text: str
    is_repeated: bool


class _Prompt(NamedTuple):
    """What an agent sends with the first call."""

    parts: tuple[_SentPart, ...]
    unread: tuple[Part, ...]
    """The files of which it is unknown what is sent."""
    limits: tuple[str, ...] = ()
    """What was not looked at, because there is too much."""


class _Size(NamedTuple):
    """The size of what an agent sends, in tokens."""

    tokens: int
    repeated: int
    """The part of it that sub-agents also send."""
    method: Method


class _Change(NamedTuple):
    """How what an agent sends with a model has changed."""

    before: _Size
    after: _Size
    new_tokens: int
    """The size of the files that are sent differently now."""

    def of_calls(self, usage: AgentUsage) -> ChangedCalls:
        """Return what the change adds to some calls of this model."""
        added = self.after.tokens - self.before.tokens
        return ChangedCalls(usage, added, self.after.repeated - self.before.repeated)


class KnownUsage(NamedTuple):
    """How agents call models here, and what the calls cost."""

    profile: UsageProfile
    prices: Prices
    is_from_file: bool = False

    def price(self, agent: str, changes: Mapping[str, _Change]) -> ChangePrice | None:
        """Return the price of a change, or None if no calls of the agent are known.

        Args:
            agent: The agent.
            changes: The change by model.
        """
        rules, calls = loading_rules()[agent], [one for one in self.profile.of(agent) if one.calls]
        now = datetime.now(UTC)

        def unit_of(usage: AgentUsage) -> UnitPrices | None:
            tariff = self.prices.tariff(usage.model, usage.provider)
            return None if tariff is None else tariff.prices(now, usage.tier, usage.prompt_tokens)

        if not calls:
            return None
        changed = (changes[usage.model].of_calls(usage) for usage in calls)
        price = price_change(changed, unit_of, self.profile.days)
        # Where it was not measured, it is unknown what happens in an open session.
        if not rules.version or rules.after_change in ("kept", "new"):
            return price
        most = max(calls, key=lambda usage: usage.main.calls)
        appended = changes[most.model].new_tokens if rules.after_change == "appended" else None
        return replace(price, open_session=price_open_session(most, unit_of(most), appended))

    def models(self) -> dict[str, list[str]]:
        """Return the models of each agent, the most frequent first."""
        calls: dict[str, Counter[str]] = {}
        for usage in self.profile.agents:
            calls.setdefault(usage.agent, Counter())[usage.model] += usage.calls
        return {agent: models_by_calls(+counts) for agent, counts in calls.items() if +counts}


def find_usage(root: Path, settings: Settings, file: Path | None = None) -> KnownUsage:
    """Return how agents call models in a project. This function blocks.

    Args:
        root: The project's root folder.
        settings: The project's settings.
        file: The profile to read. By default, `usage-profile.json` of the root folder is read, or
            if there is none, or it is a link out of the folder, the user's ledger.

    Raises:
        BadParamsError: The profile cannot be read.
    """
    from sidecar.config.paths import state_dir
    from sidecar.cost.book import CostBook
    from sidecar.cost.prompt_file_costs import FILE_NAME, UsageProfile, read_profile
    from sidecar.workspace.spending import RECENT, profile_workspace

    book = CostBook(state_dir(), settings.prices)
    try:
        files, own = SourceFiles(), str(root / FILE_NAME)
        if file is None and files.exists(own) and files.is_inside(own, (str(root),)):
            file = Path(own)
        if file is not None:
            return KnownUsage(read_profile(file), book.prices, is_from_file=True)
        return KnownUsage(profile_workspace(book, root), book.prices)
    except ValueError as error:
        raise BadParamsError(str(error)) from error
    except SidecarError:  # the ledger is unreadable, which `token-sidecar cost` reports
        return KnownUsage(UsageProfile(days=RECENT.days), book.prices)
    finally:
        book.close()


def find_prompt_growth(
    root: Path,
    old: Mapping[str, Contents],
    base: str,
    settings: Settings,
    count: CountText,
    default_model: str,
    file: Path | None = None,
) -> tuple[PromptGrowth, ...]:
    """Return how much more each agent sends than in a revision, unknown and large growth first.

    If calls of any agent are known, only agents with calls are included, else those that findings
    about instructions are for.

    Args:
        root: The folder where the agents start, in a git repository.
        old: What the changed files contained in a revision, from `read_old_files`.
        base: The revision.
        settings: The project's settings.
        count: Counts texts.
        default_model: The model for which files are counted, and agents without known calls.
        file: See `find_usage`.

    Raises:
        BadParamsError: The profile cannot be read.
    """
    if not old or not settings.agents.enabled:
        return ()
    usage = find_usage(root, settings, file)
    models, known = usage.models(), loading_rules()
    places, before, now = Places.of(settings.agents), SourceFiles(old), SourceFiles()
    folders = short_forms(root, root, places.home)
    found = []
    agents = [agent for agent in models if agent in known]
    for agent in agents or choose_agents(root, settings, places):
        prompts = {
            model: [_find_prompt(agent, root, places, files, model) for files in (before, now)]
            for model in models.get(agent, [default_model])
        }
        limits = (note for pair in prompts.values() for one in pair[::-1] for note in one.limits)
        limit = next(limits, "")
        if not limit and not any(_has_changed(one, two, old) for one, two in prompts.values()):
            continue
        model = next(iter(prompts))
        unread = tuple(
            UnreadFile(short_path(part.path, folders), part.reason, is_old)
            for one, is_old in zip(prompts[model], (True, False), strict=True)
            for part in one.unread
        )[::-1]
        is_unknown = bool(unread or limit)
        changes = {
            model: _measure_change(
                () if is_unknown else one.parts, () if is_unknown else two.parts, model, count
            )
            for model, (one, two) in prompts.items()
        }
        old_size, size, _ = changes[model]
        growth = PromptGrowth(
            agent=agent,
            title=known[agent].title,
            model=model,
            before=old_size.tokens,
            tokens=size.tokens,
            method=weakest_method((old_size.method, size.method)),
            base=base,
            days=usage.profile.days,
            price=None if is_unknown else usage.price(agent, changes),
            has_profile=usage.is_from_file,
            is_other_model=model != default_model,
            after_change=known[agent].after_change,
            unread=unread,
            limit=limit,
        )
        if is_unknown or any(change.before != change.after for change in changes.values()):
            found.append(growth)
    return tuple(sorted(found, key=lambda growth: (not growth.is_unknown, -growth.added)))


def _find_prompt(agent: str, root: Path, places: Places, files: SourceFiles, model: str) -> _Prompt:
    footprint = find_for_model(agent, root, places, files, model)
    parts = footprint.parts
    return _Prompt(
        tuple(_SentPart(one.text, one.is_repeated_by_sub_agents) for one in parts if one.is_sent),
        tuple(one for one in parts if one.is_unread),
        footprint.limits,
    )


def _has_changed(before: _Prompt, now: _Prompt, old: Container[str]) -> bool:
    """Return whether what an agent sends has changed, or a file of unknown contents has."""
    return before != now or any(part.path in old for part in now.unread)


def _measure_change(
    before: Sequence[_SentPart], now: Sequence[_SentPart], model: str, count: CountText
) -> _Change:
    known = {part.text for part in before}
    new = (count(part.text, model).tokens for part in now if part.text not in known)
    return _Change(_measure(before, model, count), _measure(now, model, count), sum(new))


def _measure(parts: Sequence[_SentPart], model: str, count: CountText) -> _Size:
    """Return the size of all parts, with the least reliable of the methods."""
    counts = [count(part.text, model) for part in parts]
    repeated = (one.tokens for one, part in zip(counts, parts, strict=True) if part.is_repeated)
    method = weakest_method(one.method for one in counts)
    return _Size(sum(one.tokens for one in counts), sum(repeated), method)
