"""From last streams to the logits of the tokens in question, without the rest of the vocabulary."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from resstream.stream.model import StreamModel
from resstream.stream.writers import tolerance

_BYTES_AT_ONCE = 16 << 20
_CUTS: WeakKeyDictionary[StreamModel, bool] = WeakKeyDictionary()
"""Models for which it was tried, and whether it gave the same."""


class Readout:
    """Logits of last streams, for chosen tokens or for the whole vocabulary.

    The head's matrix is cut to the rows of the chosen tokens where that gives the same logits,
    which is tried once per model; else the whole vocabulary is computed and cut after.

    Args:
        model: A language model.
        columns: Token ids whose logits are wanted, or None for all.
        example: Some last streams ``[n, d_model]`` to try it on.
    """

    def __init__(self, model: StreamModel, columns: Sequence[int] | None, example: Tensor) -> None:
        self._model = model
        self._columns = None
        self._cut = False
        if columns is not None:
            self._columns = torch.tensor(columns, device=model.device)
            if model not in _CUTS:
                _CUTS[model] = self._can_cut(example)
            self._cut = _CUTS[model]

    @torch.no_grad()
    def __call__(self, streams: Float[Tensor, "row d_model"]) -> Float[Tensor, "row token"]:
        """The logits of each row."""
        return torch.cat(list(self.parts(streams)))

    def parts(self, streams: Float[Tensor, "row d_model"]) -> Iterator[Float[Tensor, "some token"]]:
        """The same, a limited number of rows at a time, in order."""
        width = self._model.spec.d_vocab or 1
        if self._cut and self._columns is not None:
            width = max(len(self._columns), streams.shape[-1])
        step = max(1, _BYTES_AT_ONCE // (4 * width))
        for start in range(0, len(streams), step):
            part = streams[start : start + step]
            if self._cut:
                with self._cut_head():
                    yield self._model.readout(part[:, None])[:, 0]
            elif self._columns is None:
                yield self._model.readout(part[:, None])[:, 0]  # no name would keep it alive
            else:
                yield self._model.readout(part[:, None])[:, 0, self._columns]

    @torch.no_grad()
    def _can_cut(self, example: Tensor) -> bool:
        if not isinstance(self._head(), nn.Linear):
            return False
        whole = self._model.readout(example[:, None])[:, 0][:, self._columns]
        try:
            with self._cut_head():
                cut = self._model.readout(example[:, None])[:, 0]
        except (RuntimeError, IndexError, ValueError):  # what follows the head wants all logits
            return False
        bound = tolerance(whole.dtype) * 0.1 * float(whole.abs().max())
        return cut.shape == whole.shape and float((cut - whole).abs().max()) <= bound

    def _head(self) -> nn.Module | None:
        path = self._model.spec.readout.head
        return None if path is None else self._model.module.get_submodule(path)

    @contextmanager
    def _cut_head(self) -> Iterator[None]:
        head = self._head()
        assert isinstance(head, nn.Linear), "tried in `_can_cut`"
        weight = head.weight[self._columns]
        own = getattr(head, "bias", None)
        bias = None if own is None else own[self._columns]
        before = vars(head).get("forward")
        vars(head)["forward"] = lambda value: nn.functional.linear(value, weight, bias)
        try:
            yield
        finally:
            if before is None:
                vars(head).pop("forward", None)
            else:
                vars(head)["forward"] = before
