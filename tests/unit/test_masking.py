"""Which arguments hold secrets, and what is left of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.masking import MASK, is_masked, masked, secret_options


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (("--token", "abc"), ("--token", MASK)),
        (("--hub_token=abc", "--lr", "0.1"), (f"--hub_token={MASK}", "--lr", "0.1")),
        (("--api-key", "abc=="), ("--api-key", MASK)),
        (("wandb.api_key=abc",), (f"wandb.api_key={MASK}",)),
        (("--aws-secret-access-key", "a/b"), ("--aws-secret-access-key", MASK)),
        (("--db-password=a=b",), (f"--db-password={MASK}",)),
        (("--url", "https://me:abc@host/x"), ("--url", f"https://me:{MASK}@host/x")),
        (("+Token=abc",), (f"+Token={MASK}",)),
        (("--password", "123456"), ("--password", MASK)),
        (("--token", "123456789012"), ("--token", MASK)),
    ],
)
def test_secrets_are_masked(argv: tuple[str, ...], kept: tuple[str, ...]) -> None:
    assert masked(argv) == kept
    assert masked(kept) == kept
    assert is_masked(kept) and not is_masked(argv)
    assert not any("abc" in argument for argument in masked(argv))


@pytest.mark.parametrize(
    "argv",
    [
        ("--max-tokens", "512"), ("--max_token", "512"), ("--pad-token", "<pad>"), ("--tokenizer", "bert"),
        ("--use-auth-token", "true"), ("--token", "--verbose"), ("--password-file", "x"), ("key=value",),
        ("--token={token=a|b}",), ("--secretary", "x"), ("token",), ("https://host/a:b@c",),
        ("--num_query_token", "32"), ("--n-token=4",), ("model.latent_token=16",),
    ],
)  # fmt: skip
def test_what_only_looks_like_one_is_left(argv: tuple[str, ...]) -> None:
    assert masked(argv) == argv and secret_options(argv) == ()


def test_options_are_named_as_they_are_written() -> None:
    assert secret_options(("--token", "a", "--lr", "1", "x.secret=b", "--token", "c")) == ("--token", "x.secret")


ARGUMENTS = st.lists(
    st.one_of(
        st.sampled_from(["--token", "--lr", "--api_key=", "x.secret=", "--password", MASK]), st.text(max_size=12)
    ),
    max_size=6,
)


@given(ARGUMENTS)
def test_masking_twice_changes_nothing_and_keeps_the_number(argv: list[str]) -> None:
    once = masked(argv)
    assert masked(once) == once and len(once) == len(argv)
