"""Secrets in command lines and texts are hidden; what only sounds alike stays readable."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.masking import HIDDEN, mask_command, mask_text

SECRET = "v3ryPr1vateValue0"
# Made up, in the shape of the real ones; put together here so that no scanner takes them for real.
KNOWN = [
    "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vX7zA9cE1gI3k",
    "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "github_pat_" + "11ABCDEFG0abcdefghij_KLMNOPQRST",
    "sk-" + "abcdEFGH1234ijklMNOP5678",
    "sk-ant-" + "api03-abcdEFGH1234",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "glpat-" + "aBcD1234eFgH5678iJkL",
    "xoxb-" + "123456789012-abcdefABCDEF",
]


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--token", SECRET],
        ["train", "--token=" + SECRET],
        ["train", "--hf-token", SECRET],
        ["train", "--api-key=" + SECRET],
        ["train", "--api_key", SECRET],
        ["train", "--apiKey=" + SECRET],
        ["train", "-password", SECRET],
        ["train", "--db-password=" + SECRET + " with spaces " + SECRET],
        ["env", "HF_TOKEN=" + SECRET, "python", "train.py"],
        ["env", "WANDB_API_KEY=" + SECRET, "python"],
        ["env", "AWS_SECRET_ACCESS_KEY=" + SECRET],
        ["env", "MYSQL_PWD=" + SECRET],
        ["train", "trainer.hub.token=" + SECRET],
        ["curl", "-H", "Authorization: Bearer " + SECRET],
        ["curl", "-H", "Authorization: Basic " + SECRET],
        ["curl", "-H", "X-Api-Key: " + SECRET],
        ["git", "clone", f"https://user:{SECRET}@example.org/x.git"],
        ["curl", f"https://example.org/?a=1&access_token={SECRET}&b=2"],
        ["sh", "-c", f"HF_TOKEN={SECRET} python train.py --password '{SECRET}'"],
        ["sh", "-c", f'python train.py --password "{SECRET} {SECRET}"'],
        ["train", "--config", f'{{"api_key": "{SECRET}", "lr": 1}}'],
        ["train", "--client-secret", SECRET],
    ],
)
def test_a_secret_is_hidden(argv: list[str]) -> None:
    shown = mask_command(argv)
    assert SECRET not in " ".join(shown)
    assert HIDDEN in " ".join(shown)
    assert shown[0] == argv[0]
    assert len(shown) == len(argv)


@pytest.mark.parametrize("token", KNOWN)
def test_a_token_of_known_shape_is_hidden_wherever_it_stands(token: str) -> None:
    for text in (token, f"error: {token} was refused", f"x={token}", f"https://{token}@example.org"):
        assert token not in mask_text(text)
        assert token[-6:] not in mask_text(text)


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--tokens", "512"],
        ["train", "--tokens=512"],
        ["train", "--tokenizer", "path/to/tok.json"],
        ["train", "--tokenizer=bpe"],
        ["train", "--max-tokens", "4096"],
        ["train", "--eos-token", "</s>"],
        ["train", "--pad_token=0"],
        ["train", "--tokens-per-batch", "65536"],
        ["train", "--key-dim", "64", "--num-key-value-heads", "8", "--sort-key=name"],
        ["train", "--password-file", "/run/secrets-file"],
        ["train", "--token", "--verbose", "yes"],
        ["env", "PWD=/home/me", "OLDPWD=/", "PATH=/bin"],
        ["env", "HF_HUB_ENABLE_HF_TRANSFER=1", "hf_transfer", "sk-learn"],
        ["git", "clone", "ssh://git@example.org/x.git", "https://example.org:8080/a"],
        ["train", "--lr", "3e-4", "data.seed=7", "--passes", "2", "--monkey", "x"],
        ["train", "the authorization step", "--out", "runs/task-1234567890-abc"],
    ],
)
def test_what_only_sounds_alike_stays(argv: list[str]) -> None:
    assert mask_command(argv) == argv
    assert mask_text(" ".join(argv)) == " ".join(argv) or "--verbose" in argv


def test_the_value_after_a_flag_is_hidden_only_once() -> None:
    assert mask_command(["t", "--token", "abc", "def"]) == ["t", "--token", HIDDEN, "def"]


@given(st.lists(st.text(max_size=40), max_size=8))
def test_any_command_line_keeps_its_length(argv: list[str]) -> None:
    assert len(mask_command(argv)) == len(argv)


@pytest.mark.parametrize("unit", ["a", "a=", "--a ", "token ", "x://a:", "eyJ", "'", "a.-_", " ", "authorization: "])
def test_a_long_text_costs_no_more_than_its_length(unit: str) -> None:
    begun = time.process_time()
    mask_text(unit * (100_000 // len(unit)))
    assert time.process_time() - begun < 5  # a pattern that goes wrong takes minutes
