"""huggingface_hub's InferenceClient speaks the TGI shape."""

from __future__ import annotations

from huggingface_hub import InferenceClient

from tests.clients.conftest import Server

PROMPT = "Once upon a time"


def test_text_generation(gateway: Server) -> None:
    client = InferenceClient(base_url=gateway.url, timeout=60)
    answer = client.text_generation(PROMPT, max_new_tokens=8, details=True, stream=False)
    assert answer.details is not None
    assert answer.details.generated_tokens == 8
    assert answer.details.finish_reason == "length"
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text


def test_text_generation_streams_what_the_whole_answer_says(gateway: Server) -> None:
    client = InferenceClient(base_url=gateway.url, timeout=60)
    whole = client.text_generation(PROMPT, max_new_tokens=8)
    pieces = list(client.text_generation(PROMPT, max_new_tokens=8, stream=True))
    assert "".join(pieces) == whole
    assert len(pieces) == 8
