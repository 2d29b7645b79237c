"""Credentials of the S3 server that benchmarks and tests start for themselves."""

from __future__ import annotations

ACCESS_KEY = "skerrytestkey"
SECRET_KEY = "skerry-test-secret-0123456789"
