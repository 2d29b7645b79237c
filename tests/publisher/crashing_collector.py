"""A collector process that kills itself just before its N-th request to the store.

`python -m tests.publisher.crashing_collector ROOT N` exits with 0 when it needed fewer.
"""

from __future__ import annotations

import sys

from skerry.bulletin.retention import KeepRules
from skerry.bulletin.stores import open_store
from skerry.publisher.collect import Collector
from skerry.publisher.survey import RetentionPolicy
from tests.bulletin.crashing_writer import arm_requests
from tests.bulletin.faults import FaultyStore
from tests.bulletin.runs import open_writer

POLICY = RetentionPolicy(rules=KeepRules(last=2), grace_s=0, skew_s=0)


def main() -> None:
    root, count = sys.argv[1:]
    store = FaultyStore(open_store(root))
    collector = Collector(open_writer(store, signer=None, writer="crashing"), POLICY)
    arm_requests(store, int(count))
    collector.retire()
    collector.sweep()


if __name__ == "__main__":
    main()
