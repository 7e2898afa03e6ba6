"""Computes how much more agents send with every call than in a git revision, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sidecar.agents.folders import Places
from sidecar.budgets.check_report import PromptGrowth
from sidecar.budgets.check_run import SentFile
from sidecar.cost.change_price import ChangePrice, price_change
from sidecar.counting.count_result import METHODS, Measure
from sidecar.errors import BadParamsError, SidecarError
from sidecar.project.git import find_top
from sidecar.project.loading_rules import loading_rules
from sidecar.project.source_files import SourceFiles
from sidecar.workspace.footprints import find_for_model

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.cost.prices import Prices
    from sidecar.cost.usage_profile import AgentUsage, UsageProfile
    from sidecar.models.price_list import UnitPrices

CountText = Callable[[str, str], Measure]
"""Counts a text for a model."""


class KnownUsage(NamedTuple):
    """How agents call models here, and what the calls cost."""

    profile: UsageProfile
    prices: Prices

    def price(self, added: int, calls: Iterable[AgentUsage]) -> ChangePrice:
        """Return the price of adding tokens to the first tokens of these calls."""
        now = datetime.now(UTC)

        def unit_of(usage: AgentUsage) -> UnitPrices | None:
            tariff = self.prices.tariff(usage.model, usage.provider)
            return None if tariff is None else tariff.prices(now, usage.tier, usage.prompt_tokens)

        return price_change(added, calls, unit_of, self.profile.days)

    def models(self) -> dict[str, str]:
        """Return the most frequent model of each agent."""
        return {usage.agent: usage.model for usage in reversed(self.profile.agents)}


def find_usage(root: Path, settings: Settings, file: Path | None = None) -> KnownUsage:
    """Return how agents call models in a project. This function blocks.

    Args:
        root: The project's root folder.
        settings: The project's settings.
        file: The profile to read. By default, `usage-profile.json` of the root folder is read, or
            if there is none, the user's ledger.

    Raises:
        BadParamsError: The profile cannot be read.
    """
    from sidecar.config.paths import state_dir
    from sidecar.cost.book import CostBook
    from sidecar.cost.usage_profile import FILE_NAME, UsageProfile, read_profile
    from sidecar.workspace.spending import RECENT, profile_workspace

    book = CostBook(state_dir(), settings.prices)
    try:
        if file is not None or (root / FILE_NAME).is_file():
            return KnownUsage(read_profile(file or root / FILE_NAME), book.prices)
        return KnownUsage(profile_workspace(book, root), book.prices)
    except ValueError as error:
        raise BadParamsError(str(error)) from error
    except SidecarError:  # the ledger is unreadable, which `token-sidecar cost` reports
        return KnownUsage(UsageProfile(days=RECENT.days), book.prices)
    finally:
        book.close()


def find_prompt_growth(
    root: Path,
    old: Mapping[str, bytes | None],
    base: str,
    settings: Settings,
    count: CountText,
    file: Path | None = None,
) -> tuple[PromptGrowth, ...]:
    """Return how much more each agent sends than in a revision, largest growth first.

    If calls of any agent are known, only agents with calls are included.

    Args:
        root: The folder where the agents start, in a git repository.
        old: What the changed files contained in a revision, from `read_old_files`.
        base: The revision.
        settings: The project's settings.
        count: Counts texts.
        file: See `find_usage`.

    Raises:
        BadParamsError: The profile cannot be read.
    """
    if not old or not settings.agents.enabled:
        return ()
    usage = find_usage(root, settings, file)
    models, known = usage.models(), loading_rules()
    places, before, now = Places.of(settings.agents), SourceFiles(old), SourceFiles()
    found = []
    for agent in models or known:
        model = models.get(agent, settings.model)
        old_texts, texts = (
            _texts_of(agent, root, places, files, model, settings) if agent in known else []
            for files in (before, now)
        )
        if old_texts == texts:
            continue
        old_size, size = (
            _add_up([count(text, model) for text in some]) for some in (old_texts, texts)
        )
        calls = usage.profile.of(agent)
        added = size.tokens - old_size.tokens
        growth = PromptGrowth(
            agent=agent,
            title=known[agent].title,
            model=model,
            before=old_size.tokens,
            tokens=size.tokens,
            method=max(old_size.method, size.method, key=METHODS.index),
            base=base,
            days=usage.profile.days,
            price=usage.price(added, calls) if calls else None,
        )
        if added:
            found.append(growth)
    return tuple(sorted(found, key=lambda growth: -growth.added))


def find_sent_files(
    root: Path,
    settings: Settings,
    listed: Container[str],
    old: Mapping[str, bytes | None] | None,
    agent: str,
) -> list[SentFile]:
    """Return what an agent sends of a repository's files with every call.

    Args:
        root: The folder where the agent starts.
        settings: The project's settings.
        listed: The project's files, relative to the root folder. Others, which git ignores, are
            left out, and so are the user's files.
        old: What the changed files contained in a revision, or None without a revision.
        agent: The agent.
    """
    places = Places.of(settings.agents)
    top = str(find_top(root) or root)
    sent = [
        [part for part in footprint.parts if part.text and not part.is_own]
        for footprint in (
            find_for_model(agent, root, places, SourceFiles(replaced), settings.model, settings)
            for replaced in (None, *([] if old is None else [old]))
        )
    ]
    old_texts = {part.path: part.text for parts in sent[1:] for part in parts}
    found = []
    for part in sent[0]:
        name = Path(os.path.relpath(part.path, root)).as_posix()
        is_above = name.startswith("../") and part.path.startswith(os.path.join(top, ""))
        if name in listed or is_above:
            old_text = None if old is None else old_texts.get(part.path, "")
            found.append(SentFile(name, part.text, old_text))
    return found


def _texts_of(
    agent: str, root: Path, places: Places, files: SourceFiles, model: str, settings: Settings
) -> list[str]:
    """Return what an agent sends of each file with the first call."""
    footprint = find_for_model(agent, root, places, files, model, settings)
    return [part.text for part in footprint.parts if part.text]


def _add_up(sizes: Sequence[Measure]) -> Measure:
    """Return the sum of counts, with the least reliable of their methods."""
    methods = (size.method for size in sizes)
    method = max(methods, key=METHODS.index, default=METHODS[0])
    return Measure(sum(size.tokens for size in sizes), method, "")
