"""A version's whole way over a link like one between datacenters: S3 server, link, island."""
