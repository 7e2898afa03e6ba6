"""Fits the estimates, and judges them: `python -m benchmarks fit-estimates`.

Weights and bands come from one half of the documents of `benchmarks.fitting.corpus`, bands also from
half of the sources of `benchmarks.fitting.unseen`, and are written to `sidecar/counting/estimates.json`.
What is printed was measured on the others, which nothing is ever fitted to. The work is done in an environment of its own, which is made the first time.
"""

from __future__ import annotations

import sys

from benchmarks.fitting.environment import PYTHON, ensure, run_inside


def run() -> None:
    """Fit, write the table, and print how far it is off."""
    ensure()
    run_inside("benchmarks.fit_estimates")


if __name__ == "__main__" and sys.executable == str(PYTHON):
    from benchmarks.fitting.fit import fit_and_judge

    fit_and_judge()
