"""Runs `context/fit` on many random conversations: `python -m tests.fuzz.context_soak`.

For each conversation, a plan is computed and applied. Repeating this must change nothing, and undo
must restore the conversation. All checks are in `tests/unit/test_context_fit_properties.py`. The
default is 100,000 conversations. If one fails, Hypothesis prints it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.conversations import Case, cases
from tests.unit.test_context_fit_properties import fit_case

CHUNK = 5_000
"""The number of conversations per Hypothesis run. More would need too much memory."""


def main() -> int:
    """Run the checks and print conversation statistics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    seen: Counter[str] = Counter()
    started = time.monotonic()
    for number, done in enumerate(range(0, args.conversations, CHUNK)):
        soak(min(CHUNK, args.conversations - done), args.seed + number, seen)
        print(f"{seen['conversations']:,} conversations", file=sys.stderr)
    seconds = time.monotonic() - started
    print(*(f"{number:>10,} {what}" for what, number in seen.items()), sep="\n")
    print(f"no check failed, {seconds:.0f} s")
    return 0


def soak(number: int, from_seed: int, seen: Counter[str]) -> None:
    """Check `number` random conversations, and add statistics to `seen`."""

    @settings(
        max_examples=number, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @seed(from_seed)
    @given(cases)
    def check_all(case: Case) -> None:
        plan = fit_case(case)
        seen["conversations"] += 1
        seen["turns"] += len(case.turns)
        seen["turns removed"] += len(plan.removed)
        seen["plans that fit"] += plan.fits
        seen["summaries"] += plan.summary is not None
        seen.update(f"removed as {removal.reason}" for removal in plan.removed)

    check_all()


if __name__ == "__main__":
    sys.exit(main())
