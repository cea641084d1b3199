"""Loops of JAX on four devices of one processor, each a trial in this very process; prints what each was taken for.

A program of its own: XLA_FLAGS say how many devices there are before JAX's first operation.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from support.jax_here import jax
from support.jax_trial import batches, descend, loss_of, watched, weights
from tuner.child import session
from tuner.child.session import StopTrial

DEVICES, SIZE, STEPS = 4, 20, 30
jnp, lax = jax.numpy, jax.lax
Losses = Iterator[float]
Batch = tuple[Any, Any]


def update(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss


def averaged(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The same on each of several devices."""
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, lax.pmean(gradients, "data")), lax.pmean(loss, "data")


def mesh() -> Mesh:
    return Mesh(numpy.array(jax.devices()), ("data",))


def over(*axes: str | None) -> NamedSharding:
    return NamedSharding(mesh(), P(*axes))


def split(batch: Batch) -> list[Any]:
    """With a dimension in front, for the devices."""
    return [part.reshape(DEVICES, -1, *part.shape[1:]) for part in batch]


def whole_batches() -> Iterator[Batch]:
    """All but each epoch's last ones are whole: 240 samples hold 11 of 20 and a shorter one of 12, say."""
    for number, (x, y) in enumerate(batches(SIZE, STEPS)):
        rows = SIZE if number % 7 < 6 else 12
        yield x[:rows], y[:rows]


# Loops: each is given a batch at a time, and gives the step's loss.


def sharded() -> Callable[[Batch], Any]:
    step, params = jax.jit(update), jax.device_put(weights(), over())

    def train(batch: Batch) -> Any:
        nonlocal params
        params, loss = step(params, *jax.device_put(batch, over("data")))
        return loss

    return train


def by_in_shardings() -> Callable[[Batch], Any]:
    step, params = jax.jit(update, in_shardings=(over(), over("data"), over("data"))), weights()

    def train(batch: Batch) -> Any:
        nonlocal params
        params, loss = step(params, *batch)
        return loss

    return train


def parameters_in_shards() -> Callable[[Batch], Any]:
    def loss_of_wide(params: Any, x: Any, y: Any) -> Any:
        return ((jnp.tanh(x @ params["w"]).sum(1) - y) ** 2).mean()

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of_wide)(params, x, y)
        return descend(params, gradients), loss

    params = jax.device_put({"w": jnp.full((4, 16), 0.1)}, over(None, "data"))

    def train(batch: Batch) -> Any:
        nonlocal params
        params, loss = step(params, *jax.device_put(batch, over("data")))
        return loss

    return train


def over_shards(*, compiled: bool, gradients: bool = False) -> Callable[[Batch], Any]:
    specs = {"mesh": mesh(), "in_specs": (P(), P("data"), P("data")), "out_specs": (P(), P())}
    params = weights()
    if gradients:

        def of_shard(params: Any, x: Any, y: Any) -> Any:
            return lax.pmean(jax.value_and_grad(loss_of)(params, x, y), "data")

        gradient = jax.jit(jax.shard_map(of_shard, **specs))
    step = jax.shard_map(averaged, **specs)
    step = jax.jit(step) if compiled else step

    def train(batch: Batch) -> Any:
        nonlocal params
        if gradients:
            loss, found = gradient(params, *batch)
            params = descend(params, found)
        else:
            params, loss = step(params, *jax.device_put(batch, over("data")))
        return loss

    return train


def over_shards_of_older() -> Callable[[Batch], Any]:
    from jax.experimental.shard_map import shard_map

    specs = {"mesh": mesh(), "in_specs": (P(), P("data"), P("data")), "out_specs": (P(), P())}
    step, params = jax.jit(shard_map(averaged, **specs)), weights()

    def train(batch: Batch) -> Any:
        nonlocal params
        params, loss = step(params, *batch)
        return loss

    return train


def mapped(axes: Any, *, named: bool = False) -> Callable[[Batch], Any]:
    params = weights()
    if axes == 0:
        params = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * DEVICES), params)
    if named:

        def of_batch(params: Any, batch: Any) -> Any:
            return averaged(params, batch["x"], batch["y"])

        step = jax.pmap(of_batch, axis_name="data", donate_argnums=0)
    else:
        out_axes = 0 if axes == 0 else (None, 0)
        step = jax.pmap(averaged, axis_name="data", in_axes=axes, out_axes=out_axes)

    def train(batch: Batch) -> Any:
        nonlocal params
        x, y = split(batch)
        params, loss = step(params, {"x": x, "y": y}) if named else step(params, x, y)
        return loss

    return train


def one_array(*, shards: bool) -> Callable[[Batch], Any]:
    """All weights in one array: none is as small as what a device has of it, or as its part of the gradient."""

    def of_device(params: Any, x: Any, y: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda p: ((x @ p - y) ** 2).mean())(params)
        if shards:
            return lax.psum_scatter(gradient, "data", tiled=True) / DEVICES, lax.pmean(loss, "data")
        return params - 0.01 * lax.pmean(gradient, "data"), lax.pmean(loss, "data")

    if shards:
        specs = {"mesh": mesh(), "in_specs": (P(), P("data"), P("data")), "out_specs": (P("data"), P())}
        step, params = jax.jit(jax.shard_map(of_device, **specs)), jnp.zeros(4)
    else:
        step, params = jax.pmap(of_device, axis_name="data"), jnp.zeros((DEVICES, 4))

    def train(batch: Batch) -> Any:
        nonlocal params
        found, loss = step(params, *(batch if shards else split(batch)))
        params = params - 0.01 * found if shards else found
        return loss

    return train


def mapped_gradients() -> Callable[[Batch], Any]:
    """Updates by hand, outside: the last step isn't counted."""
    params = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * DEVICES), weights())

    def of_device(params: Any, x: Any, y: Any) -> Any:
        return lax.pmean(jax.value_and_grad(loss_of)(params, x, y), "data")

    gradient = jax.pmap(of_device, axis_name="data")

    def train(batch: Batch) -> Any:
        nonlocal params
        loss, found = gradient(params, *split(batch))
        params = descend(params, found)
        return loss

    return train


def on_one_of_them() -> Callable[[Batch], Any]:
    step, params = jax.jit(update), weights()

    def train(batch: Batch) -> Any:
        nonlocal params
        params, loss = step(params, *batch)
        return loss

    return train


def one_after_the_other() -> Callable[[Batch], Any]:
    gradient, params = jax.jit(jax.value_and_grad(loss_of)), weights()

    def train(batch: Batch) -> Any:
        nonlocal params
        parts = zip(jax.devices(), *split(batch), strict=True)
        found = [gradient(*jax.device_put((params, x, y), device)) for device, x, y in parts]
        first = jax.device_put([gradients for _, gradients in found], jax.devices()[0])
        params = descend(params, jax.tree_util.tree_map(lambda *parts: sum(parts) / DEVICES, *first))
        return found[0][0]

    return train


def over_another_dimension() -> Callable[[Batch], Any]:
    step, params = jax.pmap(averaged, axis_name="data", in_axes=(None, 1, 0), out_axes=(None, 0)), weights()

    def train(batch: Batch) -> Any:
        nonlocal params
        x, y = split(batch)
        params, loss = step(params, x.swapaxes(0, 1), y)
        return loss

    return train


CASES: dict[str, Callable[[], Callable[[Batch], Any]]] = {
    "sharded": sharded,
    "by in_shardings": by_in_shardings,
    "parameters in shards": parameters_in_shards,
    "over shards": functools.partial(over_shards, compiled=True),
    "over shards, eagerly": functools.partial(over_shards, compiled=False),
    "gradients over shards": functools.partial(over_shards, compiled=True, gradients=True),
    "over shards, by its older name": over_shards_of_older,
    "mapped": functools.partial(mapped, 0),
    "mapped, parameters for all": functools.partial(mapped, (None, 0, 0)),
    "mapped, donated, by a dictionary": functools.partial(mapped, 0, named=True),
    "mapped, one array": functools.partial(one_array, shards=False),
    "parts of the gradient of one array": functools.partial(one_array, shards=True),
    "mapped gradients": mapped_gradients,
    "on one of them": on_one_of_them,
    "one after the other": one_after_the_other,
    "over another dimension": over_another_dimension,
}
STATED = {"": 0, "in all": SIZE, "on each": SIZE // DEVICES}
"""What an argument of the script says of its batches."""


def tell(name: str, stated: int) -> dict[str, Any]:
    """What the trial counted, and what the loop did."""
    known = {"placeholders": ["batch_size"], "as_written": {"batch_size": stated}} if stated else {}
    losses: list[float] = []
    with watched(knowledge=known) as trial:
        try:
            train = CASES[name]()
            for batch in whole_batches():
                loss = numpy.asarray(train(batch))
                losses.append(float(loss.mean()))
                trial.trained(1, len(batch[0]))
        except StopTrial:
            pass
        failures = [record["detail"] for record in trial.log.of("failure")]
        facts = trial.end()
        told = [record["value"] for record in trial.log.of("loss")]
    return {
        "counted": [trial.steps, trial.samples], "done": [trial.updates, trial.rows], "failures": failures,
        "devices": facts["devices"], "unit": facts["unit"], "written": facts["as_written"].get("batch_size"),
        "losses": [min(abs(one - other) for other in losses) for one in told], "remarks": facts["remarks"],
    }  # fmt: skip


def ready() -> list[bool]:
    """Whether each device has its part of a step's result once the step was waited for: one of them takes a second."""

    def sleep(value: Any, device: Any) -> Any:
        time.sleep(1.0 if device == DEVICES - 1 else 0.0)
        return value

    def of_shard(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
        params, loss = averaged(params, x, y)
        late = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), jnp.float32), x[0, 0], lax.axis_index("data"))
        return params, (loss + late)[None]

    specs = {"mesh": mesh(), "in_specs": (P(), P("data"), P("data")), "out_specs": (P(), P("data"))}
    with watched() as trial:
        step, params = jax.jit(jax.shard_map(of_shard, **specs)), weights()
        for x, y in batches(SIZE, 2):
            params, loss = step(params, x, y)
        trial.adapter.synchronize()
        return [shard.data.is_ready() for shard in loss.addressable_shards]


def main() -> None:
    session._watchdog = lambda: None  # it would end this process
    if sys.argv[1] == "ready":
        print(json.dumps(ready()))
        return
    for name, stated in json.loads(sys.argv[1]):
        try:
            print(json.dumps([name, stated, tell(name, STATED[stated])]), flush=True)
        except Exception:
            print(json.dumps([name, stated, traceback.format_exc()]), flush=True)


if __name__ == "__main__":
    main()
