"""Suffixes behind the base run's keys and values give what whole forwards with hooks give."""

from typing import Any

import pytest
import torch

from resstream.stream.model import StreamModel
from resstream.stream.sites import block_site
from resstream.sweep.arguments import NotPackableError, find_axes, probe_tokens
from resstream.sweep.attention import hearing
from resstream.sweep.cells import run_cells, run_pairs, without_no_ops
from resstream.sweep.patches import Cell, patched_layers
from resstream.sweep.prefix import prove_prefix
from resstream.sweep.reference import run_by_hooks
from resstream.sweep.starts import hear_base
from resstream.sweep.variants import Edit, Variant
from tests.sweep.families import FAMILIES, LENGTH, make, tokens

SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "mixer_out")


def by_hooks(
    model: StreamModel, run: Any, sequence: int, layer: int, head: int | None = None
) -> torch.Tensor:
    """Last logits with each position patched, from whole forwards: ``[pos, d_vocab]``."""
    source = run.source(layer)[sequence]
    channels = slice(None) if head is None else slice(8 * head, 8 * head + 8)

    def change(value: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        del base
        changed = value.clone()
        for position in range(LENGTH):
            changed[position, position, channels] = source[position, channels]
        return changed

    variant = Variant("cells", (Edit(block_site(layer, run.site), change),))
    own = run.base.tokens[sequence].expand(LENGTH, -1)
    return run_by_hooks(model, own, variant)[:, -1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_cell_of_every_site_is_exact(family: str) -> None:
    model = make(family)
    proof = prove_prefix(model)
    assert proof.proved == FAMILIES[family][1], proof.reason
    assert proof.proved == (proof.reason == "")
    checked = 0
    for site in SITES:
        if block_site(0, site) not in model.sites:
            continue
        layers = patched_layers(model, site)
        run = run_pairs(
            model, tokens(1), tokens(2), site=site, layers=layers, suffixes=proof.proved
        )
        places = [(s, layer) for s in range(2) for layer in layers]
        cells = [Cell(*place, position) for place in places for position in range(LENGTH)]
        with torch.no_grad():
            found = model.readout(run_cells(model, run, cells, proof.axes, rows=64)[:, None])[:, 0]
        for place, logits in zip(places, found.split(LENGTH), strict=True):
            wanted = by_hooks(model, run, *place)
            error = float((logits - wanted).abs().max() / wanted.abs().max())
            assert error <= 1e-5, (site, place)
            checked += LENGTH
    assert checked >= 3 * 2 * 3 * LENGTH


HEADLESS = {"mamba"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in HEADLESS])
def test_every_cell_of_every_head_is_exact(family: str) -> None:
    """Four heads of eight channels; with two heads of keys where the family groups them."""
    model = make(family)
    proof = prove_prefix(model)
    layers = patched_layers(model, "head_out")
    assert len(layers) == 3
    run = run_pairs(
        model, tokens(1), tokens(2), site="head_out", layers=layers, suffixes=proof.proved
    )
    places = [(layer, head) for layer in layers for head in range(4)]
    cells = [Cell(1, layer, position, head) for layer, head in places for position in range(LENGTH)]
    with torch.no_grad():
        found = model.readout(run_cells(model, run, cells, proof.axes, rows=64)[:, None])[:, 0]
    for (layer, head), logits in zip(places, found.split(LENGTH), strict=True):
        wanted = by_hooks(model, run, 1, layer, head)
        error = float((logits - wanted).abs().max() / wanted.abs().max())
        assert error <= 1e-5, (layer, head)


def test_float64_is_exact_to_the_last_digits() -> None:
    model = make("gpt2", torch.float64)
    proof = prove_prefix(model)
    run = run_pairs(model, tokens(1), tokens(2), site="resid_pre", layers=(0, 1, 2), suffixes=True)
    cells = [Cell(0, layer, position) for layer in range(3) for position in range(LENGTH)]
    with torch.no_grad():
        found = model.readout(run_cells(model, run, cells, proof.axes)[:, None])[:, 0]
    wanted = torch.cat([by_hooks(model, run, 0, layer) for layer in range(3)])
    assert float((found - wanted).abs().max()) < 1e-10


def test_cells_without_effect_are_those_left_out() -> None:
    """What is left out changes nothing, and most of what is not left out does."""
    model = make("llama")
    proof = prove_prefix(model)
    target = tokens(1, batch=1)
    source = target.clone()
    source[0, 3] = 5
    run = run_pairs(model, target, source, site="mlp_out", layers=(0, 1, 2), suffixes=True)
    cells = [Cell(0, layer, position) for layer in range(3) for position in range(LENGTH)]
    kept = without_no_ops(run, cells, [3], None, 3)
    left_out = [cell for cell in cells if cell not in kept]
    assert {cell.position for cell in left_out} >= {0, 1, 2}
    assert Cell(0, 2, 4) in left_out  # the last block's write is read at the last position only
    before = run.final[0]
    after = run_cells(model, run, left_out, proof.axes)
    assert float((after - before).abs().max() / before.abs().max()) < 1e-6
    changed = run_cells(model, run, kept, proof.axes)
    moved = (changed - before).abs().amax(1) > 1e-6 * before.abs().max()
    assert bool(moved.all())


@pytest.mark.parametrize("site", ["resid_pre", "attn_out", "head_out"])
def test_chunking_does_not_change_the_numbers(site: str) -> None:
    model = make("llama")
    axes = prove_prefix(model).axes
    run = run_pairs(model, tokens(1), tokens(2), site=site, layers=(0, 1, 2), suffixes=True)
    heads = range(4) if site == "head_out" else (None,)
    cells = [
        Cell(s, k, p, h) for s in range(2) for k in range(3) for p in range(LENGTH) for h in heads
    ]
    whole = run_cells(model, run, cells, axes, rows=10_000)
    for rows in (1, 7, 20, 60):
        parts = run_cells(model, run, cells, axes, rows=rows)
        assert torch.allclose(parts, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("site", ["resid_pre", "attn_out", "head_out", "mlp_out"])
def test_every_block_is_run_once_where_its_rows_fit(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins inside of a block goes through it beside what has begun before."""
    model = make("llama")
    axes = prove_prefix(model).axes
    run = run_pairs(model, tokens(1), tokens(2), site=site, layers=(0, 1, 2), suffixes=True)
    head = 1 if site == "head_out" else None
    cells = [Cell(0, layer, position, head) for layer in range(3) for position in range(LENGTH)]
    ran: list[int] = []
    block = StreamModel.run_block

    def counting(model: StreamModel, layer: int, *rest: Any) -> torch.Tensor:
        ran.append(layer)
        return block(model, layer, *rest)

    monkeypatch.setattr(StreamModel, "run_block", counting)
    run_cells(model, run, cells, axes, rows=10_000)
    assert ran == ([1, 2] if site == "mlp_out" else [0, 1, 2])


def test_base_run_keeps_what_it_is_asked_for() -> None:
    model = make("llama")
    ids = tokens(1)
    run = hear_base(model, ids, site="attn_out", layers=(1,), attention=1)
    assert set(run.values) == {1}
    assert len(run.attention) == 3
    assert run.attention[0].key.shape[0] == 1
    assert torch.equal(model.readout(run.streams[-1]), model.forward(ids))


def test_attention_is_heard_once_a_block() -> None:
    model = make("llama")
    with hearing() as heard, torch.no_grad():
        model.forward(tokens(1))
    assert len(heard) == model.spec.n_layers


def test_axes_are_seen_not_guessed() -> None:
    """Where the head is as wide as the sequence is long, sizes alone would not tell."""
    model = make("llama")
    angles = find_axes(model)[0]["position_embeddings", 0]
    assert angles.positions == (1,)
    assert find_axes(make("bloom"))[0]


def test_models_that_call_attention_otherwise_are_told() -> None:
    model = make("mamba")
    with pytest.raises(NotPackableError, match="calls attention 0 times"):
        hear_base(model, probe_tokens(model, 1, 4), attention=None)
