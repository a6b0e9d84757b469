"""Secrets do not survive the redactor, however they are spelled; other text does."""

import base64
import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.diagnosis.redact import REDACTED, Redactor

VALUES = st.text(min_size=6, max_size=40).filter(lambda text: text.strip() and text not in REDACTED)
SPELLINGS = {
    "plain": lambda value: value,
    "json": json.dumps,
    "json_in_json": lambda value: json.dumps(json.dumps({"a": value})),
    "repr": repr,
    "url": lambda value: "https://host/?q=" + quote(value, safe=""),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "inside_a_word": lambda value: f"x{value}y",
}
S = "s3cr3t-v4lue"


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(value=VALUES, before=st.text(max_size=20), after=st.text(max_size=20))
def test_declared_value_is_gone(spelling: str, value: str, before: str, after: str) -> None:
    written = SPELLINGS[spelling](value)
    found = Redactor([value])(before + written + after)
    assert written not in found or written in REDACTED
    assert REDACTED in found


@pytest.mark.parametrize(
    "name", ["WANDB_API_KEY", "hf_token", "DB_PASSWORD", "AWS_SECRET", "MY_AUTH"]
)
def test_value_of_a_variable_with_a_secret_name_is_gone(name: str) -> None:
    assert Redactor((), {name: S, "HOME": "/root"})(f"a {S} in /root") == "a [redacted] in /root"


@pytest.mark.parametrize(
    "line",
    [
        f"api_key={S}",
        f"export HF_TOKEN='{S}'",
        f"password: {S}",
        f"  - db_password: {S} and more of it",
        f'{{"auth_token": "{S}", "step": 3}}',
        json.dumps({"message": json.dumps({"token": S})}),
        f"Authorization: Bearer {S}",
        f"curl -H 'authorization: Basic {S}=='",
        f"wandb login --api-key {S}",
        f"run --token={S} --steps 3",
        f"git clone https://me:{S}@host/repo.git",
        f"postgres://user:{S}@db:5432/name",
        f"https://bucket/x?X-Amz-Signature={S}&a=1",
        f"notify.webhook = {S}",
    ],
)
def test_value_behind_a_secret_name_is_gone(line: str) -> None:
    assert S not in Redactor()(line)


def test_json_stays_json() -> None:
    fields = {"auth_token": S, "message": json.dumps({"api_key": S}), "step": 3}
    found = json.loads(Redactor()(json.dumps(fields)))
    assert found == {**fields, "auth_token": REDACTED, "message": '{"api_key": "[redacted]"}'}


@pytest.mark.parametrize(
    "token",
    [
        "ghp_" + "a1B2" * 9,
        "hf_" + "aBcD" * 8,
        "sk-" + "x9Y8" * 10,
        "AKIA" + "ABCD1234" * 2,
        "xoxb-123456789012-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "https://hooks.slack.com/services/T0/B0/abcdef",
    ],
)
def test_token_of_a_known_service_is_gone(token: str) -> None:
    assert token not in Redactor()(f"it printed {token} here")


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\ndef\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize("lines", [slice(0, 4), slice(0, 3), slice(1, 4)])
def test_private_key_is_gone_even_if_it_is_cut(lines: slice) -> None:
    text = "\n".join(KEY.splitlines()[lines])
    assert "def" not in Redactor()(f"{text}\n" if lines.start else f"before\n{text}")


def test_lines_of_a_secret_with_several_lines_are_gone() -> None:
    found = Redactor(["first-line\nsecond-line"])("log: second-line\n")
    assert found == "log: [redacted]\n"


def test_short_declared_value_is_gone_only_as_a_word() -> None:
    assert Redactor(["me"])("me and some") == "[redacted] and some"


def test_value_in_another_value_leaves_no_rest() -> None:
    assert Redactor(["abcdef", "abcdef-ghijkl"])("abcdef-ghijkl") == REDACTED


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "step", "tokens": 4096, "tokens_per_s": 1234.5}',
        "data: {source: stdlib, tokenizer: bytes, seq_len: 64}",
        "File \"/home/me/train.py\", line 31 in next_batch",
        "host-0001 exited with code 1 (limit 10 s: deadlines.step_s of the job)",
        "https://jax.dev/docs?page=2",
    ],
)  # fmt: skip
def test_text_without_secrets_is_unchanged(line: str) -> None:
    assert Redactor(["unrelated"], {"A_TOKEN": "unrelated-too"})(line) == line


@pytest.mark.parametrize("part", ["a-", "a.", "key", "token=", "\\", '\\"', "'", "://", " ", "=\n"])
def test_long_text_takes_linear_time(part: str) -> None:
    redact, took_s = Redactor([S]), []
    for length in (20_000, 200_000):
        began = time.perf_counter()
        redact(part * (length // len(part)))
        took_s.append(time.perf_counter() - began)
    assert took_s[1] < 40 * took_s[0] + 0.5
