"""Do the nets without attention obey the same rules, and change width as the papers did?"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from resstream.errors import ConfigError
from resstream.nn.conv_net import ConvNetConfig, ResidualConvNet
from resstream.nn.mlp_net import MlpNetConfig, ResidualMlp
from resstream.nn.rates import parameter_groups
from resstream.nn.rules import RULES, CompleteP, Fixup, LayerScale, NoSkip, Plain, ReZero
from resstream.nn.shortcut import Shortcut

MLP: dict[str, Any] = {"n_layers": 4, "d_model": 8, "d_in": 5, "d_out": 3}
CONV: dict[str, Any] = {"blocks_per_stage": 2, "channels": (4, 8, 16), "n_out": 5}
NET_RULES = [rule() for rule in RULES if rule.kind != "residual_attention"]


def mlp(**changes: Any) -> ResidualMlp:
    torch.manual_seed(0)
    return ResidualMlp(MlpNetConfig(**(MLP | changes)))


def conv(**changes: Any) -> ResidualConvNet:
    torch.manual_seed(0)
    return ResidualConvNet(ConvNetConfig(**(CONV | changes)))


def blocks_of(model: torch.nn.Module) -> list[Any]:
    return list(model.get_submodule("blocks").children())


def vectors() -> Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


def images() -> Tensor:
    return torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rule", NET_RULES, ids=lambda rule: rule.kind)
def test_every_rule_runs_in_the_mlp(rule):
    model = mlp(rule=rule)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    output, cache = model.run_with_cache(vectors())
    assert output.shape == (6, 3)
    assert set(cache.keys()) == set(model.hook_dict)
    model(vectors()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_mlp_stream_is_the_sum_of_its_writes():
    for rule in (Plain(), LayerScale(init=0.5), ReZero(alpha=0.5)):
        _, cache = mlp(rule=rule).run_with_cache(vectors())
        total = cache["hook_embed"]
        for layer in range(4):
            total = total + cache[f"blocks.{layer}.hook_mlp_out"]
            torch.testing.assert_close(total, cache[f"blocks.{layer}.hook_resid_post"])


def test_plain_net_by_hand():
    """``rule none, placement none`` is a stack of matrices and activations, nothing else."""
    model = mlp(rule=NoSkip(), placement="none", activation="after_add")
    stream = model.embed(vectors())
    for block in blocks_of(model):
        stream = F.relu(block.mlp.second(F.relu(block.mlp.first(stream))))
    torch.testing.assert_close(model(vectors()), model.unembed(stream))


def test_mlp_takes_leading_axes_and_keeps_the_stream_in_float32():
    model = mlp()
    rows = vectors()
    torch.testing.assert_close(model(rows.view(2, 3, 5)), model(rows).view(2, 3, 3))
    _, cache = model.to(torch.bfloat16).run_with_cache(rows)
    assert cache["blocks.3.hook_resid_post"].dtype == torch.float32
    assert cache["blocks.3.hook_mlp_branch"].dtype == torch.bfloat16


def test_widths_change_through_a_projection_or_through_zeros():
    widths = (8, 12, 12, 6)
    projected, padded = mlp(widths=widths), mlp(widths=widths, shortcut="zero_pad")
    for model in (projected, padded):
        _, cache = model.run_with_cache(vectors())
        got = [cache[f"blocks.{layer}.hook_resid_post"].shape[-1] for layer in range(4)]
        assert got == list(widths)
    _, cache = projected.run_with_cache(vectors())
    block: Any = projected.blocks[1]
    skipped = cache["blocks.1.hook_resid_pre"] @ block.shortcut.matrix.weight.T
    expected = skipped + cache["blocks.1.hook_mlp_out"]
    torch.testing.assert_close(cache["blocks.1.hook_resid_post"], expected)
    assert [block.shortcut is None for block in blocks_of(projected)] == [True, False, True, False]
    always = mlp(shortcut="projection_always")
    assert all(block.shortcut is not None for block in blocks_of(always))


def test_shortcut_thins_pads_and_cuts():
    image = torch.arange(2 * 4 * 4 * 3.0).view(2, 4, 4, 3)
    wider = Shortcut(3, 5, stride=2, projects=False)(image)
    assert torch.equal(wider[..., :3], image[:, ::2, ::2]) and not wider[..., 3:].any()
    assert torch.equal(Shortcut(3, 2, projects=False)(image), image[..., :2])


@pytest.mark.parametrize(
    ("activation", "is_positive"), [("before_add", True), ("inside", False), ("pre", False)]
)
def test_an_activation_at_the_end_of_the_branch_only_ever_adds(activation, is_positive):
    _, cache = mlp(activation=activation).run_with_cache(vectors())
    writes = torch.stack([cache[f"blocks.{layer}.hook_mlp_out"] for layer in range(4)])
    assert bool((writes >= 0).all()) is is_positive


def test_a_sum_of_narrow_branches_is_one_wide_branch():
    """ResNeXt's ``x + sum_i T_i(x)`` lies within one write (Xie et al. 2017, section 3.3)."""
    block: Any = mlp(d_hidden=12).blocks[0]
    read = torch.randn(6, 8)
    first, second = block.mlp.first, block.mlp.second
    paths = [
        F.relu(read @ first.weight[part].T + first.bias[part]) @ second.weight[:, part].T
        for part in (slice(0, 4), slice(4, 8), slice(8, 12))
    ]
    torch.testing.assert_close(block.mlp(read), sum(paths) + second.bias)


def test_what_the_skip_costs_in_parameters():
    """Identity none, ReZero one per block, SkipInit one and LayerScale d per write."""

    def size(rule: str) -> int:
        return sum(value.numel() for value in mlp(rule=rule).blocks.parameters())

    plain = size("tfixup")  # no norm, as in the others here
    assert size("rezero") - plain == size("skipinit") - plain == 4
    with_norm = size("plain")
    assert size("layer_scale") - with_norm == 4 * 8
    assert size("weighted") == size("depth_mup") == with_norm
    projected = sum(value.numel() for value in mlp(shortcut="projection_always").parameters())
    assert projected - sum(value.numel() for value in mlp().parameters()) == 4 * 8 * 8


def test_an_activation_after_the_addition_clips_the_stream():
    _, cache = mlp(activation="after_add").run_with_cache(vectors())
    assert (cache["blocks.2.hook_resid_post"] >= 0).all()


@pytest.mark.parametrize("rule", ["plain", "none", "fixup", "skipinit", "layer_scale", "deepnorm"])
def test_rules_run_in_the_convolutional_net(rule):
    model = conv(rule=rule)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05)
    logits = model(images())
    assert logits.shape == (3, 5)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_a_block_of_the_convolutional_net_is_he_et_als():
    """``relu(x + BN(conv(relu(BN(conv(x))))))``, by torch's own modules."""
    model = conv().eval()
    block: Any = model.blocks[1]
    stream = torch.randn(3, 8, 8, 4, generator=torch.Generator().manual_seed(4)).relu()

    def normed(values: Tensor, norm: Any) -> Tensor:
        return F.batch_norm(values, norm.running_mean, norm.running_var, norm.weight, norm.bias)

    before = stream.movedim(-1, 1)
    inner = F.relu(
        normed(F.conv2d(before, block.conv.first.weight, padding=1), block.conv.ln_first)
    )
    write = normed(F.conv2d(inner, block.conv.second.weight, padding=1), block.ln1_post)
    torch.testing.assert_close(block(stream), F.relu(before + write).movedim(1, -1))


def test_the_convolutional_net_has_their_depth_and_parameters():
    """ResNet-20 has 0.27 million parameters (He et al. 2015, table 6)."""
    model = conv(blocks_per_stage=3, channels=(16, 32, 64), n_out=10)
    matrices = [value for value in model.parameters() if value.ndim > 1]
    assert len(matrices) == 20
    assert sum(value.numel() for value in model.parameters()) == 269_722
    _, cache = model.run_with_cache(images())
    assert cache["blocks.8.hook_resid_post"].shape == (3, 2, 2, 64)


def test_batch_norm_keeps_running_means_in_training_only():
    model = conv()
    means = blocks_of(model)[0].ln1_post.running_mean
    assert not means.any()
    model(images())
    assert means.any()
    before = means.clone()
    model.eval()(images())
    assert torch.equal(means, before)


def test_fixup_starts_at_a_zero_output_and_learns_scalars_slowly():
    model = mlp(rule=Fixup())
    assert not model(vectors()).any()
    groups = parameter_groups(model, model.config, 0.5, weight_decay=0.1)
    rates = {
        name: group["lr"]
        for group in groups
        for parameter in group["params"]
        for name, other in model.named_parameters()
        if other is parameter
    }
    assert set(rates) == {name for name, _ in model.named_parameters()}
    assert rates["blocks.0.mlp.bias_act.bias"] == rates["blocks.0.scales.mlp.alpha"] == 0.05
    assert rates["blocks.0.mlp.first.weight"] == rates["embed.weight"] == 0.5


def test_groups_decay_matrices_only_and_follow_the_depth():
    model = mlp(rule=CompleteP(alpha=0.5))
    groups = parameter_groups(model, model.config, 1.0, weight_decay=0.1)
    found = {(group["lr"], group["weight_decay"]): len(group["params"]) for group in groups}
    # In each block 2 matrices, 2 biases and a norm of two; outside 2 matrices, 2 biases, a norm.
    assert found == {(0.5, 0.1): 8, (0.5, 0.0): 16, (1.0, 0.1): 2, (1.0, 0.0): 4}


REFUSALS = [
    ({"n_layers": -1}, r"n_layers must be a whole number of at least 1, got -1"),
    ({"widths": (8, 8)}, r"widths must have one width per block \(4\), got \(8, 8\)"),
    ({"widths": (8, 8, 9, 9), "rule": "highway"}, r"widths must be equal for the rule 'highway'"),
    ({"act": "swish"}, r"act must be one of 'relu', 'gelu', 'tanh', got 'swish'"),
    ({"activation": "after"}, r"activation must be one of 'inside', .*, got 'after'"),
    ({"shortcut": "conv"}, r"shortcut must be one of 'zero_pad', .*, got 'conv'"),
    ({"rule": "residual_attention"}, r"without attention, got 'residual_attention'"),
    ({"rule": "rezero", "placement": "pre"}, r"placement must be one of none for .*'rezero'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS)
def test_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        mlp(**changes)


def test_refusals_of_the_convolutional_net():
    with pytest.raises(ConfigError, match="channels must have at least one stage"):
        conv(channels=())
    with pytest.raises(ConfigError, match=r"blocks_per_stage must be .*, got 0"):
        conv(blocks_per_stage=0)
