"""Lossless weight patches from an RL trainer to rollout engines in other datacenters."""
