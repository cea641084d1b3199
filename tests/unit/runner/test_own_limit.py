"""Of what ran out of memory: whether it was its own limit alone, by which a higher one may let it through."""

from __future__ import annotations

import pytest

from tuner.runner.classify import EndedBy
from tuner.runner.own_limit import limit_exceeded
from tuner.runner.request import Limits

LIMITS = Limits(max_host_bytes=1_000, max_device_bytes=2_000)
SAID = (
    "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 44.43 GiB of which {free} is free."
    " Process 2102129 has 17.54 GiB memory in use. Including non-PyTorch memory, this process has 17.81 GiB memory in"
    " use. {allowed}Of the allocated memory 17.44 GiB is allocated by PyTorch, and 59.88 MiB is reserved by PyTorch"
)
ALLOWED = "17.69 GiB allowed; "


@pytest.mark.parametrize(
    ("tried", "free", "allowed", "limit"),
    [
        ("996.00 MiB", "9.06 GiB", ALLOWED, 2_000),
        ("512 bytes", "2.00 MiB", ALLOWED, 2_000),
        ("996.00 MiB", "453.00 MiB", ALLOWED, None),  # the card is full, by others or by itself
        ("20.00 MiB", "0 bytes", ALLOWED, None),
        ("996.00 MiB", "9.06 GiB", "", None),  # nothing limits it: too fragmented, say
    ],
)
def test_pytorch_says_whether_the_card_had_what_it_asked_for(
    tried: str, free: str, allowed: str, limit: int | None
) -> None:
    said = SAID.format(tried=tried, free=free, allowed=allowed)
    assert limit_exceeded("device-oom", None, said, LIMITS) == limit


def test_what_is_ended_for_its_limit_of_the_host_exceeded_that() -> None:
    assert limit_exceeded("host-oom", EndedBy.HOST_OOM, "", LIMITS) == 1_000


@pytest.mark.parametrize("ended_by", [EndedBy.MACHINE_FULL, None, EndedBy.DEADLINE])
def test_where_the_machine_is_full_a_higher_limit_helps_nobody(ended_by: EndedBy | None) -> None:
    assert limit_exceeded("host-oom", ended_by, "", LIMITS) is None
    assert limit_exceeded("", EndedBy.HOST_OOM, "", LIMITS) is None, "others filled it, or it was through by then"
