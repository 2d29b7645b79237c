"""One version from many ranks: each diffs, encodes and uploads what it holds; one of them commits.

A **part** is a flat range of a tensor's bytes that a rank holds.  Leaves are the grain: the bytes
of a leaf that several ranks hold go to the lowest of them, its **owner**.  Nothing larger than a
leaf is ever put together from several ranks.
"""

from skerry.publisher.sharding.background import beside_training
from skerry.publisher.sharding.fabric import Alone, Fabric
from skerry.publisher.sharding.plan import TensorPart
from skerry.publisher.sharding.publisher import ShardedPublisher
from skerry.publisher.sharding.report import ShardedReport

__all__ = ["Alone", "Fabric", "ShardedPublisher", "ShardedReport", "TensorPart", "beside_training"]
