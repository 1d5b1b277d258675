"""Attention over loose rows: each variant's own keys and values behind those of the base run.

Everything in a transformer block but attention works on one position at a time.  So the rows of
many variants, of many lengths, can go through a block as one long sequence, if attention alone is
told which rows belong together.  It is told where every implementation meets: in torch's
`scaled_dot_product_attention`.  The base run's call of the same layer says what the mask was.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from resstream.sweep.arguments import NotPackableError

ATTENTION_BYTES = 32 << 20
"""Keys and values of the variants that attend at once; each has the base run's before its own."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What one layer's attention was called with in the base run."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    is_causal: bool
    options: dict[str, Any]

    def prefix(self, sequence: int, start: int) -> tuple[Tensor, Tensor]:
        """Keys and values before `start`, ``[1, n_heads, start, d_head]``."""
        chosen = slice(sequence, sequence + 1)
        return self.key[chosen, :, :start], self.value[chosen, :, :start]

    def mask_rows(self, sequence: int, rows: slice) -> Tensor | None:
        """What the queries `rows` of a sequence may see, over all positions."""
        length = self.key.shape[2]
        if self.mask is not None:
            own = sequence if self.mask.shape[0] > 1 else 0
            return self.mask[own : own + 1, :, rows]
        if not self.is_causal:
            return None
        return _causal_rows(rows.start, rows.stop, length, self.key.device)

    def of_sequences(self, count: int) -> "AttentionCall":
        """The call for the first `count` sequences, without the queries."""
        mask = self.mask
        if mask is not None and mask.shape[0] > 1:
            mask = mask[:count]
        key, value = self.key[:count].clone(), self.value[:count].clone()
        return AttentionCall(self.query[:0, :, :0], key, value, mask, self.is_causal, self.options)


@lru_cache(maxsize=64)
def _causal_rows(first: int, end: int, length: int, device: torch.device) -> Tensor:
    """Which of `length` positions the queries ``first..end-1`` may see."""
    queries = torch.arange(first, end, device=device)
    return (torch.arange(length, device=device) <= queries[:, None])[None, None]


def _read_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> AttentionCall:
    del dropout_p  # models are in evaluation mode
    if attn_mask is not None and attn_mask.ndim != 4:
        raise NotPackableError("the mask is not [batch, head, query, key]")
    return AttentionCall(query, key, value, attn_mask, is_causal, options)


class _Listening(TorchFunctionMode):
    def __init__(self, heard: list[AttentionCall]) -> None:
        super().__init__()
        self._heard = heard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.scaled_dot_product_attention:
            self._heard.append(_read_call(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


@contextmanager
def hearing() -> Iterator[list[AttentionCall]]:
    """Collect the attention calls made while the context is open."""
    heard: list[AttentionCall] = []
    with _Listening(heard):
        yield heard


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring rows: `count` variants that begin at one position of one sequence."""

    sequence: int
    start: int
    count: int
    length: int
    """Positions of the whole sequence; a variant has ``length - start`` rows."""

    @property
    def rows(self) -> int:
        """Rows of one variant."""
        return self.length - self.start


def last_rows(groups: Sequence[Group], device: torch.device) -> Int[Tensor, " variant"]:
    """Where the last row of each variant stands among the rows of `groups`."""
    sizes = [group.rows for group in groups for _ in range(group.count)]
    return torch.tensor(sizes, device=device).cumsum(0) - 1


class LooseAttention(TorchFunctionMode):
    """While open, one block may be run on the rows of `groups`, stood one after the other.

    Args:
        base: The base run's attention call in the same block.
        groups: What the rows are, in order.
        last_only: True if nothing but the last row of each variant is wanted of this block.  Then
            queries, and every product after the attention, are computed for those rows alone.
    """

    def __init__(self, base: AttentionCall, groups: Sequence[Group], *, last_only: bool) -> None:
        super().__init__()
        self._base = base
        self._groups = groups
        self._n_rows = sum(group.count * group.rows for group in groups)
        self._last_only = last_only
        self._wanted: Tensor | None = None
        self.calls = 0
        """How often attention was called; a block that packs calls it once."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention:
            return self._attend(_read_call(*args, **options))
        if self._wanted is not None and func is nn.functional.linear:
            return self._multiply(func, args, options, 0)
        if self._wanted is not None and func is torch.addmm:
            return self._multiply(func, args, options, 1)
        return func(*args, **options)

    def _multiply(self, func: Any, args: Any, options: Any, place: int) -> Tensor:
        """A matrix product on the wanted rows alone; the others become zero and are never read."""
        value = args[place] if len(args) > place else None
        if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[-2] != self._n_rows:
            return func(*args, **options)
        assert self._wanted is not None, "set when attention was called"
        chosen = value.index_select(-2, self._wanted)
        part: Tensor = func(*args[:place], chosen, *args[place + 1 :], **options)
        whole = part.new_zeros(*part.shape[:-2], self._n_rows, part.shape[-1])
        return whole.index_copy_(-2, self._wanted, part)

    def _attend(self, call: AttentionCall) -> Float[Tensor, "1 n_heads row d_head"]:
        self.calls += 1
        query, key = call.query, call.key
        fits = query.shape[0] == 1 and query.shape[2] == key.shape[2] == self._n_rows
        if not fits or key.shape[1] != self._base.key.shape[1]:
            raise NotPackableError(f"attention was called with {tuple(query.shape)}")
        # Rows that are not attended for must be numbers all the same: norms and gates see them.
        make = query.new_zeros if self._last_only else query.new_empty
        output = make(self._n_rows, query.shape[1], call.value.shape[-1])
        offset = 0
        for group in self._groups:
            rows = slice(offset, offset + group.count * group.rows)
            self._attend_group(call, group, rows, output[rows])
            offset = rows.stop
        if self._last_only:
            self._wanted = last_rows(self._groups, self._base.key.device)
        return output.transpose(0, 1)[None]

    def _attend_group(self, call: AttentionCall, group: Group, rows: slice, output: Tensor) -> None:
        query, key, value = (
            part[0, :, rows].unflatten(1, (group.count, group.rows)).transpose(0, 1)
            for part in (call.query, call.key, call.value)
        )
        first = group.rows - 1 if self._last_only else 0
        mask = self._base.mask_rows(group.sequence, slice(group.start + first, group.length))
        if mask is not None:
            mask = mask[..., : group.length]
        before = self._base.prefix(group.sequence, group.start)
        goal = output.view(group.count, group.rows, *output.shape[1:])[:, first:]
        step = _variants_at_once(before, group)
        for at in range(0, group.count, step):
            part = slice(at, at + step)
            attended = nn.functional.scaled_dot_product_attention(
                query[part, :, first:],
                _behind(before[0], key[part]),
                _behind(before[1], value[part]),
                attn_mask=mask,
                **self._base.options,
            )
            goal[part] = attended.transpose(1, 2)


def _variants_at_once(before: tuple[Tensor, Tensor], group: Group) -> int:
    """How many variants' keys and values fit the limit, behind those of the base run."""
    channels = sum(part.shape[1] * part.shape[3] for part in before)
    one = before[0].element_size() * channels * group.length
    return max(1, ATTENTION_BYTES // max(1, one))


def _behind(old: Tensor, new: Tensor) -> Tensor:
    """Each variant's own keys (or values) behind the base run's."""
    return torch.cat([old.expand(len(new), -1, -1, -1), new], dim=2) if old.shape[2] else new
