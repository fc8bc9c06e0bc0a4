"""What all tests share: property tests find the same every time, however busy the machine.

To search further: `pytest --hypothesis-profile explore`.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=5000)
settings.load_profile("same")
