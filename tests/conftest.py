"""What all tests share: property tests find the same every time, however busy the machine.

To search further: `pytest --hypothesis-profile explore`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=5000)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: the test looks into the only worker")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What has `workers` is run with one and with two of them: a client must not notice."""
    if "workers" in metafunc.fixturenames:
        alone = metafunc.definition.get_closest_marker("alone") is not None
        counts = [1] if alone else [1, 2]
        metafunc.parametrize("workers", counts, indirect=True, ids="workers={}".format)
