"""The gateway: an HTTP server that speaks MindIE's streaming API in front of vLLM."""

__version__ = "0.1.0"

SERVER_NAME = "mindie-gateway"
"""How the gateway calls itself, in headers and metadata."""
