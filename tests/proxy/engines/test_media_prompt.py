"""What vLLM may read: the media of our own requests, and nothing that a client names."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.engines.media_prompt import NO_MEDIA, MediaTable, make_connector

SECRET = "https://bucket.example/x.png?signature=xyzzy"


class Base:
    """In the place of vLLM's MediaConnector."""


async def test_a_url_of_a_client_of_vllms_own_api_is_refused_and_not_repeated() -> None:
    connector: Any = make_connector(Base, MediaTable(100))()
    for url in (SECRET, "data:image/png;base64,AAAA", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="takes no media") as caught:
            await connector.load_from_url_async(url, None)
        assert str(caught.value) == NO_MEDIA
        with pytest.raises(ValueError, match="takes no media"):
            connector.load_from_url(url, None)
