"""Tests on the device are skipped, and say so, where it cannot be built."""

import pytest

from tests.device.build import library, missing


@pytest.fixture(scope="session")
def device() -> None:
    """The library of the device, built once for all workers."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    library()
