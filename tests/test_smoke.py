"""The page's request against the stub: the shortest way through everything."""

from __future__ import annotations

from tests.support import post, serving


async def test_a_request_streams_one_frame_per_token() -> None:
    async with serving() as running:
        response = await post(
            running.port,
            {"id": "a123", "text_input": "one two", "parameters": {"max_new_tokens": 3}},
        )
    assert response.status == 200
    assert response.complete
    assert [frame["text_output"] for frame in response.frames] == [" one", " two", " one"]
    assert list(response.frames[0]) == ["id", "model_name", "model_version", "text_output"]
