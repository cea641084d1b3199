"""Two ranks that exchange gradients in another way train what they train as written: the same losses and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.rank_scripts import trained_by

TRAIN = """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(512, 512)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))

class Model(torch.nn.Module):
    '''Of about 5 MiB, a quarter of which no step uses.'''

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(4)])
        self.unused, self.head = torch.nn.Linear(512, 512), torch.nn.Linear(512, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def train(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    torch.manual_seed(rank)
    rows, losses = torch.utils.data.TensorDataset(torch.randn(32, 512), torch.randint(0, 3, (32,))), []
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
    return {"losses": losses, "weights": [p.detach().flatten()[::97].tolist() for p in model.parameters()]}
"""
WRITTEN = {"as_written": {"batch_size": 8, "grad_accumulation": 1}}
CONFIGS: dict[str, dict[str, Any]] = {
    "as written": {},
    "view": {"ddp_bucket_view": True},
    "small": {"ddp_bucket_mb": 1},
    "static": {"ddp_static_graph": True},
    "together": {"ddp_bucket_view": True, "ddp_bucket_mb": 1, "ddp_static_graph": True},
    "computed again": {"checkpointing": True},
    "all of it computed again": {"checkpointing": True, "ddp_bucket_view": True, "ddp_static_graph": True},
    "rounded": {"ddp_communication": "bf16"},
    "compiled": {"compile": "default", "ddp_bucket_view": True},
    "parts": {"batch_size": 4, "grad_accumulation": 2},
    "parts of a static graph": {"batch_size": 4, "grad_accumulation": 2, "ddp_static_graph": True},
}


SINGLE = ("view", "small", "static", "computed again", "parts", "compiled")
"""Those are in others, too; what is compiled takes both ranks as long as all others together."""
Trained = dict[str, list[dict[str, Any]]]


def trained_in(folder: Path, *names: str) -> Trained:
    """Config → what each of two ranks told."""
    cases = [(CONFIGS[name], WRITTEN) for name in names]
    return dict(zip(names, trained_by(folder, TRAIN, cases), strict=True))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """All of them but the ``SINGLE`` ones."""
    return trained_in(tmp_path_factory.mktemp("ranks"), *(name for name in CONFIGS if name not in SINGLE))


@pytest.fixture(scope="module")
def trained_singly(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The ``SINGLE`` ones."""
    return trained_in(tmp_path_factory.mktemp("ranks"), "as written", *SINGLE)


@pytest.mark.slow  # 9 s beside three others
@pytest.mark.parametrize("name", ["together", "all of it computed again"])
def test_what_is_exchanged_or_kept_otherwise_changes_no_number(trained: Trained, name: str) -> None:
    """Of two ranks' numbers a sum is the same in any order. One of more ranks may round otherwise by other buckets."""
    check_numbers(trained, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE[:-2])
def test_nor_does_a_single_knob(trained_singly: Trained, name: str) -> None:
    check_numbers(trained_singly, name)


def check_numbers(trained: Trained, name: str) -> None:
    """The losses and weights of the script as written, to the last bit."""
    for rank, told in enumerate(trained[name]):
        assert told["evidence"] == dict.fromkeys(CONFIGS[name], "verified")
        assert told["losses"] == trained["as written"][rank]["losses"]
        assert told["weights"] == trained["as written"][rank]["weights"]
    assert trained[name][0]["weights"] == trained[name][1]["weights"]
    assert trained[name][0]["losses"][-1] < trained[name][0]["losses"][0]


def test_rounded_gradients_round_and_train_alike(trained: Trained) -> None:
    for rank, told in enumerate(trained["rounded"]):
        written = trained["as written"][rank]["losses"]
        assert told["evidence"] == {"ddp_communication": "verified"}
        assert told["losses"] != written and told["losses"] == pytest.approx(written, rel=0.02)
    assert trained["rounded"][0]["weights"] == trained["rounded"][1]["weights"]


@pytest.mark.slow  # unit/child/torch/test_own_compile.py; of one process: test_compiled_turns.py there
def test_what_is_compiled_trains_alike(trained_singly: Trained) -> None:
    for rank, told in enumerate(trained_singly["compiled"]):
        assert told["evidence"] == dict.fromkeys(CONFIGS["compiled"], "verified")
        assert told["losses"] == pytest.approx(trained_singly["as written"][rank]["losses"], rel=1e-5)
    assert trained_singly["compiled"][0]["weights"] == trained_singly["compiled"][1]["weights"]


def test_a_batch_in_parts_has_one_backward_and_so_one_exchange(trained: Trained) -> None:
    check_parts(trained, "parts of a static graph")


@pytest.mark.slow
def test_nor_do_parts_of_a_graph_that_may_change_exchange_more(trained_singly: Trained) -> None:
    check_parts(trained_singly, "parts")


def check_parts(trained: Trained, name: str) -> None:
    """Nearly the losses of the script as written, and the same weights in both ranks."""
    for rank, told in enumerate(trained[name]):
        written = trained["as written"][rank]["losses"]
        assert told["evidence"] == dict.fromkeys(CONFIGS[name], "verified")
        assert told["losses"] == pytest.approx(written, rel=1e-4)
    assert trained[name][0]["weights"] == trained[name][1]["weights"]
