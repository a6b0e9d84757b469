"""Which places for checkpoints there are."""

import importlib.util
from pathlib import Path

import pytest

from trainer.contract.config.loader import ConfigError
from trainer.contract.storage.paths import to_path


def test_a_path_is_made_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Path(to_path("~/x")) == Path(to_path("x")) == tmp_path / "x"


def test_a_url_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert str(to_path("gs://bucket/x/y")) == "gs://bucket/x/y"
    assert str(to_path("gs://bucket/x/") / "y") == "gs://bucket/x/y"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gs://bucket/x", r"gs://bucket/x needs gcsfs.*pip install 'slipway\[gcs\]'"),
        ("gs:///x", "has no bucket"),
        ("s3://bucket/x", "unsupported URL"),
    ],
)
def test_a_url_that_cannot_be_reached_is_refused(monkeypatch, url, said):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=said):
        to_path(url)
