"""Does the monitor see what the recorder sees, change nothing, and name what is not finite?"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import resstream as rs
from resstream.errors import ConfigError, NonFiniteError
from resstream.nn.rules import Highway, LayerScale, ReZero
from resstream.stream.model import StreamModel
from resstream.train.gradients import GradientNorms, gradient_groups
from resstream.train.monitor import Monitor
from resstream.train.watching import LEDGER, StreamWatch


def run(trainer: Any, model: nn.Module, monitor: Monitor | None = None, **options: Any) -> Any:
    callbacks = [] if monitor is None else [monitor]
    made = trainer(model, callbacks=callbacks, **options)
    made.train()
    return [entry for entry in made.state.log_history if "loss" in entry]


def gpt2(n_layers: int = 2) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": n_layers, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, **sizes))


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "after"])
def test_a_step_is_what_the_recorder_sees(native, placement):
    model = native(placement=placement)
    tokens = torch.randint(3, 50, (2, 16), generator=torch.Generator().manual_seed(0))
    stream = StreamModel(model, name="small")
    watch = StreamWatch(stream, positions=16)
    model.train()(tokens, labels=tokens)
    ledger = watch.ledger()
    watch.close()
    model.eval()
    seen = rs.record(stream, tokens)
    # The recorder's quantiles are those of a sketch; with so few tokens they are ranks.
    for index, name in enumerate(LEDGER):
        summary = seen.summary(name)
        low, high = summary.quantiles[:, 0, 1], summary.quantiles[:, 0, 3]
        assert ((low <= ledger.writes[index]) & (ledger.writes[index] <= high)).all(), name
    assert ledger.streams == pytest.approx(seen.stream_norm.median[:, 0], rel=0.1)


def test_medians_leave_sinks_and_padding_out(native):
    model = native()
    stream = StreamModel(model, name="small")
    watch = StreamWatch(stream, positions=16)
    tokens = torch.randint(3, 50, (2, 16), generator=torch.Generator().manual_seed(0))
    model.train()(tokens)
    alone = watch.ledger()
    padded = torch.cat([tokens, tokens], dim=0)
    mask = torch.ones_like(padded)
    padded[2:, 4:], mask[2:, 4:] = 7, 0
    kept: dict[str, np.ndarray] = {}
    with stream.hooked({"blocks.0.mlp_out": lambda w: kept.update(w=w.detach().numpy()) or None}):
        model(padded, attention_mask=mask)
    ledger = watch.ledger()
    watch.close()
    norms = np.linalg.norm(kept["w"], axis=-1)
    body = mask.bool().numpy() & (np.arange(16) > 0)
    assert ledger.writes[0, 1] == pytest.approx(np.median(norms[body]), rel=1e-6)
    assert alone.writes[0, 1] == pytest.approx(np.median(norms[:2, 1:]), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_nothing_is_changed(native, trainer, dtype):
    options = {"bf16": dtype == "bf16", "max_grad_norm": 0.05}
    alone, watched = native(dropout=0.1), native(dropout=0.1)
    before = run(trainer, alone, **options)
    monitor = Monitor()
    after = run(trainer, watched, monitor, **options)
    assert [entry["loss"] for entry in before] == [entry["loss"] for entry in after]
    pairs = zip(alone.parameters(), watched.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert not any(module._forward_hooks for module in watched.modules())
    seen = monitor.recording
    assert seen is not None
    assert seen.loss == pytest.approx([entry["loss"] for entry in after])
    # Before clipping, as Trainer's log has it too.
    assert seen.total_gradient_norm == pytest.approx([entry["grad_norm"] for entry in after])
    assert seen.total_gradient_norm.min() > 0.05
    assert seen.learning_rate == pytest.approx([entry["learning_rate"] for entry in after])


@pytest.fixture
def reads(monkeypatch):
    """Counts the looks at a tensor: each read of a site takes its extremes once."""
    found: list[int] = []
    extremes = torch.aminmax

    def counting(value: torch.Tensor) -> Any:
        found.append(1)
        return extremes(value)

    monkeypatch.setattr(torch, "aminmax", counting)
    return found


READS = 3 * (3 + 1 + 6)
"""Three steps, in each the stream before three blocks and after the last, and six writes."""


def test_what_is_computed_again_is_not_read_again(native, trainer, reads):
    plain, saving = Monitor(), Monitor()
    run(trainer, native(), plain)
    assert len(reads) == READS
    model = native()
    model.model.gradient_checkpointing = True
    runs = []
    model.model.blocks[1].register_forward_pre_hook(lambda *_: runs.append(model.training))
    run(trainer, model, saving)
    assert sum(runs) == 2 * 3, "each block runs twice a step"
    assert len(reads) == 2 * READS
    assert plain.recording is not None
    assert saving.recording is not None
    assert np.array_equal(plain.recording.write_norm, saving.recording.write_norm)
    assert saving.recording.gradient_norm == pytest.approx(plain.recording.gradient_norm)


def test_gradients_of_several_batches_are_those_of_the_step(native, trainer):
    monitor = Monitor()
    log = run(trainer, native(), monitor, gradient_accumulation_steps=3)
    assert monitor.recording is not None
    norms = [entry["grad_norm"] for entry in log]
    assert monitor.recording.total_gradient_norm == pytest.approx(norms)
    assert monitor.recording.loss == pytest.approx([entry["loss"] for entry in log])


def test_gradient_norms_by_block(native):
    model = native(tied=True)
    norms = GradientNorms(gradient_groups(StreamModel(model, name="small")))
    taken: list[float] = []
    for _ in range(2):
        model.zero_grad()
        norms.begin()
        model(torch.arange(10)[None], labels=torch.arange(10)[None]).loss.backward()
        taken = norms.take(loss_scale=2.0)
    norms.close()
    for layer, block in enumerate(model.model.blocks):
        flat = torch.cat([value.grad.flatten() for value in block.parameters()])
        assert taken[layer] == pytest.approx(float(flat.norm()) / 2)
    assert len(taken) == 4
    assert taken[3] > 0


def test_gradients_that_do_not_come(native):
    """Frozen blocks have none, and a part that was left out of a step is not waited for."""
    model = native()
    model.model.blocks[0].requires_grad_(False)
    norms = GradientNorms(gradient_groups(StreamModel(model, name="small")))
    norms.begin()
    loss = model(torch.arange(10)[None], labels=torch.arange(10)[None]).loss
    (loss + 0 * model.model.blocks[1].mlp.down_proj.weight.sum()).backward()
    taken = norms.take()
    assert taken[0] == 0.0
    assert min(taken[1:]) > 0
    assert norms.take() == [0.0] * 4


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_any_model(trainer, tiny_llama, family):
    model = gpt2() if family == "gpt2" else tiny_llama(num_hidden_layers=2, vocab_size=50)
    monitor = Monitor()
    run(trainer, model, monitor)
    seen = monitor.recording
    assert seen is not None
    assert seen.sites[:2] == ("blocks.0.hook_attn_out", "blocks.0.hook_mlp_out")
    for metric in (*LEDGER, "stream_norm", "gradient_norm"):
        assert np.isfinite(seen.values(metric)).all(), metric
    assert seen.scale_names == ()
    assert seen.first_bad is None


@pytest.mark.parametrize("rule", [LayerScale(init=0.1), ReZero(alpha=0.3)])
def test_scales_are_followed(native, trainer, rule):
    model, monitor = native(rule=rule), Monitor()
    run(trainer, model, monitor, learning_rate=1e-2)
    seen = monitor.recording
    assert seen is not None
    start = 0.1 if rule.kind == "layer_scale" else 0.3
    assert seen.scale[0] == pytest.approx(np.full(6, start))
    assert (seen.scale[-1] != seen.scale[0]).all()


def test_gates_are_followed_where_a_block_is_one_write(native, trainer):
    """A highway changes the skip too, so that its block is one write; its gates have hooks."""
    monitor = Monitor()
    run(trainer, native(rule=Highway(bias=-1.0)), monitor)
    seen = monitor.recording
    assert seen is not None
    assert seen.names == ("block",) * 3
    assert seen.rows("scale")[:3] == (("attn", 0), ("mlp", 0), ("attn", 1))
    assert seen.scale[0] == pytest.approx(np.full(6, 1 / (1 + np.e)), abs=0.1)


def test_a_norm_behind_the_branch_is_its_scale(native, trainer):
    monitor = Monitor()
    run(trainer, native(placement="after"), monitor, learning_rate=1e-2)
    assert monitor.recording is not None
    assert monitor.recording.scale[0] == pytest.approx(np.ones(6))


class Poison:
    """Makes the output matrix of one MLP not finite before its second step."""

    def __init__(self, model: Any, layer: int) -> None:
        weight = model.model.blocks[layer].mlp.down_proj.weight
        self.calls = 0

        def spoil(module: nn.Module, args: Any) -> None:
            self.calls += module.training
            if self.calls == 2:
                weight.data[3, 1] = torch.inf

        model.register_forward_pre_hook(spoil)


def test_the_culprit_is_named_before_the_step(native, trainer):
    model, monitor = native(), Monitor(stop_at_non_finite=True)
    Poison(model, layer=1)
    others = model.model.blocks[2].mlp.up_proj.weight
    made = trainer(model, callbacks=[monitor], max_steps=3)
    made.train_dataset = made.train_dataset[:2]
    with pytest.raises(NonFiniteError, match=r"at step 2 blocks.1.hook_mlp_out was not"):
        made.train()
    assert others.isfinite().all(), "the bad gradient has not got into the weights"
    seen = monitor.recording
    assert seen is not None
    assert seen.first_bad is not None
    assert (seen.first_bad.step, seen.first_bad.place) == (2, "blocks.1.hook_mlp_out")
    assert not any(module._forward_hooks for module in model.modules())


def test_a_run_goes_on_if_nobody_asked(native, trainer):
    model, monitor = native(), Monitor()
    Poison(model, layer=1)
    run(trainer, model, monitor)
    assert monitor.recording is not None
    assert monitor.recording.bad_steps == 2
    assert monitor.recording.n_steps == 3


def test_a_bad_gradient_is_named_by_its_block(native, trainer):
    model, monitor = native(), Monitor(stop_at_non_finite=True)
    gate = model.model.blocks[1].mlp.up_proj.weight
    gate.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(NonFiniteError, match=r"the gradient of model.blocks.1 was not"):
        run(trainer, model, monitor)


def test_a_bad_loss_is_named(native, trainer):
    model, monitor = native(tied=False), Monitor(stop_at_non_finite=True)
    model.model.unembed.weight.data[5] = torch.nan
    with pytest.raises(NonFiniteError, match=r"at step 1 the loss was not"):
        run(trainer, model, monitor)


def test_evaluation_is_not_read(native, trainer, reads):
    monitor = Monitor()
    made = trainer(native(), callbacks=[monitor], eval_strategy="steps", eval_steps=1)
    made.train()
    assert len(reads) == READS
    plain = Monitor()
    run(trainer, native(), plain)
    assert monitor.recording is not None
    assert plain.recording is not None
    assert np.array_equal(monitor.recording.write_norm, plain.recording.write_norm)


def test_saved_recordings_are_read_back(native, trainer, tmp_path):
    monitor = Monitor(tmp_path / "seen")
    run(trainer, native(), monitor)
    again = rs.load_result(tmp_path / "seen")
    assert monitor.recording is not None
    assert again.to_json() == monitor.recording.to_json()
    frame = again.to_dataframe()
    assert set(frame["metric"]) == {
        "loss", "learning_rate", "gradient_norm", "write_norm", "relative_norm", "cosine",
        "stream_norm",
    }  # fmt: skip


def test_positions_below_two_are_refused():
    with pytest.raises(ConfigError, match="positions must be at least 2, got 1"):
        Monitor(positions=1)
