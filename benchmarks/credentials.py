"""The keys of S3 servers that benchmarks and tests start for themselves, on this machine."""

ACCESS_KEY = "skerrytestkey"
SECRET_KEY = "skerry-test-secret-0123456789"
