"""Random small models of several families, for tests of what must hold for all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 96


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(), tie_word_embeddings=False))


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    )


def _gemma3() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **_sizes(),
            head_dim=8,
            sliding_window=4,
            final_logit_softcapping=5.0,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    )


def _gemma2() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(
        Gemma2Config(**_sizes(), head_dim=8, sliding_window=4, final_logit_softcapping=2.0)
    )


def _opt() -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    return OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
        )
    )


def _cohere() -> Any:
    from transformers import CohereConfig, CohereForCausalLM

    return CohereForCausalLM(CohereConfig(**_sizes(), logit_scale=0.25))


def _mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(
        MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, state_size=4)
    )


def _gptj() -> Any:
    from transformers import GPTJConfig, GPTJForCausalLM

    return GPTJForCausalLM(
        GPTJConfig(
            vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=64, rotary_dim=4
        )
    )


def _granite() -> Any:
    from transformers import GraniteConfig, GraniteForCausalLM

    return GraniteForCausalLM(
        GraniteConfig(**_sizes(), residual_multiplier=0.3, logits_scaling=4.0)
    )


def _sizes() -> dict[str, int]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }


MAKERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "gemma3": _gemma3,
    "gemma2": _gemma2,
    "opt": _opt,
    "cohere": _cohere,
    "mamba": _mamba,
    "gptj": _gptj,
    "granite": _granite,
}


def make(family: str, *, seed: int = 0, shaken: bool = True) -> Any:
    """A random model; `shaken` gives norms and biases values other than their neutral ones."""
    torch.manual_seed(seed)
    model = MAKERS[family]().eval()
    if shaken:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(batch: int = 2, pos: int = 9, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, pos), generator=generator)


def tokenizer() -> Any:
    """One word a token: ``w3`` is token 3."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(
        WordLevel({f"w{index}": index for index in range(VOCABULARY)}, unk_token="w0")
    )
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", eos_token="w1", bos_token="w2"
    )


def bridge(module: Any, place: Path) -> Any:
    """TransformerLens's bridge to the same weights."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    module.save_pretrained(place)
    tokenizer().save_pretrained(place)
    return TransformerBridge.boot_transformers(
        str(place),
        hf_model=module,
        tokenizer=AutoTokenizer.from_pretrained(place),
        device="cpu",
    )
