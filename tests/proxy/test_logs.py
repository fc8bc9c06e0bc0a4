"""The log as it is set up. What a request leaves in it: test_request_log.py."""

from __future__ import annotations

import logging

from proxy.logs import kept


def test_an_import_does_not_change_the_log() -> None:
    root = logging.getLogger()
    handler = logging.NullHandler(logging.INFO)
    before, level = list(root.handlers), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with kept():
            root.setLevel(logging.ERROR)
            root.addHandler(logging.NullHandler())
            handler.setLevel(logging.ERROR)
        assert root.level == logging.DEBUG
        assert root.handlers == [*before, handler]
        assert handler.level == logging.INFO
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
