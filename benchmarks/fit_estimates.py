"""Fits the estimates and evaluates them: `python -m benchmarks fit-estimates`.

Weights and bands are fitted to half of the documents in `benchmarks.fitting.corpus`, and bands also
to half of the sources in `benchmarks.fitting.unseen`. They are written to
`sidecar/counting/estimates.json`. The other documents evaluate them. The first run creates a
separate environment.
"""

from __future__ import annotations

import sys

from benchmarks.fitting.environment import PYTHON, ensure, run_inside


def run() -> None:
    """Fit the estimates, write the table, and print its errors."""
    ensure()
    run_inside("benchmarks.fit_estimates")


if __name__ == "__main__" and sys.executable == str(PYTHON):
    from benchmarks.fitting.fit import fit_and_judge

    fit_and_judge()
