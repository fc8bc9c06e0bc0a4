"""Makes a model that costs next to nothing: `tiny_model.py TOKENIZER_FOLDER FOLDER`.

One layer, hidden size 64, random weights, another model's tokenizer. Its text is
nonsense; it makes about 2,000 tokens a second on two cores, so that a load test
measures the gateway and not the model. Runs in the environment of vLLM.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

_HIDDEN: Final = 64
_CONTEXT: Final = 8192
_SEED: Final = 0


def make(tokenizer_folder: Path, folder: Path) -> None:
    """Write the model and the tokenizer; the same weights every time."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(_SEED)
    LlamaForCausalLM(_config(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _config(tokenizer: AutoTokenizer) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=_CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
