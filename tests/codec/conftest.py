"""Fixtures of the codec's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry.codec import kernel

KERNELS = list(kernel.available())


@pytest.fixture(scope="module", params=dict.fromkeys([KERNELS[0], KERNELS[-1]]))
def each_kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a module's tests on the fastest kernel and on the reference.

    That those in between are the same is `test_kernel`'s to show.
    """
    with kernel.using(request.param):
        yield request.param
