"""Does every rule write what its formula says, start as published, and learn by its gradient?"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from resstream.nn.admin import profile_admin_
from resstream.nn.config import LayerNorm, TransformerConfig
from resstream.nn.constants import deepnorm_constants
from resstream.nn.initialisation import Depth
from resstream.nn.rules import (
    RULES,
    AdaLNZero,
    AdapterSkip,
    Admin,
    CompleteP,
    DeepNorm,
    DepthMuP,
    DynamicGate,
    Fixup,
    Highway,
    LayerNormScaling,
    LayerScale,
    NoSkip,
    Plain,
    ResidualAttention,
    ResidualRule,
    ReZero,
    ReZeroNorm,
    SkipInit,
    SubLN,
    TFixup,
    Weighted,
)
from resstream.nn.transformer import ResidualTransformer

SIZES: dict[str, Any] = {"n_layers": 3, "d_model": 16, "n_heads": 2, "d_vocab": 30, "n_ctx": 16}
LAYER = 1
DEPTH = Depth(n_layers=3, n_writes=6)
Sublayer = Callable[[Tensor], Tensor]
Update = Callable[[Any, str, Tensor, Sublayer], Tensor]


def native(seed: int = 0, **changes: Any) -> ResidualTransformer:
    torch.manual_seed(seed)
    return ResidualTransformer(TransformerConfig(**(SIZES | changes))).eval()


def filled(model: ResidualTransformer) -> ResidualTransformer:
    """In float64, with every parameter away from its start."""
    generator = torch.Generator().manual_seed(2)
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.3 * noise + 0.2)
    return model


def blocks_of(model: ResidualTransformer) -> list[Any]:
    return list(model.get_submodule("blocks").children())


def some_tokens(batch: int = 2, pos: int = 5) -> Tensor:
    return torch.randint(0, 30, (batch, pos), generator=torch.Generator().manual_seed(1))


def scale_of(block: Any, name: str) -> Any:
    return block.scales["block" if "block" in block.scales else name]


def ln(block: Any, name: str, suffix: str = "") -> Any:
    return getattr(block, f"ln{1 if name == 'attn' else 2}{suffix}")


def adaln(block: Any, name: str, x: Tensor, f: Sublayer) -> Tensor:
    silu = torch.nn.functional.silu(CONDITION)[:, None]
    matrix = scale_of(block, name).modulation
    s, b, g = (silu @ matrix.weight.T + matrix.bias).chunk(3, dim=-1)
    rms = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return x + g * f(x / rms * (1 + s) + b)


def gated(block: Any, name: str, x: Tensor, branch: Tensor) -> Tensor:
    gate = scale_of(block, name).gate
    t = torch.sigmoid(x @ gate.weight.T + gate.bias)
    return t * branch + (1 - t) * x


def adapted(block: Any, name: str, x: Tensor) -> Tensor:
    part = scale_of(block, name)
    hidden = torch.nn.functional.gelu(x @ part.down.weight.T + part.down.bias)
    return hidden @ part.up.weight.T + part.up.bias


ALPHA = 6**0.25
CONDITION = torch.randn(2, 16, generator=torch.Generator().manual_seed(3)).double()

FORMULAS: list[tuple[ResidualRule, Update]] = [
    (Plain(), lambda k, n, x, f: x + f(ln(k, n)(x))),
    (NoSkip(), lambda k, n, x, f: f(ln(k, n)(x))),
    (LayerScale(), lambda k, n, x, f: x + scale_of(k, n).gamma * f(ln(k, n)(x))),
    (ReZero(), lambda k, n, x, f: x + scale_of(k, n).alpha * f(x)),
    (ReZeroNorm(), lambda k, n, x, f: x + scale_of(k, n).alpha * f(ln(k, n)(x))),
    (SkipInit(), lambda k, n, x, f: x + scale_of(k, n).alpha * f(x)),
    (Fixup(), lambda k, n, x, f: x + scale_of(k, n).alpha * f(x)),
    (TFixup(), lambda k, n, x, f: x + f(x)),
    (LayerNormScaling(), lambda k, n, x, f: x + f(ln(k, n)(x) / math.sqrt(LAYER + 1))),
    (DepthMuP(a=0.5), lambda k, n, x, f: x + 0.5 / math.sqrt(3) * f(ln(k, n)(x))),
    (CompleteP(), lambda k, n, x, f: x + f(ln(k, n)(x)) / 3),
    (SubLN(), lambda k, n, x, f: x + f(ln(k, n)(x))),
    (AdaLNZero(), adaln),
    (DeepNorm(), lambda k, n, x, f: ln(k, n)(ALPHA * x + f(x))),
    (DeepNorm(form="branch"), lambda k, n, x, f: ln(k, n)(x + f(x) / ALPHA)),
    (Admin(), lambda k, n, x, f: ln(k, n)(scale_of(k, n).omega * x + f(x))),
    (Weighted(branch=0.7, skip=0.9), lambda k, n, x, f: 0.9 * x + 0.7 * f(ln(k, n)(x))),
    (
        Weighted(learned=True),
        lambda k, n, x, f: scale_of(k, n).beta * x + scale_of(k, n).gamma * f(ln(k, n)(x)),
    ),
    (Highway(), lambda k, n, x, f: gated(k, n, x, f(x))),
    (DynamicGate(), lambda k, n, x, f: gated(k, n, x, f(ln(k, n)(x)))),
    (AdapterSkip(), lambda k, n, x, f: adapted(k, n, x) + f(ln(k, n)(x))),
    (ResidualAttention(), lambda k, n, x, f: ln(k, n)(x + f(x))),
]


def by_formula(update: Update, block: Any, stream: Tensor, scores: Tensor | None) -> Tensor:
    """The stream behind one block, by the formula of its rule and the block's own sublayers."""
    turns = block.turns

    def attend(read: Tensor) -> Tensor:
        out = block.attn(read, position_embeddings=turns, previous_scores=scores)
        return out[0] if isinstance(out, tuple) else out

    return update(block, "mlp", update(block, "attn", stream, attend), block.mlp)


@pytest.mark.parametrize(("rule", "update"), FORMULAS, ids=lambda item: getattr(item, "kind", ""))
def test_stream_and_gradients_are_those_of_the_formula(rule, update):
    """In float64, of every parameter of the block and of the stream before it."""
    model = filled(native(rule=rule))
    block: Any = model.blocks[LAYER]
    block.turns = model._turns(torch.arange(5)[None])
    stream = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    previous = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    scores = previous if rule.score_weight is not None else None
    condition = CONDITION if rule.kind == "adaln_zero" else None
    weights = torch.randn(2, 5, 16, dtype=torch.float64)
    arguments = {"condition": condition, "previous_scores": scores}
    output = block(stream, position_embeddings=block.turns, **arguments)
    output = output[0] if isinstance(output, tuple) else output
    expected = by_formula(update, block, stream, scores)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    wanted = [stream, *block.parameters()]
    ours = torch.autograd.grad((output * weights).sum(), wanted)
    theirs = torch.autograd.grad((expected * weights).sum(), wanted)
    for one, other in zip(ours, theirs, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_every_rule_has_a_formula_here():
    assert {rule.kind for rule, _ in FORMULAS} == {rule.kind for rule in RULES}


def stream_ends(model: ResidualTransformer, **inputs: Any) -> tuple[Tensor, Tensor]:
    _, cache = model.run_with_cache(some_tokens(), **inputs)
    return cache["hook_embed"], cache["blocks.2.hook_resid_post"]


IDENTITIES = [ReZero(), ReZeroNorm(), SkipInit(), AdaLNZero(), LayerScale(init=0.0), Fixup()]


@pytest.mark.parametrize("rule", IDENTITIES, ids=lambda rule: rule.kind)
def test_rules_that_start_as_the_identity(rule):
    start, end = stream_ends(native(rule=rule))
    assert torch.equal(start, end)
    assert not torch.equal(*stream_ends(native(rule=Plain())))


def test_rezero_with_post_norm_is_refused_because_it_is_no_identity():
    with pytest.raises(ValueError, match="placement must be one of none for the rule 'rezero'"):
        TransformerConfig(**SIZES, rule=ReZero(), placement="post")


def test_at_the_start_of_rezero_only_alpha_learns():
    model = native(rule=ReZero(), tied=False)
    model(some_tokens()).square().sum().backward()
    for name, parameter in model.blocks.named_parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.abs().max() > 0) is name.endswith("alpha")


@pytest.mark.parametrize("eps", [1e-5, 1e-1])
def test_deepnorm_has_two_forms_of_one_function(eps):
    """``LN(alpha x + F; eps) = LN(x + F / alpha; eps / alpha^2)``; with one eps it is not."""
    skip = filled(native(rule=DeepNorm(), norm=LayerNorm(eps=eps)))
    branch = filled(native(rule=DeepNorm(form="branch"), norm=LayerNorm(eps=eps)))
    skip_norm, branch_norm = (blocks_of(model)[0].ln1.norm.eps for model in (skip, branch))
    assert branch_norm == pytest.approx(skip_norm / math.sqrt(6), rel=1e-12)
    want, got = skip(some_tokens()), branch(some_tokens())
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    for block in blocks_of(branch):
        for norm in (block.ln1, block.ln2):
            norm.norm = LayerNorm(eps=eps)
    assert (branch(some_tokens()) - want).abs().max() > 1e-7


def test_deepnorm_puts_alpha_on_the_stream_and_not_on_the_branch():
    """A well-known implementation has ``LN(x + alpha F)``; that is another function."""
    model = filled(native(rule=DeepNorm()))
    wrong = filled(native(rule=Weighted(branch=ALPHA), placement="post"))
    assert not torch.allclose(model(some_tokens()), wrong(some_tokens()), rtol=1e-3)
    right = filled(native(rule=Weighted(skip=ALPHA), placement="post"))
    assert torch.equal(model(some_tokens()), right(some_tokens()))


REDUCTIONS = [
    (LayerScale(init=1.0), Plain()),
    (Weighted(), Plain()),
    (Weighted(learned=True), Plain()),
    (DepthMuP(a=math.sqrt(3)), Plain()),
    (CompleteP(base_depth=3), Plain()),
    (ReZeroNorm(alpha=1.0), Plain()),
    (DeepNorm(alpha=1.0, beta=1.0), Admin()),
    (Weighted(branch=1.0, skip=0.0), NoSkip()),
]


@pytest.mark.parametrize(("one", "other"), REDUCTIONS, ids=lambda rule: rule.kind)
def test_rules_that_are_others_at_some_constants(one, other):
    placement = other.placement
    models = [native(rule=rule, placement=placement).double() for rule in (one, other)]
    weights = models[1].state_dict()
    models[0].load_state_dict(
        {name: value for name, value in weights.items() if "scales" not in name}, strict=False
    )
    got, want = (model(some_tokens()) for model in models)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


def test_no_placement_is_rezero_at_one():
    free, held = native(placement="none"), native(rule=ReZero(alpha=1.0))
    held.load_state_dict(free.state_dict(), strict=False)
    assert torch.equal(free(some_tokens()), held(some_tokens()))


def test_highway_carries_what_its_bias_says():
    """``(1 - T)^n`` of the input is left after n writes that add nothing."""
    for bias in (0.0, -1.0, -3.0):
        model = native(rule=Highway(bias=bias)).double()
        with torch.no_grad():
            for block in blocks_of(model):
                for name in ("attn", "mlp"):
                    block.scales[name].gate.weight.zero_()
                block.attn.o_proj.weight.zero_()
                block.mlp.down_proj.weight.zero_()
        start, end = stream_ends(model)
        carry = 1 / (1 + math.exp(bias))
        torch.testing.assert_close(end, carry**6 * start)


def test_a_hook_on_a_gate_moves_the_carry_with_it():
    model = native(rule=Highway()).double()
    closed = [("blocks.0.hook_attn_scale", lambda scale, hook: torch.zeros_like(scale))]
    seen: dict[str, Tensor] = {}
    keep = [
        (f"blocks.0.{name}", lambda value, hook: seen.update({hook.name: value}))
        for name in ("hook_resid_pre", "hook_resid_mid")
    ]
    model.run_with_hooks(some_tokens(), fwd_hooks=closed + keep)
    assert torch.equal(seen["blocks.0.hook_resid_pre"], seen["blocks.0.hook_resid_mid"])


def test_adaln_without_a_condition_reads_zeros_and_refuses_other_widths():
    model = filled(native(rule=AdaLNZero(d_condition=4)))
    zeros = torch.zeros(2, 4, dtype=torch.float64)
    assert torch.equal(model(some_tokens()), model(some_tokens(), condition=zeros))
    per_position = torch.ones(2, 5, 4, dtype=torch.float64)
    same = model(some_tokens(), condition=per_position[:, 0])
    torch.testing.assert_close(model(some_tokens(), condition=per_position), same)
    assert not torch.allclose(same, model(some_tokens()))
    with pytest.raises(ValueError, match=r"condition must be \[batch, 4\]"):
        model(some_tokens(), condition=torch.ones(2, 5))


def test_admin_omegas_are_the_variances_so_far():
    model = native(rule=Admin())
    omegas = profile_admin_(model, some_tokens())
    assert len(omegas) == 6
    assert list(omegas) == sorted(omegas)
    plain = native(rule=Admin())
    _, cache = plain.run_with_cache(some_tokens())
    names = [f"blocks.{i}.hook_{name}_branch" for i in range(3) for name in ("attn", "mlp")]
    variances = [cache[name].var(correction=0).item() for name in ["hook_embed", *names]]
    for index, omega in enumerate(omegas):
        assert omega == pytest.approx(math.sqrt(sum(variances[: index + 1])), rel=1e-5)
        scale = blocks_of(model)[index // 2].scales["attn" if index % 2 == 0 else "mlp"]
        assert torch.equal(scale.omega, torch.full((16,), omegas[index]))
    assert profile_admin_(model, some_tokens()) == pytest.approx(omegas)
    with pytest.raises(ValueError, match="must have the rule 'admin'"):
        profile_admin_(native(), some_tokens())


def test_residual_attention_adds_scores_before_the_softmax():
    rule = ResidualAttention(weight=0.5)
    model = filled(native(rule=rule, placement="pre"))
    _, cache = model.run_with_cache(some_tokens())
    own: list[Tensor] = []
    turns = model._turns(torch.arange(5)[None])
    for block in blocks_of(model):
        read = cache[f"{block.ln1.hook_normalized.name}"]
        own.append(block.attn(read, position_embeddings=turns)[1])
    summed = own[0]
    for layer, scores in enumerate(own):
        summed = scores if layer == 0 else scores + 0.5 * summed
        torch.testing.assert_close(cache[f"blocks.{layer}.attn.hook_attn_scores"], summed)


def test_residual_attention_of_weight_zero_is_plain_attention():
    rule = ResidualAttention(weight=0.0)
    for causal in (True, False):
        ours = filled(native(rule=rule, placement="pre", causal=causal, n_kv_heads=1))
        plain = filled(native(placement="pre", causal=causal, n_kv_heads=1))
        torch.testing.assert_close(ours(some_tokens()), plain(some_tokens()))
        padding = torch.ones(2, 5, dtype=torch.bool)
        padding[0, 0] = False
        torch.testing.assert_close(
            ours(some_tokens(), padding=padding)[:, 1:],
            plain(some_tokens(), padding=padding)[:, 1:],
        )


STARTS = [
    (SkipInit(alpha=None), 1 / math.sqrt(6)),
    (LayerScale(init=None), 0.1),
    (LayerScale(), 1e-5),
    (Fixup(), 1.0),
]


@pytest.mark.parametrize(("rule", "start"), STARTS, ids=lambda item: str(item)[:20])
def test_learned_scales_start_as_published(rule, start):
    scale = scale_of(blocks_of(native(rule=rule))[0], "attn")
    assert next(scale.parameters()).flatten()[0].item() == pytest.approx(start)


def test_rates_of_fixup_and_of_the_depth_rules():
    assert [Fixup().rate_gain(part, DEPTH) for part in ("matrix", "bias", "scale")] == [1, 0.1, 0.1]
    assert DepthMuP().rate_gain("matrix", DEPTH) == pytest.approx(1 / math.sqrt(3))
    assert DepthMuP().rate_gain("embed", DEPTH) == 1
    assert CompleteP(alpha=0.5).rate_gain("norm", DEPTH) == pytest.approx(1 / math.sqrt(3))
    assert CompleteP().rate_gain("matrix", DEPTH) == 1
    assert {Plain().rate_gain(part, DEPTH) for part in ("matrix", "bias", "embed")} == {1}


def test_deepnorm_takes_the_constants_of_another_stack():
    alpha, beta = deepnorm_constants("decoder", n_encoder=6, n_decoder=3)
    rule = DeepNorm(alpha=alpha, beta=beta)
    assert blocks_of(native(rule=rule))[0].scales["mlp"].skip_scale == alpha == 9**0.25
    assert rule.init_gain("value", DEPTH) == beta == 36**-0.25
