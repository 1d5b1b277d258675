"""Are native models of every rule proved, or opaque with the reason?"""

from typing import Any

import pytest
import torch
from torch import Tensor

from resstream.errors import DiscoveryError
from resstream.nn.config import LayerNorm, TransformerConfig
from resstream.nn.rules import RULES, DeepNorm, ResidualAttention, Weighted
from resstream.nn.transformer import ResidualTransformer
from resstream.stream.loading import load
from resstream.stream.model import StreamModel

SIZES: dict[str, Any] = {"n_layers": 3, "d_model": 32, "n_heads": 4, "d_vocab": 50, "n_ctx": 32}

OPAQUE = {"none", "admin", "highway", "gate", "adapter_skip"}
"""Rules whose blocks are one write: nothing but the block's own formula tells its parts apart."""


def native(**changes: Any) -> ResidualTransformer:
    """With large parameters, so that no write is lost in rounding."""
    torch.manual_seed(0)
    model = ResidualTransformer(TransformerConfig(**(SIZES | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def other_tokens() -> Tensor:
    return torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(5))


def check_hooks(model: StreamModel, ours: ResidualTransformer) -> None:
    """The writes that discovery found are those at the model's own hook points."""
    tokens, seen = other_tokens(), {}
    found = {
        write.site: lambda value, site=write.site: seen.update({site: value})
        for write in model.spec.writes
    }
    with torch.no_grad():
        model.run(tokens, found)
        _, own = ours.run_with_cache(tokens)
    for site, value in seen.items():
        torch.testing.assert_close(value, own[site])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule is not ResidualAttention])
def test_every_rule(rule):
    ours = native(rule=rule())
    model = load(ours)
    assert model.spec.replay_error == 0
    assert model.replay_error(other_tokens()) == 0
    for block in model.spec.blocks:
        assert block.opaque is (rule.kind in OPAQUE)
        if block.opaque:
            assert block.reason is not None and "block(x) - x" in block.reason
        else:
            assert [write.name for write in block.writes] == ["attn", "mlp"]
            assert all(write.residue < 1e-4 for write in block.writes)
    if rule.kind not in OPAQUE:
        check_hooks(model, ours)


def test_residual_attention_is_refused_because_its_scores_flow_beside_the_stream():
    for rule in (ResidualAttention(), ResidualAttention(weight=0.5)):
        with pytest.raises(DiscoveryError, match=r"hand on 'previous_scores' beside the stream"):
            load(native(rule=rule))
    fresh = ResidualTransformer(TransformerConfig(**SIZES, rule=ResidualAttention()))
    with pytest.raises(DiscoveryError, match=r"hand on 'previous_scores'"):
        load(fresh)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ("pre", "pre"),
        ("sandwich", "sandwich"),
        ("after", "after"),
        ("sub", "pre"),
        ("normformer", "pre"),
        ("none", "none"),
    ],
)
def test_every_placement(placement, said, parallel):
    ours = native(placement=placement, parallel=parallel)
    model = load(ours)
    assert model.replay_error(other_tokens()) == 0
    for block in model.spec.blocks:
        assert (block.placement, block.parallel, block.opaque) == (said, parallel, False)
        matrices = [write.output_matrix for write in block.writes]
        assert matrices == [
            f"{block.module}.attn.o_proj.weight",
            f"{block.module}.mlp.down_proj.weight",
        ]
    check_hooks(model, ours)


@pytest.mark.parametrize(
    ("rule", "scale", "skip_scale"),
    [
        (DeepNorm(), 1.0, 6**0.25),
        (DeepNorm(form="branch"), 1.0, 1.0),
        (Weighted(branch=0.7, skip=0.9), 1.0, 0.9),
    ],
    ids=["deepnorm", "deepnorm branch", "weighted"],
)
def test_post_norm_rules_say_what_multiplies_the_skip(rule, scale, skip_scale):
    ours = native(rule=rule, placement="post", norm=LayerNorm())
    model = load(ours)
    assert model.replay_error(other_tokens()) == 0
    for write in model.spec.writes:
        assert write.scale == pytest.approx(scale, rel=1e-5)
        assert write.skip_scale == pytest.approx(skip_scale, rel=1e-5)
    check_hooks(model, ours)


def test_weights_on_skip_and_branch_without_a_norm_are_opaque():
    block = load(native(rule=Weighted(branch=0.7, skip=0.9))).spec.blocks[0]
    assert block.opaque
    assert block.reason is not None and "nearest is attn + mlp" in block.reason


def test_a_conditioned_model_is_proved_with_a_condition_of_zeros():
    ours = native(rule="adaln_zero")
    model = load(ours)
    tokens = other_tokens()
    zeros = torch.zeros(3, 32)
    with torch.no_grad():
        assert torch.equal(model.forward(tokens), ours(tokens, condition=zeros))


def test_dropout_does_not_hide_the_branch():
    model = load(native(placement="sandwich", dropout=0.1))
    branches = [write.branch for write in model.spec.blocks[1].writes]
    assert branches == ["blocks.1.hook_attn_branch", "blocks.1.hook_mlp_branch"]
