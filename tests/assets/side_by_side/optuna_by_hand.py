"""Looks for a faster setting with Optuna: every trial trains for a few seconds, in a process of its own.

    python optuna_by_hand.py digits --minutes 5 [--keep-batch]
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from typing import Any

import optuna

MOST_S = 120.0
"""A trial that takes longer has failed, as in a study."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", help="the module with the script's parts")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--keep-batch", action="store_true")
    parser.add_argument("--trial", type=json.loads, help="times this setting alone")
    given = parser.parse_args()
    parts = importlib.import_module(given.parts)
    timed = importlib.import_module(parts.TIMED_BY)
    if given.trial:
        print(timed.samples_per_second(parts, given.trial))
        return
    space = {name: values[:1] if given.keep_batch and name == "batch_size" else values
             for name, values in timed.space(parts).items()}  # fmt: skip
    until = time.monotonic() + 60 * given.minutes

    def objective(trial: optuna.Trial) -> float:
        options = {name: trial.suggest_categorical(name, values) for name, values in space.items()}
        command = [sys.executable, __file__, given.parts, "--trial", json.dumps(options)]
        most_s = max(1.0, min(MOST_S, until - time.monotonic()))
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=most_s, check=True)
        except subprocess.TimeoutExpired:
            if most_s < MOST_S:
                raise optuna.TrialPruned from None  # the time is up: that says nothing of the setting
            return 0.0
        except subprocess.CalledProcessError:
            return 0.0
        return float(done.stdout.split()[-1])

    def tell(study: optuna.Study, trial: Any) -> None:
        if all(each.value is None for each in study.trials):
            return
        taken = [each.duration.total_seconds() for each in study.trials if each.duration is not None]
        failures = sum(each.value == 0.0 for each in study.trials)
        config = {name: value for name, value in study.best_params.items() if value != space[name][0]}
        if config.get("num_workers"):
            config["persistent_workers"] = True
        print("answer:", json.dumps({"config": config, "attempts": len(taken), "failures": failures}), flush=True)
        if time.monotonic() + sorted(taken)[len(taken) // 2] > until:
            study.stop()

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial({name: values[0] for name, values in space.items()})
    study.optimize(objective, timeout=60 * given.minutes, callbacks=[tell])


if __name__ == "__main__":
    main()
