"""The stores that answer over a network, and the wrappers around any store."""
