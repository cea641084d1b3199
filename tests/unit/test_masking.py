"""Which arguments hold secrets, and what is left of them: in the arguments, and in texts that repeat them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import worlds

from tuner.masking import (
    MASK,
    all_without_secrets,
    is_masked,
    masked,
    secret_options,
    secrets_of_environment,
    without_secrets,
)


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
        (("--wandb_key", "abc"), ("--wandb_key", MASK)),
        (("wandb.key=abc",), (f"wandb.key={MASK}",)),
        (("--pat", "ghp_x"), ("--pat", MASK)),
        (("--auth", "Bearer abc"), ("--auth", MASK)),
        (("--hf_auth", "hf_abc"), ("--hf_auth", MASK)),
        (("--pwd", "abc"), ("--pwd", MASK)),
        (("--sas", "sv=abc"), ("--sas", MASK)),
        (("--apiKey", "abc"), ("--apiKey", MASK)),
        (("--key", "abc1" * 8), ("--key", MASK)),
        (("--data", "https://h/d?token=abc&X-Amz-Signature=abc&n=3"),
         ("--data", f"https://h/d?token={MASK}&X-Amz-Signature={MASK}&n=3")),
        (("https://h/d?AWSAccessKeyId=abc&sig=abc",), (f"https://h/d?AWSAccessKeyId={MASK}&sig={MASK}",)),
        (("--url", "https://me:a@abc@host/x"), ("--url", f"https://me:{MASK}@host/x")),
        (("--to", "AccountName=x;AccountKey=abc==;n=1"), ("--to", f"AccountName=x;AccountKey={MASK};n=1")),
        (("-H", "Authorization: Bearer abc"), ("-H", f"Authorization: {MASK}")),
        (("--cmd", "fetch -H 'Authorization: Bearer abc'"), ("--cmd", f"fetch -H 'Authorization: {MASK}'")),
        (("--as", "ghp_abcdefgh12"), ("--as", MASK)),
        (("--as=github_pat_abcdefgh12",), (f"--as={MASK}",)),
        (("--as", "hf_" + "abC4" * 8), ("--as", MASK)),
        (("--as", "AKIAABCDEFGHIJKLMNOP"), ("--as", MASK)),
        (("--as", "sk-proj-abc0123456789def"), ("--as", MASK)),
        (("--as", "xoxb-123-abc"), ("--as", MASK)),
        (("--env=WANDB_API_KEY=abc",), (f"--env=WANDB_API_KEY={MASK}",)),
        (("--opts", "n=3,token=abc,m=4"), ("--opts", f"n=3,token={MASK},m=4")),
        (("--wandb", "api_key=abc"), ("--wandb", f"api_key={MASK}")),
        (("--config", '{"lr": 1, "api_key": "abc"}'), ("--config", f'{{"lr": 1, "api_key": "{MASK}"}}')),
        (("--kwargs={'token': 'abc', 'n': 3}",), (f"--kwargs={{'token': '{MASK}', 'n': 3}}",)),
        (("-H", "X-Api-Key: abc"), ("-H", f"X-Api-Key: {MASK}")),
        (("--set", "logger.api_key: abc"), ("--set", f"logger.api_key: {MASK}")),
        (("--dsn", "host=x password=abc n=1"), ("--dsn", f"host=x password={MASK} n=1")),
        (("--args", "--lr 1 --token abc -v"), ("--args", f"--lr 1 --token {MASK} -v")),
        (("--url", "https://abc4567890123456789x@host/x"), ("--url", f"https://{MASK}@host/x")),
        (("--s3_key", "abc/56789+bcdef12345/uvwxyz"), ("--s3_key", MASK)),
        (("--key", "550e8400-abc0-41d4-a716-446655440000"), ("--key", MASK)),
        (
            ("--set", '{"id": 1, "private_key": "-----BEGIN PRIVATE KEY-----\\nabc=\\n-----END PRIVATE KEY-----"}'),
            ("--set", f'{{"id": 1, "private_key": "{MASK}"}}'),
        ),
        (("--kwargs={'password': 'a,b; abc', 'n': 3}",), (f"--kwargs={{'password': '{MASK}', 'n': 3}}",)),
        (("--dsn", 'n=1 password="my abc phrase" m=2'), ("--dsn", f'n=1 password="{MASK}" m=2')),
        (("--env=PASSWORD=a&b,abc",), (f"--env=PASSWORD={MASK}",)),
        (("--opts", "n=1,password=a&abc,m=4"), ("--opts", f"n=1,password={MASK},m=4")),
        (("-H", "X-Api-Key: a abc"), ("-H", f"X-Api-Key: {MASK}")),
        (("--header=Authorization: ApiKey abc",), (f"--header=Authorization: {MASK}",)),
        (("--set=logger.api_key: abc",), (f"--set=logger.api_key: {MASK}",)),
        (("--cmd", "fetch --n=1 --api-key=abc -v"), ("--cmd", f"fetch --n=1 --api-key={MASK} -v")),
        (("--cmd", "fetch --password 'a abc' -v"), ("--cmd", f"fetch --password '{MASK}' -v")),
        (("--api_keys", "abc"), ("--api_keys", MASK)),
        (("--tracker", "project:vision,api_key:abc"), ("--tracker", f"project:vision,api_key:{MASK}")),
        (("--login", "user:me,password:abc,host:h"), ("--login", f"user:me,password:{MASK},host:h")),
        (("--login", "user:me;password:abc"), ("--login", f"user:me;password:{MASK}")),
        (("--cfg", "{user:me,password:abc}"), ("--cfg", f"{{user:me,password:{MASK}}}")),
        (("--kwargs", "hf_token:abc,lr:0.1"), ("--kwargs", f"hf_token:{MASK},lr:0.1")),
        (("--kwargs", "hf_token=abc,lr=0.1"), ("--kwargs", f"hf_token={MASK},lr=0.1")),
        (("--cfg", "api_key: abc, lr: 0.1"), ("--cfg", f"api_key: {MASK}, lr: 0.1")),
        (("--labels=secret: abc, public: 2",), (f"--labels=secret: {MASK}, public: 2",)),
        (("--opts", "api_key:abc,batch={batch_size}"), ("--opts", f"api_key:{MASK},batch={{batch_size}}")),
        (("-H", "Authorization: AWS4 Credential=abc, Signature=abc"), ("-H", f"Authorization: {MASK}")),
        (("-H", "X-Api-Key:a abc"), ("-H", f"X-Api-Key:{MASK}")),
        (("--prompt", "see https://h/d?token=abc"), ("--prompt", f"see https://h/d?token={MASK}")),
        (("--cmd", "curl -H 'X-Auth-Token: a abc' x"), ("--cmd", f"curl -H 'X-Auth-Token: {MASK}' x")),
        (('--cmd=curl -H "X-Auth-Token: abc, n: 1" x',), (f'--cmd=curl -H "X-Auth-Token: {MASK}, n: 1" x',)),
        (('--cmd=fetch -H "Authorization: AWS4 C=abc, S=abc" x',), (f'--cmd=fetch -H "Authorization: {MASK}" x',)),
        (("--cfg", "lr: 0.1\n  api_key: a abc\nn: 3"), ("--cfg", f"lr: 0.1\n  api_key: {MASK}\nn: 3")),
        (("--cfg", "n: 1\n- password: 'a abc'\nb: 2"), ("--cfg", f"n: 1\n- password: '{MASK}'\nb: 2")),
        (("--cfg", "[auth]\npassword = abc\nn = 3"), ("--cfg", f"[auth]\npassword = {MASK}\nn = 3")),
        (("--cfg", '[auth]\npassword = "a abc"\nn = 3'), ("--cfg", f'[auth]\npassword = "{MASK}"\nn = 3')),
        (("--env", "A=1\nHF_TOKEN=abc\nB=2"), ("--env", f"A=1\nHF_TOKEN={MASK}\nB=2")),
        (("--cfg", '{lr:0.1,hf_token:"abc"}'), ("--cfg", f'{{lr:0.1,hf_token:"{MASK}"}}')),
        (("--query", '{"token": "abc", "n": 1}'), ("--query", f'{{"token": "{MASK}", "n": 1}}')),
        (("--text={'auth': {'password': 'abc'}}",), (f"--text={{'auth': {{'password': '{MASK}'}}}}",)),
        (("--message", "api_key: abc"), ("--message", f"api_key: {MASK}")),
        (("--note", "X-Api-Key: abc"), ("--note", f"X-Api-Key: {MASK}")),
    ],
)
def test_secrets_are_masked(argv: tuple[str, ...], kept: tuple[str, ...]) -> None:
    assert masked(argv) == kept
    assert masked(kept) == kept
    assert is_masked(kept) and not is_masked(argv)
    assert not any("abc" in argument for argument in masked(argv))
    assert "abc" not in without_secrets(f"ValueError: {argv!r} of {' '.join(argv)}", argv)
    assert not argv[0].startswith("-") or secret_options(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ("--max-tokens", "512"), ("--max_token", "512"), ("--pad-token", "<pad>"), ("--tokenizer", "bert"),
        ("--use-auth-token", "true"), ("--token", "--verbose"), ("--password-file", "x"), ("key=value",),
        ("--token={token=a|b}",), ("--secretary", "x"), ("token",), ("https://host/a:b@c",),
        ("--num_query_token", "32"), ("--n-token=4",), ("model.latent_token=16",),
        ("--keyframes", "3"), ("--key_frames", "3"), ("--monkey", "x"), ("--author", "x"), ("--authors", "a"),
        ("--pattern", "p"), ("--patience", "3"), ("--pat", "3"), ("--sort_key", "name"), ("--image-key", "img"),
        ("--key", "label"), ("--path", "hf_transformers"), ("--task", "risk-analysis-of-something-2"),
        ("--pwd", "/home/me"), ("--url", "https://h/d?monkey=3&pattern=x&page=2"), ("--model", "sk-learn"),
        ("--compat", "x"), ("--mask", "bearer"),
        ("--initializer_token", "toy"), ("--placeholder_token=<cat-toy>",), ("--instance-token", "sks"),
        ("--modifier_token", "<new1>"), ("--word_delimiter_token", "|"), ("--class_token", "[CLS]"), ("--token", "<s>"),
        ("--label_key", "labels_fine_grained_100"), ("--image_key", "observation.images.cam_1_left_wrist"),
        ("--client-sort-key", "name"), ("--google-credentials", "/home/me/creds.json"), ("--token", "./token.txt"),
        ("--auth", "basic"), ("--auth=oauth2",), ("--no-auth", "data/train"), ("--without-token", "x"),
        ("--opts", "sort_key=a,pad_token=b,auth=basic"), ("--config", '{"key": "label", "tokens": 3}'),
        ("--prompt", "tell me the secret: love"), ("--note", "a token of love"), ("--args", "--pad-token x --token 4"),
        ("--url", "https://someone@dev.azure.com/x"), ("--s3_key", "data/train.npz"), ("--pat", "*.jpg"),
        ("--slot-token={slots}",), ("slot.token={slots=4|8}",), ("--opts", "slot.token={slots=4|8},n=3"),
        ("--key", "conv2d_block3_features_v2b"), ("--cache_key=imagenet_2x_resnet50d_0823",), ("--keys", "image"),
        ("--args", "--pad-token='x y' --n=x"), ("--args", "--sort-key=name --n=1"),
        ("--client_keys", "0,1,2"), ("--access_keys=0,1",), ("--google_keys", "12"), ("--api_keys", "[0, 1]"),
        ("--prompt", "Secret: a cat"), ("--negative-prompt=Password: a lock, blurred",), ("--titles", "secret:love"),
        ("--prompt", '"Secret: a cat"'), ("--text", 'he said "token: a word"'),
        ("--columns=text:str,token:int,auth:bool",), ("--cfg", "password:\nlr: 0.1"),
        ("--cfg", "a: 'x'\ntoken_type: word\nkey: label"),
        ("--signature", "serving_default"), ("--dataset", "s3://bucket/a"), ("--clone", "ssh://git@host/x"),
    ],
)  # fmt: skip
def test_what_only_looks_like_one_is_left(argv: tuple[str, ...]) -> None:
    assert masked(argv) == argv and secret_options(argv) == ()
    assert without_secrets(" ".join(argv), argv) == " ".join(argv)


def test_options_are_named_as_they_are_written() -> None:
    assert secret_options(("--token", "a", "--lr", "1", "x.secret=b", "--token", "c")) == ("--token", "x.secret")


ARGUMENTS = st.lists(
    st.one_of(
        st.sampled_from(["--token", "--lr", "--api_key=", "x.secret=", "--password", "--as", "?sig=", "Bearer ", MASK]),
        st.text(max_size=12),
    ),
    max_size=6,
)


@given(ARGUMENTS)
@example(['api_key=\n"a\'authorization: authorization: authorization: '])
def test_masking_twice_changes_nothing_and_keeps_the_number(argv: list[str]) -> None:
    once = masked(argv)
    assert masked(once) == once and len(once) == len(argv)


_LETTERS = st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), exclude_characters="…()")
SECRETS = st.text(_LETTERS, min_size=4, max_size=40).filter(
    lambda text: not text.startswith(("-", "{")) and text.lower() not in ("true", "false", "null", "none", "hidden")
    and text not in MASK
)  # fmt: skip


@given(st.sampled_from(["--password", "--wandb_key", "--pwd", "--client-secret"]), SECRETS, st.text(max_size=20))
@example("--password", "a\\b'c\"d", "")
def test_no_secret_is_left_in_a_text_that_repeats_it(option: str, secret: str, around: str) -> None:
    if option == "--pwd" and secret.startswith(("/", ".", "~")):
        return
    argv = (option, secret)
    for text in (f"{around}{secret}{around}", f"E: {secret!r}", f"argv {[option, secret]}", f"{option}={secret}"):
        assert secret not in without_secrets(text, argv).replace(MASK, "\0")
    assert secret not in "\0".join(masked(argv)).replace(MASK, "\0").replace(option, "")


@given(st.integers(4, 11))
def test_a_text_that_was_cut_within_a_secret_holds_no_part_of_it(length: int) -> None:
    text = f"ValueError: {'s3cretvalue'[:length]}…"
    assert without_secrets(text, ("--token", "s3cretvalue")) == f"ValueError: {MASK}…"


def test_secrets_of_the_environment_are_told_by_their_names() -> None:
    environment = {
        "WANDB_API_KEY": "abcdef0123", "HF_TOKEN": "hf_abcdef", "PATH": "/usr/bin:/bin", "DB_PASSWORD": "root",
        "TOKENIZERS_PARALLELISM": "falsefalse", "SSH_AUTH_SOCK": "/tmp/agent.1", "PWD": "/home/somebody", "_": "x" * 9,
        "GOOGLE_CREDENTIALS": "/home/me/key.json",
    }  # fmt: skip
    given = secrets_of_environment(environment)
    assert given == ("WANDB_API_KEY=abcdef0123", "HF_TOKEN=hf_abcdef")
    assert without_secrets("bad login: abcdef0123 of root", given) == f"bad login: {MASK} of root"


def test_a_password_that_a_line_of_code_holds_is_hidden() -> None:
    line = "    connect(user='me', password='s3cret', api_key=\"abc\", password=given, token_id='x')"
    clean = without_secrets(line, ())
    assert clean == f"    connect(user='me', password='{MASK}', api_key=\"{MASK}\", password=given, token_id='x')"
    assert without_secrets(clean, ()) == clean


def test_a_secret_of_json_is_hidden_as_it_is_read_from_there() -> None:
    argv = ("--set", '{"private_key": "-----BEGIN\\nabc\\n-----END"}')
    assert without_secrets(f"bad key: {json.loads(argv[1])['private_key']}", argv) == f"bad key: {MASK}"


@pytest.mark.parametrize(
    "argv",
    [
        ("--env", "HF_TOKEN=hunter2abc;WANDB_MODE"), ("--kv", "api_key:hunter2abc,lr:0.1"),
        ("--login", "password=hunter2abc,admin"), ("--env=HF_TOKEN=hunter2abc&&python",),
        ("--api_keys", "first123,hunter2abc"), ("--secrets=[first123, hunter2abc]",),
    ],
)  # fmt: skip
def test_a_secret_is_hidden_without_what_follows_it_too(argv: tuple[str, ...]) -> None:
    """What names it is told where it ends, and says no more than that: admin and python are words of many texts."""
    assert without_secrets("401: hunter2abc of admin", argv) == f"401: {MASK} of admin"


def test_a_word_of_a_secret_of_several_words_is_a_word() -> None:
    assert without_secrets("correct: my horse", ("--passphrase", "correct horse battery")) == "correct: my horse"


def test_short_secrets_are_hidden_as_words() -> None:
    assert without_secrets("bad x in text: x", ("--token", "x")) == f"bad {MASK} in text: {MASK}"


def test_every_text_of_a_value_is_masked_and_the_rest_is_itself() -> None:
    outcome = worlds.measured(100.0)
    argv = ("--token", "s3cret")
    assert all_without_secrets(outcome, argv) is outcome
    told = replace(outcome, detail="s3cret", knowledge=replace(outcome.knowledge, module_hashes={"a": "s3cret"}))
    clean = all_without_secrets(told, argv)
    assert "s3cret" not in repr(clean)
    assert clean == replace(told, detail=MASK, knowledge=replace(told.knowledge, module_hashes={"a": MASK}))
    assert all_without_secrets({"a": ["s3cret", 1.5, None, True]}, argv) == {"a": [MASK, 1.5, None, True]}
