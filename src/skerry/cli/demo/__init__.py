"""`skerry demo`: a trainer, a bulletin and two islands on this machine, watched and checked."""

from skerry.cli.demo.command import app

__all__ = ["app"]
