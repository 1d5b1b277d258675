"""What does one training step do to every write?  Hooks on a model that trains, sampled and cheap.

A forward pass in training mode opens a window; what runs outside of it, such as evaluation or the
recomputation that activation checkpointing does in the backward pass, is not read.  Of each
sequence a few evenly spaced positions are kept, the first among them; whether anything is finite is
looked up in all of them.  Only at the end of a step do numbers go to the host.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from resstream.recording.ledger import METRICS, WriteSums, row_dots, row_norms, write_metrics
from resstream.recording.route import plan_route
from resstream.recording.strata import stratify
from resstream.shapes import STRATA
from resstream.stream.model import StreamModel
from resstream.stream.spec import WriteSpec

_MOST_BYTES = 64 << 20
"""Room for the sample of one step; of large models fewer positions are kept."""

_SCALE_HOOK = re.compile(r"hook_(\w+)_scale")

LEDGER = ("write_norm", "relative_norm", "cosine")
"""Metrics of a write that are followed, named as in `resstream.recording.ledger`."""


@dataclass(frozen=True, slots=True)
class StepLedger:
    """Medians over the sampled tokens of one step, sinks left out."""

    writes: Float[np.ndarray, "metric write"]
    """In the order of `LEDGER`."""
    streams: Float[np.ndarray, " depth"]
    """Norm of the stream."""


class StreamWatch:
    """Reads writes and stream of a model while it trains.

    Args:
        model: The model; hooks are on it from here on until `close`.
        positions: How many positions of a sequence are sampled at most.
    """

    def __init__(self, model: StreamModel, *, positions: int) -> None:
        self.route = plan_route(model.spec)
        self._positions = positions
        self._points = {site: slot for slot, site in enumerate(self.route.points)}
        self._n_slots = len(self._points) + len(self.route.writes)
        self._d_model = model.spec.d_model
        self._is_open = False
        self._kept: Tensor | None = None
        self._mask: Tensor | None = None
        self._extremes: dict[int, tuple[Tensor, Tensor]] = {}
        self._bad: Tensor | None = None
        self._losses: list[Tensor] = []
        self._is_share = False
        self.has_loss = False
        """True once the model has given a loss."""
        self.before_forward: Callable[[], None] = _nothing
        """Called when a forward pass in training mode begins."""
        self._scales = ScaleWatch(model)
        self._stack = ExitStack()
        self._attach(model)

    def _attach(self, model: StreamModel) -> None:
        self._middles = _sums_of_writes(model)
        stops = [
            (index, stop)
            for index, stop in enumerate(self.route.stops)
            if stop.site not in self._middles
        ]
        hooks = {stop.site: self._reader(index, self._slot(index)) for index, stop in stops}
        self._stack.enter_context(model.hooked(hooks))
        whole = model.module
        for handle in (
            whole.register_forward_pre_hook(self._begin, with_kwargs=True),
            whole.register_forward_hook(self._end, with_kwargs=True),
            *self._scales.attach(lambda: self._is_open),
        ):
            self._stack.callback(handle.remove)

    def _slot(self, index: int) -> int:
        stop = self.route.stops[index]
        if stop.write is None:
            return self._points[stop.site]
        return len(self._points) + stop.write

    def _reader(self, index: int, slot: int) -> Any:
        def read(value: Tensor) -> None:
            if not self._is_open:
                return
            value = value.detach()
            self._extremes[index] = torch.aminmax(value)
            sample = value[:, :: self._stride(value)]
            if self._kept is None or self._kept.shape[1:] != sample.shape:
                dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
                self._kept = sample.new_zeros((self._n_slots, *sample.shape), dtype=dtype)
            self._kept[slot].copy_(sample)

        return read

    def _stride(self, value: Tensor) -> int:
        batch, pos = value.shape[:2]
        fits = _MOST_BYTES // (4 * self._n_slots * self._d_model * batch)
        return -(-pos // max(2, min(self._positions, fits)))

    def _begin(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        del args
        self._is_open = module.training and torch.is_grad_enabled()
        if self._is_open:
            self._mask = kwargs.get("attention_mask")
            self.before_forward()

    def _end(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        del module, args
        if not self._is_open:
            return
        self._is_open = False
        extremes = torch.stack([end.float() for pair in self._extremes.values() for end in pair])
        bad = ~extremes.isfinite().view(-1, 2).all(-1)
        self._bad = bad if self._bad is None else self._bad | bad
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor):
            # With `num_items_in_batch` losses of micro-batches are shares of one mean.
            self._is_share = kwargs.get("num_items_in_batch") is not None
            self._losses.append(loss.detach().float())
            self.has_loss = True

    def take_loss(self) -> float:
        """Loss of the step, in nats per predicted token for a language model; NaN without one."""
        losses, self._losses = self._losses, []
        if not losses:
            return float("nan")
        total = torch.stack(losses).sum()
        return float(total if self._is_share else total / len(losses))

    def take_first_bad(self) -> int | None:
        """Index of the first stop of the route that held a value that is not finite."""
        bad, self._bad = self._bad, None
        if bad is None:
            return None
        where = bad.nonzero().flatten().cpu()
        return list(self._extremes)[int(where[0])] if len(where) else None

    @property
    def scale_places(self) -> tuple[tuple[int, str], ...]:
        """Layer and sublayer of each scale."""
        return tuple(self._scales.places)

    def scales(self) -> Float[np.ndarray, " scale"]:
        """Mean of what multiplies each branch that is scaled."""
        return self._scales.means()

    def ledger(self) -> StepLedger:
        """Statistics of the last forward pass of the step."""
        if self._kept is None:
            missing = np.full((len(LEDGER), len(self.route.writes)), np.nan)
            return StepLedger(missing, np.full(len(self._points), np.nan))
        for site, (before, write, skip) in self._middles.items():
            stream, added = self._kept[self._points[before]], self._write(write)
            torch.add(added, stream, alpha=skip, out=self._kept[self._points[site]])
        points = self._kept[: len(self._points)]
        norms = _row_norms(points)
        sums = self._sums(norms)
        body = self._body(norms)
        metrics = write_metrics(sums, norms[-1])[[METRICS.index(name) for name in LEDGER]]
        return StepLedger(_medians(metrics[..., body]), _medians(norms[:, body]))

    def _write(self, index: int) -> Tensor:
        assert self._kept is not None
        return self._kept[len(self._points) + index]

    def _sums(self, norms: Float[np.ndarray, "depth batch pos"]) -> WriteSums:
        assert self._kept is not None
        writes = self._kept[len(self._points) :]
        before = torch.stack(list(self._streams_before()))
        sums = WriteSums.make_room(*writes.shape[:3])
        sums.write_norm[:] = _row_norms(writes)
        known = [self._points.get(site or "") for site in self.route.before]
        sums.stream_norm[:] = [
            _row_norms(stream[None])[0] if slot is None else norms[slot]
            for slot, stream in zip(known, before, strict=True)
        ]
        flat = sums.dot.reshape(len(writes), -1)
        shape = flat.shape
        flat[:] = row_dots(
            writes.reshape(*shape, -1),
            before.reshape(*shape, -1),
            sums.write_norm.reshape(shape),
            sums.stream_norm.reshape(shape),
        )
        return sums

    def _streams_before(self) -> Iterator[Tensor]:
        """The sampled stream that each write is added to; NaN where it can't be known."""
        assert self._kept is not None
        stream = self._kept[0]
        for index, site in enumerate(self.route.before):
            if site is not None:
                stream = self._kept[self._points[site]]
            elif self.route.additive[index - 1]:
                stream = stream + self._write(index - 1)
            else:
                stream = torch.full_like(stream, torch.nan)
            yield stream

    def _body(self, norms: Float[np.ndarray, "depth batch pos"]) -> Bool[np.ndarray, "batch pos"]:
        body = stratify(norms) == STRATA.index("body")
        mask = self._mask
        if mask is not None and mask.ndim == 2 and mask.shape[0] == body.shape[0]:
            stride = -(-mask.shape[1] // body.shape[1])
            real = mask[:, ::stride].bool().cpu().numpy()
            body = body & real if real.shape == body.shape else body
        return body

    def close(self) -> None:
        """Take all hooks off the model."""
        self._stack.close()


def _nothing() -> None:
    return


class ScaleWatch:
    """What multiplies branches: the value at a scale hook, or the vector that a module holds.

    A native model has hooks for it.  In other models a part that comes behind the branch and holds
    nothing but a vector or a scalar (LayerScale, a gate, the gain of a norm there) is the scale.

    Args:
        model: The model.
    """

    def __init__(self, model: StreamModel) -> None:
        self.places: list[tuple[int, str]] = []
        """Layer and name of the sublayer of each scale."""
        self._hooked: dict[int, nn.Module] = {}
        self._held: dict[int, nn.Parameter] = {}
        self._values: dict[int, Tensor] = {}
        for block in model.spec.blocks:
            hooks = _scale_hooks(model.module.get_submodule(block.module))
            for name, hook in hooks.items():
                self._hooked[len(self.places)] = hook
                self.places.append((block.layer, name))
            for write in () if hooks else block.writes:
                self._hold(write, model.module)

    def _hold(self, write: WriteSpec, module: nn.Module) -> None:
        own = list(module.get_submodule(write.module).parameters())
        if len(own) == 1 and own[0].ndim <= 1:
            self._held[len(self.places)] = own[0]
            self.places.append((write.layer, write.name))

    def attach(self, is_open: Callable[[], bool]) -> Iterator[RemovableHandle]:
        """Hook what has hooks; yields their handles."""
        for index, module in self._hooked.items():

            def read(module: nn.Module, args: Any, output: Tensor, index: int = index) -> None:
                del module, args
                if is_open():
                    self._values[index] = output.detach().float().mean()

            yield module.register_forward_hook(read)

    def means(self) -> Float[np.ndarray, " scale"]:
        """Mean over channels (and tokens, where it depends on them)."""
        values = dict(self._values)
        values |= {index: held.detach().float().mean() for index, held in self._held.items()}
        means = np.full(len(self.places), np.nan)
        if values:
            means[list(values)] = torch.stack(list(values.values())).cpu().numpy()
        return means


def _scale_hooks(block: nn.Module) -> dict[str, nn.Module]:
    """The scale hooks of a native block, by the name of the sublayer."""
    found = {_SCALE_HOOK.fullmatch(name): child for name, child in block.named_children()}
    return {match[1]: child for match, child in found.items() if match is not None}


def _sums_of_writes(model: StreamModel) -> dict[str, tuple[str, int, float]]:
    """Points between two writes that need no hook.

    Each with the site of the stream before, the first write, and the weight of the
    former.  Hooking them would make the sum of whole tensors once more.
    """
    found: dict[str, tuple[str, int, float]] = {}
    n_writes = 0
    points = set(plan_route(model.spec).points)
    for block in model.spec.blocks:
        middle = f"blocks.{block.layer}.hook_resid_mid"
        if middle in points and not block.stream_norms:
            before = f"blocks.{block.layer}.hook_resid_pre"
            found[middle] = before, n_writes, block.writes[0].skip_scale
        n_writes += len(block.writes)
    return found


def _row_norms(
    values: Float[Tensor, "slot batch pos d_model"],
) -> Float[np.ndarray, "slot batch pos"]:
    shape = values.shape[:-1]
    return row_norms(values.reshape(shape[0], -1, values.shape[-1])).reshape(shape)


def _medians(values: Float[np.ndarray, "*row token"]) -> Float[np.ndarray, "*row"]:
    """Median over tokens of what is finite; NaN where nothing is."""
    empty = ~np.isfinite(values).any(-1)
    known = np.where(np.isfinite(values), values, np.nan)
    known[empty] = 0.0
    if known.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    middle = np.nanmedian(known, axis=-1)
    return np.where(empty, np.nan, middle)
