"""Secrets in command lines and texts are hidden; what only sounds alike stays readable."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.masking import HIDDEN, hide_values, is_secret_name, mask_command, mask_lines, mask_text, secret_values

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
        ["train", "--wandb-key", SECRET],
        ["env", "KAGGLE_KEY=" + SECRET, "PGPASSWORD=" + SECRET, "DB_PASS=" + SECRET, "SMTP_PASS=" + SECRET],
        ["env", "AZURE_STORAGE_KEY=" + SECRET, "WANDB_KEY=" + SECRET, "REDIS_AUTH=" + SECRET],
        ["train", "--credentials", SECRET],
        ["train", "--cookie=" + SECRET],
        ["curl", "-H", f"Cookie: a={SECRET}; b={SECRET}"],
        ["curl", "-u", "user:" + SECRET, "https://example.org"],
        ["curl", "--user=user:" + SECRET],
        ["sh", "-c", f"curl -u 'user:{SECRET}' https://example.org"],
        ["curl", "https://hooks.slack.com/services/T0000/B0000/" + SECRET],
        ["echo", f'{{"username":"me","key":"{SECRET}"}}'],
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
        ["train", "--cache-key=abc", "--primary-key", "id", "--foreign_key=x", "--public-key", "ssh-ed25519"],
        ["train", "--forward-pass", "2", "pass: 3", "auth=true", "--auth", "none", "key: value", "rng_key=17"],
        ["docker", "run", "-u", "1000:1000", "python", "-u", "train.py"],
        ["aws", "s3", "--user", "s3://bucket/x", "--bypass=yes", "keyboard=us", '{"key": "loss", "n": 1}'],
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


@pytest.mark.parametrize(
    "name",
    [
        *("KAGGLE_KEY", "PGPASSWORD", "DB_PASS", "SMTP_PASS", "AZURE_STORAGE_KEY", "WANDB_KEY", "REDIS_AUTH"),
        *("credentials", "cookie", "aws.Credentials", "session_cookie", "SSHPASS", "sshKey", "GCP_CREDS"),
    ],
)
def test_a_name_that_holds_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("SSH_AUTH_SOCK", "PGPASSFILE", "COOKIE_FILE", "CREDENTIALS_PATH", "sort_key", "cache_key", "key", "monkey"),
        *("forward_pass", "compass", "KEY_COUNT", "PWD", "author", "query_key", "unexpected_key"),
    ],
)
def test_a_name_that_only_sounds_so(name: str) -> None:
    assert not is_secret_name(name)


PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq0\n" * 5 + "-----END RSA PRIVATE KEY-----"


def test_a_private_key_is_hidden_whole_cut_and_in_one_line() -> None:
    for text in (PEM, PEM.replace("\n", "\\n"), PEM[:90], PEM[45:], f"a\n{PEM}\nb"):
        assert "MIIE" not in mask_text(text), text
    assert mask_lines(f"before\n{PEM}\nafter".splitlines()) == (
        "before",
        f"-----BEGIN RSA PRIVATE KEY-----{HIDDEN}",
        "after",
    )
    certificate = PEM.replace("RSA PRIVATE KEY", "CERTIFICATE")
    assert mask_text(certificate) == certificate


def test_the_values_of_secret_variables_are_hidden_wherever_they_stand() -> None:
    values = secret_values(
        {"DB_PASSWORD": 's3cr3t!"xyz', "PATH": "/usr/bin", "HF_TOKEN": "short"}, {"WANDB_KEY": "kkkkkkkk1234"}
    )
    assert hide_values('at s3cr3t!"xyz and "s3cr3t!\\"xyz" of kkkkkkkk12345 in /usr/bin, short', values) == (
        f'at {HIDDEN} and "{HIDDEN}" of {HIDDEN}5 in /usr/bin, short'
    )
    assert hide_values("nothing is known", secret_values({})) == "nothing is known"


def test_of_two_values_the_longer_one_is_hidden_whole() -> None:
    values = secret_values({"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghi"})
    assert hide_values("abcdefghi", values) == HIDDEN


@pytest.mark.parametrize(
    "unit", ["-----BEGIN PRIVATE KEY-----\n", "MIIEpAIBAAKCAQEA7bq0\n", "-u a:", "cookie: ", '"key":"a']
)
def test_these_cost_no_more_than_their_length_either(unit: str) -> None:
    begun = time.process_time()
    mask_text(unit * (100_000 // len(unit)) + "PRIVATE KEY-----")
    assert time.process_time() - begun < 5
