"""Secrets in command lines and texts are hidden; what only sounds alike stays readable."""

from __future__ import annotations

import subprocess
import sys
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
        ["docker", "run", f"--env=WANDB_API_KEY={SECRET}", f"--opt=auth.password={SECRET} {SECRET}"],
        ["train", f"--set=env=DB_PASSWORD={SECRET} {SECRET}"],
        ["curl", f"-uuser:{SECRET}", "https://example.org"],
        ["/usr/bin/curl", "-sSfu", f"user:{SECRET}", "https://example.org"],
        ["sh", "-c", f"curl -s -uuser:{SECRET} https://example.org"],
        ["git", "clone", f"https://{SECRET}@example.org/x.git"],
        ["curl", f"https://example.org/x?sv=1&sig={SECRET}%3D&se=2"],
        ["curl", f"https://example.org/x?X-Amz-Credential={SECRET}&X-Amz-Signature={SECRET}"],
        ["curl", f"https://api.telegram.org/bot123456:{SECRET}/sendMessage"],
        ["curl", f"https://discord.com/api/v10/webhooks/1/{SECRET}"],
    ],
)
def test_a_secret_is_hidden(argv: list[str]) -> None:
    shown = mask_command(argv)
    assert SECRET not in " ".join(shown)
    assert HIDDEN in " ".join(shown)
    assert shown[0] == argv[0]
    assert len(shown) == len(argv)


@pytest.mark.parametrize(
    "text",
    [
        f"ValueError: password={SECRET}",
        f"INFO: api_key={SECRET}",
        f"env: DB_PASSWORD={SECRET}",
        f"error=token={SECRET}",
        f"args=--password={SECRET}",
        f"settings: password: {SECRET}",
        f"a: b: c: d: e: f: g: h: i: j: k: password: {SECRET}",
        f"url: postgres?password={SECRET}",
        f"Command '['train', '--password', '{SECRET}']' returned non-zero exit status 1",
        f'{{\\"api_key\\": \\"{SECRET}\\", \\"lr\\": 1}}',
        f'{{"password": "a\\"b {SECRET}", "step": 120}}',
        f'password="{SECRET}',
        f"{{:password => '{SECRET}'}}",
        f"token: {SECRET}",
        f'{{\\"Authorization\\": \\"Basic {SECRET}\\"}}',
        f'"Authorization" => "Token {SECRET}"',
        f'{{\\"Cookie\\": \\"a={SECRET}; b={SECRET}\\"}}',
        f"HF_TOKEN=12{SECRET}",
    ],
)
def test_a_secret_is_hidden_whatever_stands_before_its_name(text: str) -> None:
    assert SECRET not in mask_text(text)
    assert HIDDEN in mask_text(text)
    assert mask_text(mask_text(text)) == mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        *("step: 1200 token: 512", "invalid token: 50257 at position 3", "cookie: 5", "secrets: 3 steps"),
        *("pass: step-120", "pass: step 120 done", "unexpected token: '<' in /x/y.json", "next token: 17"),
        *("token: /data/run/step-00000120.pt", "CREDENTIALS: /root/.kaggle/kaggle.json", "PROJECT_PWD=/home/u/job"),
        *("KeyError: 'blocks.3.key'", "missing key: layers.0.attn.weight", "https://me@example.org/x", "key == 5"),
        *("curl -u 1000:1000", "python -update:x", "signature: (a, b)", "https://example.org/?design=a&step=120"),
    ],
)
def test_a_text_that_is_needed_stays(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize("text", ["password: 123456", "--token=123456", "HF_TOKEN=123456", "DB_PASSWORD=/Ab3dE6gH8jK0"])
def test_a_number_behind_a_name_that_leaves_no_doubt_is_hidden(text: str) -> None:
    assert mask_text(text).endswith(HIDDEN)


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


def took_s(text: str) -> float:
    """The quickest of three: another process may have had the core."""
    taken = []
    for _ in range(3):
        begun = time.process_time()
        mask_text(text)
        taken.append(time.process_time() - begun)
    return min(taken)


@pytest.mark.parametrize(
    "unit",
    ["hf_", "hf_hf_", "eyJ-", "eyJaaaaaaaa.aaaaaaaa-", "a:", "password='", "-ua", "curl -ua", "cookie:", "https://a"],
)
def test_four_times_the_text_costs_four_times_the_time(unit: str) -> None:
    """Sixteen times, where an expression reads on from each place to the end."""
    short_s, long_s = (took_s(unit * (size // len(unit))) for size in (25_000, 100_000))
    assert long_s < 10 * short_s + 0.02


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
    values = secret_values({"A_TOKEN": "abc9ef", "B_TOKEN": "abc9efghi"})
    assert hide_values("abc9efghi", values) == HIDDEN


@pytest.mark.parametrize("value", ["/home/u/job", "000001", "step-0", "phase", "training", "/data", "/mnt/Run7/ckpt"])
def test_what_is_a_path_a_number_or_a_word_is_not_taken_out_of_every_text(value: str) -> None:
    values = secret_values({"PROJECT_PWD": value, "SWEEP_TOKEN": value})
    text = f"step 1000001, wrote /home/u/job/step-00000120.pt in phase training of /mnt/Run7/ckpt and /data: {value}"
    assert hide_values(text, values) == text


@pytest.mark.parametrize(
    "value", ["hunter2", "123456789012", "/wJalrXUtnFEMI7K/bPxRfiCYzEXAMPLE3", "correcthorsebattery"]
)
def test_what_is_none_of_these_is_taken_out(value: str) -> None:
    values = secret_values({"DB_PASSWORD": value})
    for around in ("{}", "at {} it", "'{}'", "a={}&b", "first\\n{}", "%3D{}", "{}.", "/{}/"):
        assert value not in hide_values(around.format(value), values), around


def test_a_short_value_is_not_taken_out_of_the_middle_of_a_word() -> None:
    values = secret_values({"DB_PASSWORD": "train1", "RUN_TOKEN": "120000000000"})
    text = "train12 xtrain1 wrote 1200000000001"
    assert hide_values(text, values) == text


def test_nothing_is_compiled_before_a_text_needs_it() -> None:
    """All of it costs 30 to 45 ms on a loaded machine, and each `watchdog status` would pay it."""
    code = (
        "import re\nfrom watchdog import masking\n"
        "assert masking._compiled.cache_info().currsize == 0\n"
        "masking.mask_text('trained for 3 h up to step 120')\n"
        "assert masking._compiled.cache_info().currsize == 0\n"
        "masking.mask_text('step 120: loss=3')\n"
        "assert masking._compiled.cache_info().currsize <= 2, masking._compiled.cache_info()\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "unit", ["-----BEGIN PRIVATE KEY-----\n", "MIIEpAIBAAKCAQEA7bq0\n", "-u a:", "cookie: ", '"key":"a']
)
def test_these_cost_no_more_than_their_length_either(unit: str) -> None:
    begun = time.process_time()
    mask_text(unit * (100_000 // len(unit)) + "PRIVATE KEY-----")
    assert time.process_time() - begun < 5
