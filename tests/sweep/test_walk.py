"""One walk over the layers gives what whole forwards with hooks give, and computes no more."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resstream.stream.model import StreamModel
from resstream.sweep.patches import head_count, head_site, head_slices, patched_layers
from resstream.sweep.reference import base_values, run_by_hooks
from resstream.sweep.variants import (
    Edit,
    Variant,
    replace,
    resample,
    scale,
    within,
    zero,
)
from resstream.sweep.walk import BASE, Walk, blocks_walked, group_variants, keeps_for
from tests.sweep.families import FAMILIES, make, tokens

ORDER = torch.tensor([1, 0])


def all_kinds(model: StreamModel) -> list[Variant]:
    """Every write, block, pair of blocks and (where there are any) head, in several ways."""
    constant = torch.linspace(-1, 1, model.spec.d_model)
    writes = model.spec.writes
    found = [Variant("zero", (Edit(write.site, zero, fixed=True),)) for write in writes]
    found += [Variant("mean", (Edit(w.site, replace(constant), fixed=True),)) for w in writes[::2]]
    found += [Variant("other", (Edit(w.site, resample(ORDER), fixed=True),)) for w in writes[1::2]]
    found += [Variant("scaled", (Edit(write.site, scale(0.5)),)) for write in writes]
    for layers in ((0,), (2,), (0, 1), (1, 2), (0, 2)):
        sites = [write.site for write in writes if write.layer in layers]
        found.append(Variant("group", tuple(Edit(site, zero, fixed=True) for site in sites)))
        found.append(Variant("half", tuple(Edit(site, scale(0.5)) for site in sites)))
    return found + heads(model)


def heads(model: StreamModel) -> list[Variant]:
    if model.spec.blocks[0].writes[0].output_matrix is None or head_count(model) is None:
        return []
    if model.spec.blocks[0].writes[0].name != "attn":
        return []
    return [
        Variant("head", (Edit(head_site(layer), within(channels, change)),))
        for layer in patched_layers(model, "head_out")
        for channels in head_slices(model, layer)[::3]
        for change in (zero, resample(ORDER))
    ]


def run(
    model: StreamModel, ids: torch.Tensor, variants: list[Variant], *, rows: int, together: int
) -> tuple[dict[int, torch.Tensor], int]:
    """Last streams of all variants and the base, and how many layer-tokens it took."""
    spent: list[int] = []
    walk = Walk(model, ids, rows, spent.append)
    groups = group_variants(variants, together)
    found: dict[int, torch.Tensor] = {}
    for group, keep in zip(groups, keeps_for(variants, groups), strict=True):
        own = {index: variants[index] for index in group}
        found |= dict(walk.run(own, keep=keep, with_base=keep is None))
    return found, sum(spent)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_plain_hooks(family: str) -> None:
    model = make(family)
    ids, variants = tokens(1), all_kinds(model)
    found, spent = run(model, ids, variants, rows=3 * ids.numel(), together=11)
    assert len(found) == len(variants) + 1
    with torch.no_grad():
        base = model.forward(ids)
        assert torch.equal(model.readout(found[BASE]), base)
        for index, variant in enumerate(variants):
            wanted = run_by_hooks(model, ids, variant)
            error = float((model.readout(found[index]) - wanted).abs().max())
            assert error <= 1e-5 * float(wanted.abs().max()), (variant.label, variant.edits[0].site)
    groups = group_variants(variants, 11)
    assert spent == ids.numel() * blocks_walked(model.spec, variants, groups)


@pytest.fixture(scope="module")
def llama() -> StreamModel:
    return make("llama")


@given(rows=st.integers(1, 200), together=st.integers(1, 40))
@settings(max_examples=10, deadline=None)
def test_how_it_is_cut_up_does_not_change_the_numbers(
    llama: StreamModel, rows: int, together: int
) -> None:
    ids, variants = tokens(1), all_kinds(llama)
    wanted, _ = run(llama, ids, variants, rows=10_000, together=1000)
    found, _ = run(llama, ids, variants, rows=rows, together=together)
    assert found.keys() == wanted.keys()
    for index, stream in found.items():
        assert torch.allclose(stream, wanted[index], rtol=1e-4, atol=1e-5)


@given(at=st.integers(0, 5))
@settings(max_examples=6, deadline=None)
def test_a_write_that_is_replaced_by_itself_changes_nothing(llama: StreamModel, at: int) -> None:
    site = llama.spec.writes[at].site
    same = Variant("same", (Edit(site, lambda value, base: base, fixed=True),))
    found, _ = run(llama, tokens(3), [same], rows=10_000, together=1)
    assert torch.allclose(found[0], found[BASE], rtol=0, atol=1e-6)


@given(layer=st.integers(0, 2), seed=st.integers(0, 100))
@settings(max_examples=6, deadline=None)
def test_every_position_of_one_layer_gives_the_other_run(
    llama: StreamModel, layer: int, seed: int
) -> None:
    """The stream is all that a layer hands on: patch it whole, and the run is the other one."""
    clean, corrupted = tokens(seed), tokens(seed + 1000)
    site = f"blocks.{layer}.hook_resid_pre"
    stream = base_values(llama, clean, [site])[site]
    whole = Variant("whole", (Edit(site, lambda value, base: stream, fixed=True),))
    found, _ = run(llama, corrupted, [whole], rows=10_000, together=1)
    wanted, _ = run(llama, clean, [], rows=10_000, together=1)
    assert torch.allclose(found[0], wanted[BASE], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[BASE], wanted[BASE], rtol=1e-2, atol=1e-2)


def test_layer_tokens_are_close_to_the_least(llama: StreamModel) -> None:
    """Three layers, two writes each: what lies before a change is not run again."""
    variants = [Variant("z", (Edit(w.site, zero, fixed=True),)) for w in llama.spec.writes]
    ids = tokens(1)
    _, spent = run(llama, ids, variants, rows=10_000, together=1000)
    base, attn, mlp = 3, 3 + 2 + 1, 2 + 1 + 0
    assert spent == ids.numel() * (base + attn + mlp)
    whole = Variant("whole", tuple(Edit(w.site, zero, fixed=True) for w in llama.spec.writes))
    found, spent = run(llama, ids, [whole], rows=10_000, together=1)
    assert spent == ids.numel() * base  # nothing is left to be run
    assert torch.equal(found[0], llama.begin(ids).stream)


def test_later_groups_do_not_run_the_base_again(llama: StreamModel) -> None:
    variants = [Variant("z", (Edit(w.site, zero, fixed=True),)) for w in llama.spec.writes]
    ids = tokens(1)
    _, whole = run(llama, ids, variants, rows=10_000, together=6)
    _, parts = run(llama, ids, variants, rows=10_000, together=2)
    assert parts == whole
    _, single = run(llama, ids, variants, rows=10_000, together=1)
    assert single == whole + 3 * ids.numel()  # each layer's second group needs its base values


def test_a_group_can_be_run_without_those_before_it(llama: StreamModel) -> None:
    """As after an interruption: the base is run up to where the group begins, to the same bits."""
    variants = [Variant("z", (Edit(w.site, zero, fixed=True),)) for w in llama.spec.writes]
    wanted, _ = run(llama, tokens(1), variants, rows=14, together=2)
    late = Walk(llama, tokens(1), 14)
    found = dict(late.run({4: variants[4], 5: variants[5]}, with_base=True))
    assert found.keys() == {4, 5, BASE}
    assert all(torch.equal(stream, wanted[index]) for index, stream in found.items())
