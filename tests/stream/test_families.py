"""Discovery without a table of families: the stream of every family is found and proved."""

from typing import Any

import pytest
import torch

from resstream.stream.model import StreamModel

_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GQA = {**_SIZES, "num_key_value_heads": 2, "intermediate_size": 96}
_WIDE = {**_GQA, "head_dim": 16}
_WITH_MLP = {**_SIZES, "intermediate_size": 96}
_GPT = {
    "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 97, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip

CAUSAL: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "llama": _GQA,
    "qwen2": _GQA,
    "qwen3": _WIDE,
    "qwen3_moe": {**_WIDE, **_EXPERTS},
    "qwen3_next": {
        **_WIDE, **_EXPERTS, **_LINEAR,
        "num_hidden_layers": 4, "shared_expert_intermediate_size": 32,
    },
    "mistral": _GQA,
    "mixtral": {**_GQA, "num_local_experts": 4},
    "gemma": _WIDE,
    "gemma2": _WIDE,
    "gemma3_text": _WIDE,
    "gpt_neox": _WITH_MLP,
    "gptj": {**_GPT, "rotary_dim": 8},
    "gpt_neo": {
        "hidden_size": 64, "num_layers": 4, "num_heads": 4, "vocab_size": 97,
        "max_position_embeddings": 64, "attention_types": [[["global", "local"], 2]],
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "opt": {**_SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "phi": _WITH_MLP,
    "phi3": _GQA,
    "falcon": {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 97,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "olmo": _GQA,
    "olmo2": _GQA,
    "cohere": _GQA,
    "cohere2": _GQA,
    "stablelm": {**_WITH_MLP, "num_key_value_heads": 4},
    "starcoder2": _GQA,
    "granite": {**_GQA, "residual_multiplier": 0.22},
    "glm4": _WIDE,
    "smollm3": _GQA,
    "nemotron": _GQA,
    "codegen": {**_GPT, "rotary_dim": 8},
    "biogpt": _WITH_MLP,
    "xglm": {
        "d_model": 64, "num_layers": 3, "attention_heads": 4, "ffn_dim": 96, "vocab_size": 97,
        "max_position_embeddings": 64, "decoder_start_token_id": 2,
    },
    "gpt_oss": {**_WIDE, "num_local_experts": 4},
    "granitemoe": {**_GQA, "num_local_experts": 4, "residual_multiplier": 0.3},
    "lfm2": {
        **_GQA, "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
    },
    "jamba": {**_GQA, "num_hidden_layers": 8, "num_experts": 4, "mamba_d_state": 8},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 97, "state_size": 8},
    "falcon_mamba": {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 97, "state_size": 8},
    "rwkv": {
        "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 97, "attention_hidden_size": 64,
        "context_length": 64,
    },
    "bloom": {
        "hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 97,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    },
    "mpt": {"d_model": 64, "n_layers": 3, "n_heads": 4, "vocab_size": 97, "max_seq_len": 64},
}  # fmt: skip
"""model_type -> config of a random small model."""

PARALLEL = {"gpt_neox", "gptj", "phi", "falcon", "cohere", "cohere2", "codegen"}
OPAQUE = {("rwkv", 0)}  # its first block puts a norm in the place of the stream
ONE_WRITE = {"mamba", "falcon_mamba"}
PLACEMENTS = {
    "gemma2": "sandwich", "gemma3_text": "sandwich", "glm4": "sandwich", "olmo2": "after",
}  # fmt: skip
SCALES = {"granite": 0.22, "granitemoe": 0.3}
EXPERTS_ONLY = {"qwen3_moe", "qwen3_next", "mixtral", "gpt_oss", "granitemoe"}


def make(family: str) -> StreamModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **CAUSAL[family])
    return StreamModel(AutoModelForCausalLM.from_config(config), name=family)


def tokens(batch: int = 2, pos: int = 7) -> torch.Tensor:
    return torch.randint(3, 97, (batch, pos), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", CAUSAL)
def test_the_stream_is_found_and_proved(family: str) -> None:
    model = make(family)
    spec = model.spec
    assert spec.replay_error == 0
    assert spec.causal
    assert spec.readout.norm is not None
    assert spec.readout.head is not None
    assert {(family, block.layer) for block in spec.blocks if block.opaque} == {
        key for key in OPAQUE if key[0] == family
    }
    for block in spec.blocks:
        if block.opaque:
            assert block.reason is not None
            continue
        assert len(block.writes) == (1 if family in ONE_WRITE else 2)
        assert block.placement == PLACEMENTS.get(family, "pre")
        assert block.parallel == (family in PARALLEL)
        for write in block.writes:
            assert write.residue < 2e-6
            assert write.scale == pytest.approx(SCALES.get(family, 1.0), abs=1e-5)
    matrices = [write.output_matrix for write in spec.writes if write.name != "block"]
    if family in EXPERTS_ONLY:
        assert None in matrices
    elif family != "jamba":
        assert None not in matrices
    _check_sites(model)


def _check_sites(model: StreamModel) -> None:
    """The stream is the embedding plus the writes, and a write that is changed moves it by that."""
    values: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        model.run(tokens(), {site: _keeper(site, values) for site in model.sites})
        block = model.spec.blocks[-1]
        name = f"blocks.{block.layer}"
        before, after = values[f"{name}.hook_resid_pre"], values[f"{name}.hook_resid_post"]
        writes = [values[write.site] for write in block.writes]
        torch.testing.assert_close(before + sum(writes), after, rtol=1e-5, atol=1e-5)
        moved: dict[str, torch.Tensor] = {}
        model.run(
            tokens(),
            {
                block.writes[-1].site: lambda value: value * 0.5,
                f"{name}.hook_resid_post": _keeper("post", moved),
            },
        )
        torch.testing.assert_close(moved["post"], after - 0.5 * writes[-1], rtol=1e-5, atol=1e-5)
        if len(block.writes) == 2 and not block.parallel:
            torch.testing.assert_close(values[f"{name}.hook_resid_mid"], before + writes[0])


def _keeper(site: str, values: dict[str, torch.Tensor]) -> Any:
    return lambda value: values.__setitem__(site, value.clone())


def test_a_frame_can_be_used_again() -> None:
    """GraniteMoe hands its blocks a cache even without use_cache; a replay must not fill it."""
    model = make("granitemoe")
    with torch.no_grad():
        frame = model.begin(tokens())
        once, again = (model.run_block(0, frame.stream, frame) for _ in range(2))
    assert torch.equal(once, again)


_PICTURE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


@pytest.mark.parametrize("family", ["ViT", "Dinov2", "CLIPVision", "SiglipVision"])
def test_towers_that_read_pictures(family: str) -> None:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**_PICTURE)
    model = StreamModel(getattr(transformers, f"{family}Model")(config), name=family)
    assert model.spec.replay_error == 0
    assert not model.reads_tokens
    assert [write.name for write in model.spec.writes] == ["attn", "mlp"] * 2
    assert {block.placement for block in model.spec.blocks} == {"pre"}
    assert max(write.residue for write in model.spec.writes) < 2e-6


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DebertaV2", "DistilBert"])
def test_post_ln_encoders(family: str) -> None:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 0}
    if family == "DistilBert":
        sizes |= {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}
    else:
        sizes |= {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 96,
        }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = StreamModel(getattr(transformers, f"{family}ForMaskedLM")(config), name=family)
    assert model.spec.replay_error == 0
    assert not model.spec.causal
    for block in model.spec.blocks:
        assert block.placement == "post"
        assert len(block.stream_norms) == 2
        assert [write.name for write in block.writes] == ["attn", "mlp"]
        assert all(write.scale == 1 and write.skip_scale == 1 for write in block.writes)
        assert max(write.residue for write in block.writes) < 2e-6


@pytest.mark.filterwarnings("ignore:going on without the tokenizer")  # it has half of one
def test_a_real_post_ln_checkpoint(data_path: Any) -> None:
    from resstream.stream.loading import load

    model = load(data_path("sapiens_vh"))
    assert model.spec.replay_error == 0
    assert [block.placement for block in model.spec.blocks] == ["post"] * 4
    assert max(write.residue for write in model.spec.writes) < 2e-6
