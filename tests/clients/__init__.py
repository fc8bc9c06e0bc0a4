"""Clients that we did not write, unmodified, against the gateway on a real engine.

They run in an environment of their own (`make test-clients`): some need old or
heavy packages that must not meet the gateway's. The gateway is another process,
started by `conftest.py`.
"""
