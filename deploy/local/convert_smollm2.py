"""Turns a GGUF file into a model folder that vLLM loads: `convert_smollm2.py FILE FOLDER`.

Runs in the environment that vLLM was installed into, with `gguf` and `accelerate` beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(weights: Path, folder: Path) -> None:
    """Write the dequantised model and its tokenizer, both in Hugging Face's layout.

    The weights stay float32, as they come out of the file: nothing is rounded twice.
    """
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    print("Reading tokenizer", flush=True)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    print("Reading weights", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True)
    )
    print("Writing weights", flush=True)
    model.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
