"""A real S3 server for the tests of stores."""

from tests.servers.fixtures import aws, run_url, seaweed, session_bucket

__all__ = ["aws", "run_url", "seaweed", "session_bucket"]
