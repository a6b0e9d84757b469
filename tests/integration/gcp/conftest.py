"""A stand-in for the Cloud TPU API."""

from tests.support.tpu_api_fixtures import cloud

__all__ = ["cloud"]
