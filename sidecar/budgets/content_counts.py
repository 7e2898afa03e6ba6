"""Counts text for any model, and caches the counts by content.

`check` and `footprint` share this cache, so a file that both count is tokenized once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sidecar.budgets.check_cache import ContentCounts, file_stamps
from sidecar.counting.exact_engines import names
from sidecar.counting.open_documents import Snapshot

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.counting.count_result import Measure
    from sidecar.counting.tokenizer_choice import ChooseCounter, CounterChoice
    from sidecar.counting.tokenizer_interface import Tokenizer


class ContentCounter:
    """Counts text. Counts by a local tokenizer are cached."""

    def __init__(self, settings: Settings, contents: ContentCounts, choose: ChooseCounter) -> None:
        """Create a counter.

        Args:
            settings: The project's settings.
            contents: The cached counts, which are updated.
            choose: Chooses the counter for a text and a model.
        """
        self._contents, self._choose = contents, choose
        self._stamps = file_stamps(settings)
        self.uses_calibration = False
        """Whether any count depends on the calibration."""
        self.has_new = False
        """Whether any count was added to the cache."""

    def measure(self, text: str, model: str, digest: bytes = b"") -> Measure:
        """Count text. The count is cached if a digest is given."""
        return self.choose_counter(Snapshot(text=text), model, digest).measure(text)

    def choose_counter(self, snapshot: Snapshot, model: str, digest: bytes) -> CounterChoice:
        """Choose how to count text. The result includes the count of the whole text."""
        choice = self._choose(snapshot, model)
        if choice.whole is not None:
            return choice
        tokenizer, base = choice.tokenizer, choice.tokenizer.base
        self.uses_calibration = self.uses_calibration or tokenizer.method != "exact"
        counts = self._contents.setdefault(digest, {}) if digest else {}
        key = self._count_key(base)
        if key not in counts:
            counts[key] = base.count(snapshot.text)
            self.has_new = True
        return choice._replace(whole=tokenizer.measure_base(counts[key], snapshot.sample))

    def count_new(self, texts: Iterable[tuple[bytes, str]], model: str) -> None:
        """Count all uncached texts in one call, so that threads rarely wait for each other.

        Args:
            texts: Each text, after its digest.
            model: The model.
        """
        tokenizer = self._choose(Snapshot(text=""), model).tokenizer.base
        key = self._count_key(tokenizer)
        new = [one for one in texts if key not in self._contents.get(one[0], ())]
        counts = tokenizer.count_many([text for _, text in new])
        for (digest, _), tokens in zip(new, counts, strict=True):
            self._contents.setdefault(digest, {})[key] = tokens
            self.has_new = True

    def _count_key(self, tokenizer: Tokenizer) -> str:
        return tokenizer.name if tokenizer.name in names() else f"{tokenizer.name}{self._stamps}"
