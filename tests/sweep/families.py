"""Random small models of the families that sweeps are held against, and what they are made of."""

from typing import Any

import torch

import resstream as rs
from resstream.stream.model import StreamModel

LENGTH = 7
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD = {"head_dim": 8}
MOE = {"num_local_experts": 4}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    # What it is made of, and whether its suffixes can be run alone.
    "llama": (SIZES, True),
    "gpt2": (GPT | ENDS, True),
    "gpt_neox": (SIZES, True),
    "gemma3_text": (SIZES | HEAD | {"sliding_window": 4}, True),
    "qwen3": (SIZES | HEAD, True),
    "opt": (SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32}, True),
    "phi": (SIZES, True),
    "falcon": (SIZES, True),
    "mixtral": (SIZES | MOE, True),
    "granitemoe": (SIZES | MOE | {"residual_multiplier": 0.3}, True),
    "gptj": (GPT | ENDS | {"rotary_dim": 4}, True),
    "gpt_oss": (SIZES | HEAD | MOE, False),
    "mpt": (
        {"d_model": 32, "n_layers": 3, "n_heads": 4, "vocab_size": 64, "max_seq_len": 64},
        False,
    ),
    "bloom": ({"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64}, False),
    "mamba": (
        {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 64, "state_size": 4},
        False,
    ),
}


def make(family: str, dtype: torch.dtype = torch.float32) -> StreamModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family][0])
    module = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return rs.load(module.to(dtype))


def tokens(seed: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 64, (batch, LENGTH), generator=generator)
