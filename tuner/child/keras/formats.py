"""Exchanges the number format of a model's layers between two steps, as the global policy would have set it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from .model import POLICIES, PolicyWatch
from .types import Layer, Model, Policy

UNSWITCHED = "fp16"
"""Its loss would have to be scaled by what the model was compiled with."""


class Formats:
    """Of the layers that were made with the policy that they had found; one that the script gives a layer stays."""

    def __init__(self, policies: PolicyWatch, model: Model) -> None:
        self._policies = policies
        self._model = model
        self._kept: list[tuple[Layer, Policy]] = []

    def refusal(self, value: object) -> str:
        """Why the layers can't be switched to this precision, or ""."""
        if value == UNSWITCHED:
            return "fp16 scales losses from the first step on"
        if value not in POLICIES:
            return f"Keras has no policy for {value}"
        if self._policies.chosen_by_script:
            return f"the script chooses the policy {self._policies.chosen_by_script} itself"
        if not list(self._defaulted()):
            return "no layer has the format that it found"
        if any(map(self._holds_others, self._defaulted())):
            return "a layer was made from the description of another one, and has its format"
        return ""

    def choose(self, value: object) -> None:
        """Has them compute so."""
        policy = sys.modules["keras"].dtype_policies.DTypePolicy(POLICIES[str(value)])
        self._kept = [(layer, layer._dtype_policy) for layer in self._defaulted()]
        for layer, _ in self._kept:
            layer._dtype_policy = policy

    def restore(self) -> None:
        """As the script has them."""
        for layer, policy in self._kept:
            layer._dtype_policy = policy
        self._kept = []

    def _defaulted(self) -> Iterator[Layer]:
        for layer in self._model._flatten_layers():
            if self._policies.gave(layer._dtype_policy):
                yield layer

    def _holds_others(self, layer: Layer) -> bool:
        """Whether a layer in it is none of these: in a trial of its own it would have been made in that format."""
        if isinstance(layer, sys.modules["keras"].Model):
            return False
        inner = layer._flatten_layers(include_self=False)
        return any(not self._policies.gave(each._dtype_policy) for each in inner)
