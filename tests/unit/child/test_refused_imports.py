"""Libraries that an import has initialised are forked by no fork server."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tuner.child import fork_server


def context(*, initialized: bool = False, devices: list[str] | None = None) -> SimpleNamespace:
    """The module of TensorFlow's context, which has been asked for."""
    made = SimpleNamespace(_initialized=initialized, _physical_devices=devices)
    return SimpleNamespace(context_safe=lambda: made)


def keras(backend: str) -> SimpleNamespace:
    return SimpleNamespace(backend=SimpleNamespace(backend=lambda: backend))


@pytest.mark.parametrize(
    ("name", "module", "why"),
    [
        ("tensorflow.python.eager.context", context(), ""),
        ("tensorflow.python.eager.context", SimpleNamespace(context_safe=lambda: None), ""),
        ("tensorflow.python.eager.context", context(initialized=True), "an import initialised TensorFlow"),
        ("tensorflow.python.eager.context", context(devices=["CPU:0"]), "an import initialised TensorFlow"),
        ("jax._src.xla_bridge", SimpleNamespace(_backends={}), ""),
        ("jax._src.xla_bridge", SimpleNamespace(_backends={"cpu": 1}), "an import initialised JAX"),
        ("keras", keras("tensorflow"), ""),
        ("keras", keras("jax"), "Keras computes with jax"),
        ("keras", keras("torch"), "Keras computes with torch"),
    ],
)
def test_what_is_initialised_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, module: SimpleNamespace, why: str
) -> None:
    for each in ("tensorflow.python.eager.context", "jax._src.xla_bridge", "keras"):
        monkeypatch.delitem(sys.modules, each, raising=False)
    monkeypatch.setitem(sys.modules, name, module)
    assert fork_server._why_not_with_keras() == why
