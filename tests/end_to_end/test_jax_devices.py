"""Loops of JAX in real children: by ``jax.pmap`` on one device, and on several of one process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jax_scripts import HEAD, LOOP, SCRIPTS

Run = Callable[..., Any]
Write = Callable[..., Path]
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}

TWO_DEVICES = "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\n"
PMAPPED = HEAD + """
def update(state, batch, rate):
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], batch["x"], batch["y"])
    gradients = lax.pmean(gradients, "devices")
    params = jax.tree_util.tree_map(lambda p, g: p - rate * g, state["params"], gradients)
    return {"params": params, "step": state["step"] + 1}, {"loss": lax.pmean(loss, "devices")}
update = jax.pmap(functools.partial(update, rate=0.1), in_axes=AXES, out_axes=AXES, axis_name="devices")
DEVICES = jax.local_device_count()
state = {"params": params, "step": jnp.zeros((), int)}
if AXES == 0:
    state = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * DEVICES), state)
""" + LOOP.replace("STEP", """
        batch = {"x": x.reshape(DEVICES, -1, 8), "y": y.reshape(DEVICES, -1)}
        state, metrics = update(state, batch)
        done_with = metrics["loss"][0]""") + """
print("went on")
"""


def is_counted(ran: Any, devices: int) -> None:
    """By the script's own count, and with its losses."""
    assert ran.returncode == 0, ran.output
    trained = int(re.findall(r"^trained on (\d+)$", ran.output, re.MULTILINE)[-1])
    found = (ran.facts["unit"], ran.facts["steps"], ran.facts["samples"], ran.facts["devices"])
    assert found == ("samples", 23, trained, devices), ran.facts["remarks"]
    told = [float(record["value"]).hex() for record in ran.of("loss")]
    losses = re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE)
    assert len(told) > 10 and set(told) <= {float.fromhex(loss).hex() for loss in losses}


@pytest.mark.slow  # unit/child/test_jax_many_devices.py
@pytest.mark.parametrize("axes", ["0", "(None, 0)"])
def test_a_script_that_maps_over_one_device_is_counted(axes: str, run_child: Run, write_script: Write) -> None:
    """Its arrays have a dimension of one in front, which holds no samples."""
    ran = run_child(write_script(PMAPPED.replace("AXES", axes)), argv=("23", "30"), window=WHOLE)
    is_counted(ran, 1)
    for knob in ("donation", "steps_per_call"):
        assert "no function of jax.jit" in ran.facts["left_out"][knob], "it is given its own results, by jax.pmap"


SHARDED = TWO_DEVICES + HEAD + """
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
@jax.jit
def update(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
""" + LOOP.replace("STEP", "params, done_with = update(params, *jax.device_put((x, y), sharding))")


@pytest.mark.slow  # unit/child/test_jax_many_devices.py
@pytest.mark.parametrize(
    "script", [SHARDED, TWO_DEVICES + PMAPPED.replace("AXES", "0")]
)
def test_a_script_on_several_devices_is_counted(script: str, run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(script), argv=("23", "20"), window=WHOLE)
    is_counted(ran, 2)
    # Where there are no more threads than devices, fewer can't be had.
    threads = ran.facts["as_written"]["threads"]
    assert ("for each of its 2 devices" in ran.facts["left_out"].get("threads", "")) == (threads == 2)


REFUSED = "error: the profile was proven on {}, and {}"


@pytest.mark.parametrize(
    ("script", "devices", "says"),
    [
        (SCRIPTS["jitted"], 2, REFUSED.format("2 devices", "there is one device")),
        pytest.param(SHARDED, 3, REFUSED.format("3 devices", "there are 2 devices"), marks=pytest.mark.slow),
        pytest.param(SHARDED, 1, "the profile was proven on one device, and the script", marks=pytest.mark.slow),
        pytest.param(SHARDED, 2, "after 20 steps in effect: threads", marks=pytest.mark.slow),
    ],
)
def test_a_profile_for_several_devices_is_for_as_many(
    script: str, devices: int, says: str, run_child: Run, write_script: Write
) -> None:
    known = {"devices": devices}
    ran = run_child(write_script(script), {"threads": 2}, argv=("23", "20"), mode="apply", knowledge=known)
    assert f"autotune: {says}" in ran.output
    refused = says.startswith("error")
    assert (ran.returncode, "trained on" in ran.output) == (2 if refused else 0, not refused), ran.output
    assert ("hint: give it" in ran.output) == refused


@pytest.mark.slow
def test_losses_on_several_devices_are_those_of_plain_python(run_child: Run, write_script: Write) -> None:
    """To the last bit, whether a knob is turned or none."""
    script = write_script(SHARDED.replace("count=2", "count=4"))
    command = [sys.executable, str(script), "23", "20"]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    losses = re.findall(r"^loss (\S+)$", plain.stdout, re.MULTILINE)
    turned = run_child(script, {"async_dispatch": False}, argv=("23", "20"), window=WHOLE)
    is_counted(turned, 4)
    assert turned.evidence("async_dispatch") == "verified"
    assert len(losses) == 23 and re.findall(r"^loss (\S+)$", turned.output, re.MULTILINE) == losses
