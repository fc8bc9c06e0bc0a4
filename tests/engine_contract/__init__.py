"""What every engine owes the gateway: `suite`, run over all of them.

Here over the stub and over remote vLLM servers of both dialects; over real
engines in tests/e2e/test_engine_contract.py.
"""
