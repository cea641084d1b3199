"""Options, settings and models that the code of data names: only what it reads of them is the data's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

__all__ = ["begin"]

SETTINGS: dict[str, Any] = {"size": 3, "step": 0}


@dataclasses.dataclass
class Config:
    """Settings that can do something."""

    size: int = 3
    step: int = 0

    def shown(self) -> str:
        return f"{self.size}"


CONFIG = Config()
MODEL = torch.nn.Linear(5, 1)
MODEL.pad = 0.0


class BySettings(Rows):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x * SETTINGS["size"] * CONFIG.size, y


class Moved(BySettings):
    """Reads what the training changes, too."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.0 * self.step(), y

    def step(self) -> Any:
        return CONFIG.step


class Padded(Rows):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + MODEL.pad, y


class Embedded(Rows):
    """Looks up what is being trained."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        with torch.no_grad():
            return x + 0.0 * MODEL.weight[0], y


def learn() -> None:
    SETTINGS["step"] += 1
    CONFIG.step += 1
    with torch.no_grad():
        MODEL.weight += 1.0


@pytest.mark.parametrize(
    ("made", "path"), [(BySettings, ""), (Padded, ""), (Moved, "CONFIG.step"), (Embedded, "MODEL._parameters")]
)
def test_what_data_don_t_read_of_settings_may_change(begin: Begin, made: Callable[[], Any], path: str) -> None:
    why = left_out(begin, made(), learn).get("num_workers", "")
    assert why.startswith(f"{path}") and bool(why) == bool(path), why


def test_a_collator_s_model_is_no_part_of_its_batches(begin: Begin) -> None:
    """As ``DataCollatorForSeq2Seq`` holds the model that is trained, for how it shifts labels."""
    import transformers

    collator = transformers.DataCollatorForSeq2Seq(tokenizer=None, model=MODEL)

    def collate(rows: list[Any]) -> Any:
        return torch.utils.data.default_collate(rows if collator.padding else [])

    assert left_out(begin, Rows(), learn, collate_fn=collate) == {}
