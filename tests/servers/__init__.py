"""Servers that the stores are tried against: a real S3, a web server, a road with faults."""
