"""What does autograd do with an addition in place, with hooks and with unused parameters?"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from resstream.train.experiments.experiment import (
    Chart,
    Experiment,
    Judgement,
    Key,
    Readings,
    Size,
    judged,
    pick,
)
from resstream.train.experiments.registry import register
from resstream.train.experiments.stacks import random_tokens, transformer


def _raises(act: Callable[[], object]) -> float:
    """1 if autograd refuses."""
    try:
        act()
    except RuntimeError:
        return 1.0
    return 0.0


def _in_place(norm: nn.Module, branch: nn.Module, x: Tensor, *, clone: bool) -> None:
    stream = x * 1.0
    write = branch(norm(stream.clone() if clone else stream))
    stream.add_(write)
    stream.square().sum().backward()


def saved_bytes(act: Callable[[], Tensor]) -> float:
    """Bytes of all storages that autograd keeps for the backward pass."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        act()
    return float(sum(seen.values()))


def _measure_in_place(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=4, quick=32, full=128)
    norm, branch = nn.LayerNorm(width), nn.Linear(width, width)
    x = torch.randn(8, width, requires_grad=True)
    held = 8 * width * 4.0

    def added(*, clone: bool) -> Tensor:
        stream = x * 1.0
        return (stream.clone() if clone else stream) + branch(norm(stream))

    return {
        "refused: x.add_(F(LN(x)))": _raises(lambda: _in_place(norm, branch, x, clone=False)),
        "refused: LN reads a clone": _raises(lambda: _in_place(norm, branch, x, clone=True)),
        "refused: x = x + F(LN(x))": _raises(lambda: added(clone=False).square().sum().backward()),
        "streams saved, clone and add_": saved_bytes(
            lambda: _added_in_place(norm, branch, x)
        ) / held,
        "streams saved, plain addition": saved_bytes(lambda: added(clone=False)) / held,
    }  # fmt: skip


def _added_in_place(norm: nn.Module, branch: nn.Module, x: Tensor) -> Tensor:
    stream = x * 1.0
    return stream.add_(branch(norm(stream.clone())))


def judge_in_place(readings: Readings) -> Judgement:
    """It would have to run and to save memory."""
    refused = readings.value("refused: x.add_(F(LN(x)))") == 1.0
    cloned = readings.value("streams saved, clone and add_")
    plain = readings.value("streams saved, plain addition")
    return judged(
        not refused and cloned < plain,
        f"autograd {'refuses' if refused else 'takes'} x.add_(F(LN(x))): the norm keeps x for its "
        f"backward pass. With a clone it runs, and keeps {cloned:.3g} tensors of the stream's size "
        f"where the plain addition keeps {plain:.3g}: nothing is saved",
    )


register(
    Experiment(
        name="in-place-addition",
        title="Does an in-place addition save memory?",
        claim="Writing x.add_(F(x)) after a clone saves activation memory.",
        source="Tutorials on residual connections; torch.autograd's version counters",
        rows=(45,),
        measure=_measure_in_place,
        judge=judge_in_place,
        chart=Chart(value_title="refused (1) or not (0); tensors kept, in streams"),
        method="One Pre-LN write in three forms; what autograd keeps is counted by its hooks.",
        seeds=0,
    )
)


def _hook_calls(site: str, *, checkpointed: bool, n_layers: int) -> float:
    """Calls of one hook of the first block in a forward and backward pass."""
    model = transformer(n_layers=n_layers, d_model=16, n_heads=2).train()
    model.gradient_checkpointing = checkpointed
    calls: list[int] = []
    hook = model.get_submodule(f"blocks.0.{site}")
    handle = hook.register_forward_hook(lambda *given: calls.append(len(given)))
    model(random_tokens(1, 4)).sum().backward()
    handle.remove()
    return float(len(calls))


def _measure_hooks(size: Size) -> dict[Key, float]:
    n_layers = pick(size, tiny=1, quick=4, full=12)
    return {
        f"calls of {site}, {name}": _hook_calls(site, checkpointed=checkpointed, n_layers=n_layers)
        for site in ("hook_attn_out", "hook_mlp_out")
        for name, checkpointed in (("plain", False), ("checkpointed", True))
    }


def judge_hooks(readings: Readings) -> Judgement:
    """Once without, once with?"""
    plain = readings.value("calls of hook_attn_out, plain")
    again = readings.value("calls of hook_attn_out, checkpointed")
    last = readings.value("calls of hook_mlp_out, checkpointed")
    return judged(
        plain == again == 1.0,
        f"the hook of the attention's write is called {plain:.0f} time in a plain step and "
        f"{again:.0f} times under activation checkpointing: the backward pass runs the block "
        f"again. The hook of its last write is called {last:.0f} time, because that second run "
        "stops as soon as it has what it needs. A recorder that counts calls must leave the second "
        "run out, and can't expect it to be whole",
    )


register(
    Experiment(
        name="hooks-under-checkpointing",
        title="Do hooks fire once under activation checkpointing?",
        claim="Activation checkpointing changes nothing but memory and time.",
        source="Tutorials on checkpointing; Chen et al. (2016), Sublinear Memory Cost",
        rows=(46,),
        measure=_measure_hooks,
        judge=judge_hooks,
        chart=Chart(value_title="calls of the hook in one training step"),
        method="The hook of one write, counted over a forward and a backward pass.",
        seeds=0,
    )
)


def _measure_snippet(size: Size) -> dict[Key, float]:
    width = pick(size, tiny=2, quick=8, full=8)
    model = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
    model[0](torch.randn(2, width)).sum().backward()
    crashed = 0.0
    try:
        sum(float(p.grad.norm() ** 2) for p in model.parameters())  # type: ignore[union-attr]
    except AttributeError:
        crashed = 1.0
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return {"fails: loop over p.grad.norm()": crashed, "fails: get_total_norm": float(norm != norm)}


def judge_snippet(readings: Readings) -> Judgement:
    """It has to survive a parameter that had no part in the loss."""
    crashed = readings.value("fails: loop over p.grad.norm()") == 1.0
    return judged(
        not crashed,
        "the loop stops with an AttributeError at the first parameter that has no gradient (an "
        "unused expert, a frozen layer); torch.nn.utils.get_total_norm over those that have one "
        "does not",
    )


register(
    Experiment(
        name="gradient-norm-snippet",
        title="Does the usual gradient-norm loop work on every model?",
        claim="total += p.grad.norm()**2 over model.parameters() gives the gradient norm.",
        source="Tutorials on monitoring residual networks",
        rows=(47,),
        measure=_measure_snippet,
        judge=judge_snippet,
        chart=Chart(value_title="fails (1) or not (0)"),
        method="Two linear layers of which one had no part in the loss.",
        seeds=0,
    )
)
