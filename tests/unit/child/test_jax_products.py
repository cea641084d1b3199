"""The knob "precision" of JAX's matrix products, on the processor: which are asked for it, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.jax_here import jax
from support.jax_trial import watched

from tuner.child.devices.cuda import CudaDevice
from tuner.child.jax import products

jnp, lax = jax.numpy, jax.lax
FLOAT32 = jnp.full((4, 4), 1 + 2.0**-12)
WHOLE = jnp.full((4, 4), 1_000_003)

Loss = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def _traces() -> Iterator[None]:
    """JAX keeps those of its own functions, which a process has for one config only."""
    jax.clear_caches()
    yield
    jax.clear_caches()


class Card(CudaDevice):
    """Says of itself what an H100 does."""

    def jax_precisions(self, jax: Any) -> list[str]:
        return ["fp32", "tf32", "bf16"]


def train(loss_of: Loss, params: Any = FLOAT32, x: Any = FLOAT32) -> Any:
    """Three steps of a compiled loop; a graph that the loop doesn't train with stands before it."""
    jax.jit(lambda a: jnp.dot(a, a, precision="highest"))(x)

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        return params - 0.01 * gradients, loss

    for _ in range(3):
        params, _ = update(params, x)
    return params


def plain(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params).mean()


def exact(params: Any, x: Any) -> Any:
    return jnp.dot(x, params, precision=lax.Precision.HIGHEST).mean()


def under_a_setting(params: Any, x: Any) -> Any:
    with jax.default_matmul_precision("highest"):
        return plain(params, x)


def convolved(params: Any, x: Any) -> Any:
    return lax.conv(x[None, None], params[None, None], (1, 1), "SAME").mean()


def in_bf16(params: Any, x: Any) -> Any:
    return plain(params.astype(jnp.bfloat16), x.astype(jnp.bfloat16)).astype(jnp.float32)


def in_a_loop(params: Any, x: Any) -> Any:
    return lax.scan(lambda x, _: (plain(params, x) + x, None), x, None, length=3)[0].mean()


def partly_exact(params: Any, x: Any) -> Any:
    return plain(params, x) + exact(params, x)


def written(loss_of: Loss) -> tuple[object, str]:
    """The script's own value, and why the knob is left out."""
    with watched(device="cuda:0") as trial:
        trial.session.device = Card("cuda:0")
        trial.adapter._products.install()
        train(loss_of)
        facts = trial.end()
    return facts["as_written"].get("precision"), facts["left_out"].get("precision", "")


@pytest.mark.parametrize(
    ("loss_of", "told"),
    [
        (plain, ("tf32", "")),
        (in_a_loop, ("tf32", "")),
        (partly_exact, ("tf32", "")),
        (exact, ("fp32", products.BY_ITSELF)),
        (under_a_setting, ("fp32", products.BY_ITSELF)),
        (convolved, (None, products.NO_MATRIX_PRODUCT)),
        (in_bf16, (None, products.NO_PRODUCT)),
    ],
)  # fmt: skip
def test_what_the_script_asks_for_is_told(loss_of: Loss, told: tuple[object, str]) -> None:
    assert written(loss_of) == told


@pytest.mark.parametrize(
    ("loss_of", "value"),
    [
        (plain, "fp32"), (plain, "tf32"), (plain, "bf16"), (in_a_loop, "tf32"), (partly_exact, "bf16"),
        *(pytest.param(in_a_loop, value, marks=pytest.mark.slow) for value in ("fp32", "bf16")),
        *(pytest.param(partly_exact, value, marks=pytest.mark.slow) for value in ("fp32", "tf32")),
    ],
)  # fmt: skip
def test_the_products_of_a_step_are_asked_for_what_the_config_says(loss_of: Loss, value: str) -> None:
    with watched(config={"precision": value}, knowledge={"framework": "jax"}) as trial:
        train(loss_of)
        trial.end()
        record = trial.log.of("knob")[-1]
    assert record["evidence"] == "verified" and record["observed"] == value, record
    exact_ones = 3 if loss_of is partly_exact and value != "fp32" else 0
    assert record["sites_changed"] >= 2
    assert record["sites_seen"] - record["sites_changed"] == pytest.approx(exact_ones, abs=1)


@pytest.mark.parametrize(
    ("loss_of", "evidence", "reason"),
    [
        (exact, "contradicted", products.BY_ITSELF),
        (under_a_setting, "contradicted", products.BY_ITSELF),
        (convolved, "not applicable", products.NO_MATRIX_PRODUCT),
        (in_bf16, "not applicable", products.NO_PRODUCT),
    ],
)
def test_what_the_script_says_itself_stays(loss_of: Loss, evidence: str, reason: str) -> None:
    with watched(config={"precision": "bf16"}, knowledge={"framework": "jax"}) as trial:
        train(loss_of)
        trial.end()
        assert trial.evidence("precision") == (evidence, reason)


def test_the_setting_of_a_whole_script_stays() -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        assert written(plain) == ("fp32", products.BY_ITSELF)
    finally:
        jax.config.update("jax_default_matmul_precision", None)


def test_only_products_of_float32_are_rounded() -> None:
    """By JAX's own setting whole numbers would be, too."""
    with watched(config={"precision": "bf16"}, knowledge={"framework": "jax"}):
        text = jax.jit(lambda a: jnp.dot(a, a)).lower(FLOAT32).as_text()
        assert "lhs_precision_type = bf16" in text and "bf16" not in str(jax.config.jax_default_matmul_precision)
        assert int(jnp.dot(WHOLE, jnp.eye(4, dtype=int))[0, 0]) == 1_000_003
        mixed = jnp.dot(FLOAT32.astype(jnp.float16), FLOAT32.astype(jnp.float16))
        assert mixed.dtype == jnp.float16


def test_another_frameworks_precision_is_its_own() -> None:
    """Keras' layers have dtype policies."""
    with watched(config={"precision": "bf16"}, knowledge={"framework": "keras"}):
        assert "bf16" not in jax.jit(lambda a: jnp.dot(a, a) + 2).lower(jnp.ones((3, 3))).as_text()


def test_gradients_on_values_are_seen_and_asked_for_it() -> None:
    with watched(config={"precision": "bf16"}, knowledge={"framework": "jax"}) as trial:
        params = jnp.ones((5, 5))
        for _ in range(3):
            params = params - 0.01 * jax.grad(plain)(params, jnp.ones((7, 5)))
        trial.end()
        assert trial.evidence("precision") == ("verified", "")


@pytest.mark.slow
def test_a_product_beside_steps_that_are_not_compiled_verifies_nothing() -> None:
    """What the script prepares its data with, say: the steps have no product of float32."""
    with watched(config={"precision": "bf16"}, knowledge={"framework": "jax"}) as trial:
        params = jnp.ones((6, 6)) @ jnp.ones((6, 6))
        for _ in range(3):
            params = params - 0.01 * jax.grad(in_bf16)(params, jnp.ones((7, 6)))
        trial.end()
        assert trial.evidence("precision") == ("not applicable", products.NO_PRODUCT)


def test_a_fault_of_ours_keeps_nothing_from_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "asked_in", lambda *given: 1 / 0)
    with watched(config={"precision": "bf16"}, knowledge={"framework": "jax"}) as trial:
        train(plain)
        trial.end()
        assert trial.evidence("precision") == ("unverifiable", products.UNSEEN)
        assert any("products aren't seen" in note["text"] for note in trial.log.of("note"))


@pytest.mark.parametrize(("capability", "offered"), [("9.0", 3), ("8.0", 3), ("7.5", 1), ("gfx90a", 1), (None, 1)])
def test_a_card_is_asked_what_it_computes_in(capability: str | None, offered: int) -> None:
    class Jax:
        @staticmethod
        def local_devices() -> list[Any]:
            return [type("Device", (), {"compute_capability": capability} if capability else {})]

    assert len(CudaDevice("cuda:0").jax_precisions(Jax)) == offered  # type: ignore[arg-type]  # stands for the module

