"""A trial leaves no run of its own among the user's experiments, and the script finds its logs where it has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.runner.created_files import move_created_files

TRAIN = """
    import os, sys
    sys.modules["tensorflow"] = None  # TensorBoard would import it, for seconds and to no use
    import torch
    from torch.utils.tensorboard import SummaryWriter
    writers = [SummaryWriter(), SummaryWriter("mine"), SummaryWriter(log_dir="mine too", flush_secs=1)]
    open("mine/arguments.txt", "w").write("beside the logs")
    assert writers[1].log_dir == "mine" and os.listdir("mine too")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        for writer in writers:
            writer.add_scalar("loss", loss.item(), step)
"""


def test_logs_go_to_the_trials_folder(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> None:
    script = write_script(TRAIN)
    before = sorted(script.parent.iterdir())
    ran = run_child(script)
    assert ran.of("window")[0]["complete"], ran.output
    move_created_files(ran.folder)
    assert sorted(p for p in script.parent.iterdir() if p != ran.folder) == [p for p in before if p != ran.folder]
    assert len(list(ran.folder.rglob("events.out.tfevents*"))) == 3
