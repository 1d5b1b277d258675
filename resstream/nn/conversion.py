"""How do weights of transformers' models get into the native model?  Llama and GPT-2, exactly."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from resstream.errors import UnsupportedModelError
from resstream.nn.config import (
    LayerNorm,
    LearnedPositions,
    MlpKind,
    RmsNorm,
    Rotary,
    TransformerConfig,
)
from resstream.nn.pretrained import ResstreamConfig, ResstreamForCausalLM

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, LlamaForCausalLM

_LLAMA_NAMES = (
    ("model.layers.", "blocks."),
    ("self_attn.", "attn."),
    ("post_attention_layernorm", "ln2"),
    ("input_layernorm", "ln1"),
    ("model.embed_tokens", "embed"),
    ("model.norm", "ln_final"),
    ("lm_head", "unembed"),
)
_GPT2_NAMES = (
    ("transformer.h.", "blocks."),
    ("ln_1", "ln1"),
    ("ln_2", "ln2"),
    ("attn.c_proj", "attn.o_proj"),
    ("mlp.c_fc", "mlp.up_proj"),
    ("mlp.c_proj", "mlp.down_proj"),
    ("transformer.wte", "embed"),
    ("transformer.wpe", "pos_embed"),
    ("transformer.ln_f", "ln_final"),
    ("lm_head", "unembed"),
)


def from_llama(source: "LlamaForCausalLM") -> ResstreamForCausalLM:
    """The native model with the weights of a Llama: the same function, plain Pre-LN.

    Raises:
        UnsupportedModelError: The Llama has what the native model has not: scaled rotary
            positions, an activation other than SiLU, or biases in some matrices only.
    """
    theirs = source.config
    rope: dict[str, Any] = dict(theirs.rope_parameters or {})
    rope_type = rope.get("rope_type", "default")
    if rope_type != "default" or theirs.hidden_act != "silu":
        raise UnsupportedModelError(
            "a Llama must have default rotary positions and silu to become a native model, "
            f"got rope_type {rope_type!r} and hidden_act {theirs.hidden_act!r}"
        )
    if theirs.attention_bias != theirs.mlp_bias:
        raise UnsupportedModelError(
            "a Llama must have biases everywhere or nowhere to become a native model, "
            f"got attention_bias={theirs.attention_bias} and mlp_bias={theirs.mlp_bias}"
        )
    config = TransformerConfig(
        n_layers=theirs.num_hidden_layers,
        d_model=theirs.hidden_size,
        n_heads=theirs.num_attention_heads,
        n_kv_heads=theirs.num_key_value_heads,
        d_head=theirs.head_dim,
        d_mlp=theirs.intermediate_size,
        d_vocab=theirs.vocab_size,
        n_ctx=theirs.max_position_embeddings,
        norm=RmsNorm(eps=theirs.rms_norm_eps),
        positions=Rotary(base=float(rope.get("rope_theta", 10_000.0))),
        mlp="swiglu",
        bias=theirs.attention_bias,
        tied=theirs.tie_word_embeddings,
    )
    weights = {_renamed(name, _LLAMA_NAMES): value for name, value in source.state_dict().items()}
    return _filled(source, config, weights)


def from_gpt2(source: "GPT2LMHeadModel") -> ResstreamForCausalLM:
    """The native model with the weights of a GPT-2: the same function, plain Pre-LN.

    Raises:
        UnsupportedModelError: The GPT-2 scales attention otherwise than by 1/sqrt(d_head), or has
            an activation other than GELU.
    """
    theirs = source.config
    kinds: dict[str, MlpKind] = {"gelu_new": "gelu_tanh", "gelu": "gelu"}
    scaled_oddly = theirs.scale_attn_by_inverse_layer_idx or not theirs.scale_attn_weights
    if theirs.activation_function not in kinds or scaled_oddly:
        raise UnsupportedModelError(
            "a GPT-2 must have gelu and usual attention to become a native model, got "
            f"activation_function {theirs.activation_function!r}, scale_attn_weights "
            f"{theirs.scale_attn_weights}, scale_attn_by_inverse_layer_idx "
            f"{theirs.scale_attn_by_inverse_layer_idx}"
        )
    config = TransformerConfig(
        n_layers=theirs.n_layer,
        d_model=theirs.n_embd,
        n_heads=theirs.n_head,
        d_mlp=theirs.n_inner,
        d_vocab=theirs.vocab_size,
        n_ctx=theirs.n_positions,
        norm=LayerNorm(eps=theirs.layer_norm_epsilon),
        positions=LearnedPositions(),
        mlp=kinds[theirs.activation_function],
        bias=True,
        tied=theirs.tie_word_embeddings,
    )
    weights: dict[str, Tensor] = {}
    for name, value in source.state_dict().items():
        ours = _renamed(name, _GPT2_NAMES)
        # Conv1D keeps [in, out]; one matrix holds query, key and value side by side.
        value = value.T if "blocks." in ours and value.ndim == 2 else value
        if "attn.c_attn" in ours:
            parts = value.chunk(3, dim=0)
            for letter, part in zip("qkv", parts, strict=True):
                weights[ours.replace("c_attn", f"{letter}_proj")] = part
        else:
            weights[ours] = value
    return _filled(source, config, weights)


def _renamed(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for theirs, ours in pairs:
        name = name.replace(theirs, ours)
    return name


def _filled(
    source: "LlamaForCausalLM | GPT2LMHeadModel",
    config: TransformerConfig,
    weights: dict[str, Tensor],
) -> ResstreamForCausalLM:
    ids = {name: getattr(source.config, name) for name in ("bos_token_id", "eos_token_id")}
    native = ResstreamForCausalLM(ResstreamConfig.of(config, **ids)).train(source.training)
    native.model.to(device=source.device, dtype=source.dtype).load_state_dict(weights)
    return native
