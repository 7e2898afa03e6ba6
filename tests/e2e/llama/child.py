"""Runs a real llama.cpp server until standard input is closed.

`python -m tests.e2e.llama.child MODEL PORT [--alias A] [--context N] [--slots N] [--key K]
[--sleep-after S]` prints
the server's address. Port 0 selects a free port.
"""

from __future__ import annotations

import argparse
import sys

import xllamacpp


def main() -> None:
    options = _options()
    server = xllamacpp.Server(_parameters(options))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--alias", default="tiny")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--key")
    parser.add_argument("--sleep-after", type=int, default=-1)
    return parser.parse_args()


def _parameters(options: argparse.Namespace) -> xllamacpp.CommonParams:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model
    parameters.model_alias = {options.alias}
    parameters.n_ctx, parameters.n_parallel = options.context, options.slots
    parameters.hostnames, parameters.port = ["127.0.0.1"], options.port
    parameters.warmup, parameters.verbosity = False, 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.endpoint_props = parameters.endpoint_slots = True
    parameters.sleep_idle_seconds = options.sleep_after
    if options.key:
        parameters.api_keys = [options.key]
    return parameters


if __name__ == "__main__":
    main()
