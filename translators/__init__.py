"""The wire formats: bytes and values in, bytes and values out.

Nothing here does I/O, reads a clock, or knows a server or an engine, so every
rule of the contract can be tested as a plain function call.
"""
