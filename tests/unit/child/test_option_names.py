"""Which options of public training scripts are a knob's, and which only sound like one."""

from __future__ import annotations

import pytest

from tuner.child.option_names import is_option_of


@pytest.mark.parametrize(
    "option",
    [
        "batch_size", "batch-size", "batchSize", "bs", "b", "bsz", "batchsz", "batch", "mini_batch_size",
        "mini-batch-size", "minibatch_size", "minibatch", "train_batch_size", "train-batch-size", "train_bs",
        "training_batch_size",
        "batch_size_train", "per_device_train_batch_size", "per_device_batch_size", "per_gpu_train_batch_size",
        "per_gpu_batch_size", "batch_size_per_gpu", "batch_size_per_device", "samples_per_gpu", "ims_per_batch",
        "local_batch_size", "config.batch_size", "config.train.batch_size", "config.data.batch-size",
    ],
)  # fmt: skip
def test_options_that_say_what_a_training_batch_holds(option: str) -> None:
    assert is_option_of("batch_size", option)


@pytest.mark.parametrize(
    "option",
    [
        "eval_batch_size", "eval-batch-size", "test_batch_size", "test-batch-size", "val_batch_size", "val_bs",
        "valid_batch_size", "validation_batch_size", "batch_size_val", "batch_size_test", "batch_size_valid",
        "per_device_eval_batch_size", "per_gpu_eval_batch_size", "gen_batch_size", "generation_batch_size",
        "inference_batch_size", "sample_batch_size", "max_batch_size", "eval_bs", "test_bs", "batches", "num_batches",
        "batch_norm", "batch_split", "total_batch_size", "global_batch_size", "micro_batch_size", "device_batch_size",
        "config.eval_batch_size", "config.eval.batch_size", "config.test_data.batch_size", "config.batch_size.x",
    ],
)  # fmt: skip
def test_options_that_say_something_else(option: str) -> None:
    """Of "total_" to "device_" scripts derive parts of a batch, or are parts themselves: none is a loader's batch."""
    assert not is_option_of("batch_size", option)


@pytest.mark.parametrize(
    "option",
    ["grad-accum-steps", "accumulation-steps", "accumulation_steps", "accum_steps", "gradient_accumulation"],
)
def test_options_that_say_how_many_batches_a_step_takes(option: str) -> None:
    assert is_option_of("grad_accumulation", option)
