"""Makes multimodal models that cost next to nothing: `tiny_multimodal.py KIND TOKENIZER FOLDER`.

KIND is `llava` (images), `qwen2-vl` (images and video) or `qwen2-audio`. Two
layers, random weights, another model's tokenizer with the tokens that stand for
media. What they say is nonsense, but it depends on what they see and hear. Runs
in the environment of vLLM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing

_HIDDEN: Final = 64
_CONTEXT: Final = 4096
_SEED: Final = 0
# Wide enough that the choice of tokens hangs on the medium.
_SPREAD: Final = 0.5
_PIXELS: Final = 56
_PATCH: Final = 14
_QWEN_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def llava(tokenizer: Any, folder: Path) -> None:
    """Images of 56 x 56 pixels through a CLIP tower. Its chat template knows only text.

    Like Llama's, its tokenizer begins every prompt with a token that the template holds too.
    """
    (image,) = _added(tokenizer, "<image>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{tokenizer.bos_token} $A",
        special_tokens=[(tokenizer.bos_token, tokenizer.bos_token_id)],
    )
    vision = hf.CLIPVisionConfig(
        **_layers(),
        image_size=_PIXELS,
        patch_size=_PATCH,
        initializer_range=_SPREAD,
    )
    config = hf.LlavaConfig(
        vision_config=vision,
        text_config=hf.LlamaConfig(**_text(tokenizer)),
        image_token_index=image,
        vision_feature_layer=-1,
        image_seq_length=(_PIXELS // _PATCH) ** 2,
    )
    # vLLM's own names for the weights of the tower.
    tower = "vision_tower."
    _save(
        hf.LlavaForConditionalGeneration(config),
        folder,
        lambda name: (
            name.replace(tower, tower + "vision_model.")
            if f"{tower}vision_model." not in name
            else name
        ),
    )
    size = {"height": _PIXELS, "width": _PIXELS}
    hf.LlavaProcessor(
        image_processor=hf.CLIPImageProcessor(size={"shortest_edge": _PIXELS}, crop_size=size),
        tokenizer=tokenizer,
        patch_size=_PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)


def qwen2_vl(tokenizer: Any, folder: Path) -> None:
    """Images and video, with a chat template that knows parts."""
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    start, end, image, video = _added(tokenizer, *names)
    tokenizer.chat_template = _QWEN_TEMPLATE
    vision = {
        "depth": 1,
        "embed_dim": _HIDDEN,
        "hidden_size": _HIDDEN,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": _PATCH,
        "initializer_range": _SPREAD,
    }
    # 32 dimensions of each head turn by time, height and width: 2 * (4 + 6 + 6).
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    config = hf.Qwen2VLConfig(
        vision_config=vision,
        text_config={**_text(tokenizer), "rope_parameters": rope},
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
    )
    _save(hf.Qwen2VLForConditionalGeneration(config), folder)
    pixels = {"min_pixels": _PIXELS**2, "max_pixels": 4 * _PIXELS**2}
    hf.Qwen2VLProcessor(
        image_processor=hf.Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=hf.Qwen2VLVideoProcessor(**pixels),
        chat_template=_QWEN_TEMPLATE,
    ).save_pretrained(folder)


def qwen2_audio(tokenizer: Any, folder: Path) -> None:
    """Sound through a Whisper encoder of one layer."""
    audio, _, _ = _added(tokenizer, "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    encoder = hf.Qwen2AudioEncoderConfig(
        num_mel_bins=80,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=2 * _HIDDEN,
        d_model=_HIDDEN,
        init_std=_SPREAD,
    )
    config = hf.Qwen2AudioConfig(
        audio_config=encoder,
        text_config=hf.Qwen2Config(**_text(tokenizer)),
        audio_token_index=audio,
    )
    model = hf.Qwen2AudioForConditionalGeneration(config)
    _save(model, folder, lambda name: name.replace("model.model.", "model."))
    features = hf.WhisperFeatureExtractor(feature_size=80)
    hf.Qwen2AudioProcessor(feature_extractor=features, tokenizer=tokenizer).save_pretrained(folder)


def _layers() -> dict[str, int]:
    return {
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }


def _text(tokenizer: Any) -> dict[str, Any]:
    return {
        **_layers(),
        "vocab_size": len(tokenizer),
        "num_key_value_heads": 2,
        "max_position_embeddings": _CONTEXT,
        "initializer_range": _SPREAD,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _added(tokenizer: Any, *names: str) -> list[int]:
    """The ids of new special tokens."""
    tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
    return [tokenizer.convert_tokens_to_ids(name) for name in names]


def _save(model: Any, folder: Path, renamed: Callable[[str], str] = str) -> None:
    """Write the model with the names for its weights that vLLM looks for."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = {renamed(name): weight for name, weight in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})


MAKERS: Final = {"llava": llava, "qwen2-vl": qwen2_vl, "qwen2-audio": qwen2_audio}


def make(kind: str, tokenizer_folder: Path, folder: Path) -> None:
    """Write one model, its tokenizer and its processor; the same weights every time."""
    torch.manual_seed(_SEED)
    MAKERS[kind](hf.AutoTokenizer.from_pretrained(tokenizer_folder), folder)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
