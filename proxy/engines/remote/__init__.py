"""A vLLM server over HTTP behind the engine seam. Nothing here imports vllm or torch.

Follow a request: `engine` picks an upstream → `client` opens its answer →
`stream` reads it in blocks (`sse`, `chunks`) and hands tokens to the reader.
A prompt with media is a `message`. `upstream` keeps what is known of one server:
`probe` asks it once when it comes up, `gauges` reads its load, `pieces` knows the
text of its tokens.
"""

from proxy.engines.remote.engine import RemoteEngine, UpstreamOptions

__all__ = ["RemoteEngine", "UpstreamOptions"]
