"""Ablation: the fast path equals plain hooks, and the numbers mean what they say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resstream.analysis.ablation import AblationSweep, ablate
from resstream.analysis.ablation_result import AblationResult
from resstream.analysis.ablation_targets import choose_targets
from resstream.analysis.attribution import estimate_ablations
from resstream.analysis.intervals import bootstrap_interval, by_document, holm, p_below_zero
from resstream.analysis.losses import token_divergences, token_losses
from resstream.errors import ConfigError, TextError, UnknownSiteError, UnsupportedModelError
from resstream.stream.model import StreamModel
from resstream.stream.texts import read_corpus
from resstream.sweep.journal import Journal
from resstream.sweep.reference import run_by_hooks
from resstream.sweep.variants import Edit, Variant, resample, zero
from tests.analysis import families
from tests.stream import test_families as hybrids


@pytest.fixture
def model(tiny_llama: Any) -> StreamModel:
    """A model whose loss depends on its writes: the head is made sharp."""
    module = tiny_llama(num_hidden_layers=4)
    with torch.no_grad():
        module.lm_head.weight.mul_(20)
    return StreamModel(module, name="tiny")


IDS = torch.randint(0, 256, (6, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
@pytest.mark.parametrize("level", ["sublayer", "block"])
def test_it_equals_plain_hooks(model: StreamModel, kind: Any, level: Any) -> None:
    result = ablate(model, IDS, kind=kind, level=level)
    base = token_losses(model.forward(IDS).detach(), IDS)
    assert result.base_loss == pytest.approx(base.mean().item(), abs=1e-5)
    targets = choose_targets(model, level=level)
    assert len(result.effects) == len(targets) == (8 if level == "sublayer" else 4)
    for target, effect in zip(targets, result.effects, strict=True):
        changes = {write.site: _change(model, write.site, kind) for write in target.writes}
        variant = Variant("x", tuple(Edit(site, change) for site, change in changes.items()))
        expected = token_losses(run_by_hooks(model, IDS, variant), IDS) - base
        assert effect.effect == pytest.approx(expected.mean().item(), abs=1e-4)
        assert effect.n_tokens == 66
        assert effect.ci[0] <= effect.effect <= effect.ci[1]


def _change(model: StreamModel, site: str, kind: str) -> Any:
    """The change written out from its definition, apart from the code under test."""
    if kind == "zero":
        return zero
    if kind == "resample":
        return resample(torch.arange(6).roll(1))
    kept: list[torch.Tensor] = []
    with torch.no_grad():
        model.run(IDS, {site: lambda value: kept.append(value.clone())})
    first, rest = kept[0][:, 0].mean(0), kept[0][:, 1:].mean((0, 1))

    def mean(value: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        out = rest.expand_as(value).clone()
        out[:, 0] = first
        return out

    return mean


def test_groups_are_ablated_together(model: StreamModel) -> None:
    result = ablate(model, IDS, groups=[[1, 2], [0]])
    assert [effect.layers for effect in result.effects] == [(1, 2), (0,)]
    assert [effect.write for effect in result.effects] == ["block", "block"]
    sites = [write.site for write in model.spec.writes if write.layer in (1, 2)]
    variant = Variant("x", tuple(Edit(site, zero) for site in sites))
    expected = token_losses(run_by_hooks(model, IDS, variant), IDS).mean() - result.base_loss
    assert result.effects[0].effect == pytest.approx(expected.item(), abs=1e-4)


def test_a_write_that_is_zero_has_no_effect(model: StreamModel) -> None:
    with torch.no_grad():
        model.module.get_parameter("model.layers.2.mlp.down_proj.weight").zero_()
    result = ablate(model, IDS, sites=["blocks.2.mlp_out"])
    assert [effect.effect for effect in result.effects] == [0.0]
    assert result.effects[0].ci == (0.0, 0.0)


def test_nothing_to_ablate_is_the_clean_run(model: StreamModel) -> None:
    result = ablate(model, IDS, groups=[])
    assert result.effects == ()
    assert result.base_loss == pytest.approx(ablate(model, IDS).base_loss)
    assert result.layer_tokens == 4 * IDS.numel()


def test_sites_choose_writes(model: StreamModel) -> None:
    result = ablate(model, IDS, sites=["blocks.*.mlp_out", "blocks.1.attn_out"])
    assert [(e.layer, e.write) for e in result.effects] == [
        (0, "mlp"), (1, "attn"), (1, "mlp"), (2, "mlp"), (3, "mlp"),
    ]  # fmt: skip
    (alone,) = ablate(model, IDS, sites="blocks.1.attn_out").effects  # a name is one site
    assert (alone.layer, alone.write) == (1, "attn")


def test_json_has_the_keys_of_the_contract(model: StreamModel) -> None:
    result = ablate(model, IDS, sites=["blocks.0.mlp_out"])
    plain = result.to_dict()
    assert plain["schema"] == "resstream.ablate/1"
    assert {"base_loss", "effects", "provenance"} <= set(plain)
    assert {"layer", "write", "kind", "effect", "ci", "n_tokens"} <= set(plain["effects"][0])
    assert AblationResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_progress_ends_at_its_total(model: StreamModel, kind: Any) -> None:
    seen: list[tuple[int, int]] = []
    result = ablate(model, IDS, kind=kind, progress=lambda *step: seen.append(step))
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1] == result.layer_tokens
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    # 4 blocks of the base; 4 + 3 + 2 + 1 without each attention, 3 + 2 + 1 + 0 without each MLP.
    assert result.layer_tokens == IDS.numel() * (4 + 10 + 6 + 4 * (kind == "mean"))


def test_bad_requests(model: StreamModel) -> None:
    with pytest.raises(ConfigError, match="level must be sublayer, block or head"):
        ablate(model, IDS, level="neuron")  # pyright: ignore
    with pytest.raises(ConfigError, match="kind must be zero, mean or resample"):
        ablate(model, IDS, kind="median")  # pyright: ignore
    with pytest.raises(ConfigError, match=r"layer must be in 0..3, got 4"):
        ablate(model, IDS, groups=[[1, 4]])
    with pytest.raises(ConfigError, match="layers must be whole numbers, one at least"):
        ablate(model, IDS, groups=[[]])
    with pytest.raises(ConfigError, match="sites and groups exclude each other"):
        ablate(model, IDS, groups=[[1]], sites=["blocks.1.mlp_out"])
    with pytest.raises(ConfigError, match="sites must name a write"):
        ablate(model, IDS, sites=[])
    with pytest.raises(UnknownSiteError, match=r"did you mean 'blocks.0.hook_mlp_out'"):
        ablate(model, IDS, sites=["blocks.0.mpl_out"])
    with pytest.raises(TextError, match="resample takes the write from another sequence"):
        ablate(model, IDS[:1], kind="resample")


def test_encoders_are_refused() -> None:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForMaskedLM(BertConfig(vocab_size=30, intermediate_size=16, **sizes))
    with pytest.raises(
        UnsupportedModelError, match=r"needs a causal language model .* is not causal"
    ):
        ablate(StreamModel(bert, name="bert"), IDS % 30)


def test_the_estimate_is_first_order(model: StreamModel) -> None:
    """Scaling a write by 1 - e changes the loss by e times the estimate, up to order e^2."""
    model.module.double()
    corpus = read_corpus(model, IDS)
    estimates = estimate_ablations(model, corpus).sum(1) / corpus.n_predicted
    base = token_losses(model.forward(IDS).detach(), IDS)
    for index in (1, 4):
        site = model.spec.writes[index].site
        errors = []
        for step in (1e-2, 5e-3):
            with torch.no_grad():
                logits = model.run(IDS, {site: lambda value, e=step: value * (1 - e)})
            change = (token_losses(logits, IDS) - base).double().mean().item()
            errors.append(abs(change - step * estimates[index]))
        assert errors[1] < 0.4 * errors[0] + 1e-7


def test_estimates_leave_no_gradients_behind(model: StreamModel) -> None:
    estimate_ablations(model, read_corpus(model, IDS))
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_plan_is_what_is_computed(model: StreamModel) -> None:
    targets = choose_targets(model)
    plan = AblationSweep(model, read_corpus(model, IDS), targets, kind="zero").plan()
    assert plan.variants == 8
    assert plan.layer_tokens == ablate(model, IDS).layer_tokens
    assert plan.naive_layer_tokens == 9 * 4 * IDS.numel()


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_heads_equal_plain_hooks(model: StreamModel, kind: Any) -> None:
    """Head by head, from a hook on the output projection written out here."""
    result = ablate(model, IDS, kind=kind, level="head")
    assert [(e.layer, e.head) for e in result.effects] == [
        (i, h) for i in range(4) for h in range(4)
    ]
    assert {effect.write for effect in result.effects} == {"attn"}
    base = token_losses(model.forward(IDS).detach(), IDS).mean()
    for effect in result.effects[::3]:
        projection = model.module.get_submodule(f"model.layers.{effect.layer}.self_attn.o_proj")
        own = slice(16 * (effect.head or 0), 16 * (effect.head or 0) + 16)
        seen: list[torch.Tensor] = []

        def take(module: Any, args: Any, own: slice = own, seen: Any = seen) -> Any:
            value = args[0].clone()
            if not seen:
                seen.append(value.clone())
            first, rest = seen[0][:, :1].mean(0), seen[0][:, 1:].mean((0, 1))
            means = torch.cat([first, rest.expand(11, -1)]).expand_as(value)
            other = {"zero": 0 * value, "mean": means, "resample": seen[0].roll(1, 0)}[kind]
            value[..., own] = other[..., own]
            return (value,)

        handle = projection.register_forward_pre_hook(take)
        with torch.no_grad():
            changed = token_losses(model.forward(IDS), IDS).mean()
        handle.remove()
        assert effect.effect == pytest.approx(float(changed - base), abs=1e-5)
    assert max(abs(effect.effect) for effect in result.effects) > 1e-3


def test_heads_equal_those_of_transformer_lens(tmp_path: Path) -> None:
    module = families.make("llama")
    own = StreamModel(module, name="llama")
    ids = families.tokens(3, 9)
    result = ablate(own, ids, level="head")
    bridge = families.bridge(families.make("llama"), tmp_path)
    for effect in result.effects:

        def cut(value: torch.Tensor, hook: Any, head: int | None = effect.head) -> torch.Tensor:
            del hook
            value = value.clone()
            value[:, :, head] = 0
            return value

        with torch.no_grad():
            logits = bridge.run_with_hooks(
                ids, fwd_hooks=[(f"blocks.{effect.layer}.attn.hook_z", cut)]
            )
        wanted = token_losses(logits, ids).mean() - result.base_loss
        assert effect.effect == pytest.approx(float(wanted), abs=1e-5)
    assert len(result.effects) == 12


def test_heads_are_refused_where_there_are_none() -> None:
    mamba = StreamModel(families.make("mamba"), name="mamba")
    with pytest.raises(UnsupportedModelError, match=r"heads need an attention write .* mamba"):
        ablate(mamba, families.tokens(), level="head")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "layers"), [("jamba", {4}), ("qwen3_next", {3})])
def test_only_attention_has_heads(family: str, layers: set[int]) -> None:
    """In a hybrid the other mixers have none, however wide their output matrices are."""
    targets = choose_targets(hybrids.make(family), level="head")
    assert {target.layers[0] for target in targets} == layers
    assert len(targets) == 4 * len(layers)


def test_heads_of_chosen_layers(model: StreamModel) -> None:
    result = ablate(model, IDS, level="head", sites=["blocks.2.*_out"])
    assert [(effect.layer, effect.head) for effect in result.effects] == [(2, h) for h in range(4)]
    with pytest.raises(ConfigError, match="level head needs attention writes"):
        ablate(model, IDS, level="head", sites=["blocks.*.mlp_out"])
    assert result.plot().data[0].z.shape == (3, 4)
    assert result.to_dataframe()["head"].tolist() == [0, 1, 2, 3]


def test_token_effects_add_up_to_the_effect(model: StreamModel) -> None:
    texts = [IDS[0].tolist(), IDS[1, :7].tolist(), IDS[2].tolist()]
    result = ablate(model, texts, per_token=True)
    assert result.by_token is not None
    effects, base = result.by_token.effects, result.by_token.base
    assert effects.shape == (8, 3, 11)
    assert base.shape == (3, 11)
    assert np.isnan(effects[:, 1, 6:]).all()
    assert np.isfinite(effects[:, 1, :6]).all()
    wanted = [effect.effect for effect in result.effects]
    assert np.nansum(effects, (1, 2)) / 28 == pytest.approx(wanted, abs=1e-9)
    assert np.nansum(base) / 28 == pytest.approx(result.base_loss)
    with torch.no_grad():
        losses = token_losses(model.forward(IDS[:1]), IDS[:1])
    assert base[0] == pytest.approx(losses[0].numpy(), abs=1e-5)
    back = AblationResult.from_json(result.to_json())
    assert back.by_token is not None
    assert np.array_equal(back.by_token.effects, effects, equal_nan=True)


def test_little_memory_gives_the_same_in_more_parts(model: StreamModel, tmp_path: Path) -> None:
    wide = ablate(model, IDS)
    targets = choose_targets(model)
    least = AblationSweep(model, read_corpus(model, IDS), targets, kind="zero").plan().memory_bytes
    tight = least - 6 * IDS.numel() * 64 * 4  # room for two of the eight
    journal = Journal(tmp_path / "parts", resume=False)
    narrow = ablate(model, IDS, memory=tight, journal=journal)
    assert len(list((tmp_path / "parts").glob("*.npy"))) == 4
    for one, other in zip(wide.effects, narrow.effects, strict=True):
        assert one.effect == pytest.approx(other.effect, abs=1e-5)
    with pytest.raises(ConfigError, match=r"a batch of 72 tokens needs .* of memory, got 1 KiB"):
        ablate(model, IDS, memory=1024)


def test_a_resumed_ablation_is_bitwise_the_uninterrupted_one(
    model: StreamModel, tmp_path: Path
) -> None:
    least = (
        AblationSweep(model, read_corpus(model, IDS), choose_targets(model), kind="mean")
        .plan()
        .memory_bytes
    )
    options: Any = {"kind": "mean", "memory": least - 6 * IDS.numel() * 64 * 4}
    whole = ablate(model, IDS, **options)

    def interrupt(done: int, total: int) -> None:
        if done > 0.6 * total:
            raise KeyboardInterrupt

    place = tmp_path / "unfinished"
    with pytest.raises(KeyboardInterrupt):
        ablate(model, IDS, journal=Journal(place, resume=False), progress=interrupt, **options)
    assert 0 < len(list(place.glob("*.npy"))) < 4, "what was finished is kept, and no more"
    resumed = ablate(model, IDS, kind="mean", journal=Journal(place, resume=True))
    assert resumed.effects == whole.effects
    assert resumed.base_loss == whole.base_loss
    with pytest.raises(ConfigError, match="begun with other kind"):
        ablate(model, IDS, kind="zero", journal=Journal(place, resume=True))


def test_divergences_are_positive_and_zero_for_equals() -> None:
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    other = logits + 0.3 * torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1))
    assert token_divergences(logits, logits).abs().max() < 1e-6
    p, q = logits.softmax(-1), other.softmax(-1)
    torch.testing.assert_close(
        token_divergences(logits, other), (p * (p / q).log()).sum(-1), rtol=1e-4, atol=1e-6
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(max_examples=50)
def test_holm(values: list[float]) -> None:
    p = np.array(values)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= 1).all()
    assert adjusted[np.argmin(p)] == pytest.approx(min(1.0, p.min() * len(p)))
    order = np.argsort(p)
    assert (np.diff(adjusted[order]) >= 0).all()


def test_holm_against_a_worked_example() -> None:
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


def test_intervals_cover_the_mean() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for seed in range(60):
        sums = generator.normal(0.3, 1.0, 30) * 10
        low, high = bootstrap_interval(sums, np.full(30, 10.0), seed=seed)
        hits += low <= 0.3 <= high
    assert 50 <= hits <= 60


def test_intervals_of_too_little() -> None:
    assert np.isnan(bootstrap_interval(np.array([1.0]), np.array([2.0]))).all()
    assert bootstrap_interval(np.array([2.0, 4.0]), np.array([1.0, 2.0])) == (2.0, 2.0)
    assert np.isnan(bootstrap_interval(np.array([np.nan, 1.0]), np.ones(2))).all()
    assert p_below_zero(np.array([-1.0])) == 1.0
    assert p_below_zero(np.array([-1.0, -1.1, -0.9, -1.0])) < 0.001


def test_documents_are_added_up() -> None:
    sums, counts = by_document(np.array([1.0, 2.0, 4.0]), np.array([3, 3, 5]), np.array([7, 7, 9]))
    assert sums.tolist() == [3.0, 4.0]
    assert counts.tolist() == [6.0, 5.0]
