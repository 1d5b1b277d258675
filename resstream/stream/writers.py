"""Which parts of a block write into the stream, and the proof.

Additive blocks: the smallest set of parts whose outputs sum, times one constant, to
``block(x) - x``.  Post-LN blocks: a chain of norms, each of whose input is ``alpha * stream +
write`` and whose output is the next stream.  A part that adds the stream by itself (Bloom, MPT)
counts by its output minus the argument that held the stream.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resstream.stream.tracing import BlockTrace, PartTrace

_MAX_WRITERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A part that writes: ``write = scale * (output - argument minus)``."""

    part: PartTrace
    minus: int | str | None = None
    scale: float = 1.0
    skip_scale: float = 1.0

    @property
    def raw(self) -> Tensor:
        """Output less what was handed through, in float64, before `scale`."""
        value = self.part.output.double()
        return value if self.minus is None else value - self.part.inputs[self.minus].double()

    @property
    def write(self) -> Tensor:
        """What is added to the stream."""
        return self.scale * self.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """The proof for one block."""

    writers: tuple[Writer, ...]
    norms: tuple[PartTrace, ...]
    """Post-LN: the norm behind each write; empty for additive blocks."""
    residue: float


def tolerance(dtype: torch.dtype) -> float:
    """How large the residue of a proof may be; a wrong set of parts is off by about one."""
    return {torch.float64: 1e-6, torch.float32: 1e-4}.get(dtype, 3e-2)


def find_writers(
    trace: BlockTrace, norms: Sequence[PartTrace]
) -> tuple[Writers | None, Writers | None]:
    """The writers of a block, and the closest miss if there are none.

    Args:
        trace: A run of the block, best of its twin.
        norms: The parts that are norms over the stream's width.
    """
    limit = tolerance(trace.stream.dtype)
    plain, through = candidates(trace)
    additive = _additive(trace, plain, needs_through=False)
    if additive is not None and additive.residue <= limit:
        return additive, additive
    chain = _post_norm_chain(trace, plain, norms, limit)
    if chain is not None:
        return chain, chain
    # Last, because any part that holds the whole update would fit: its output less the stream.
    handed = _additive(trace, [*plain, *through], needs_through=True)
    nearest = min((x for x in (additive, handed) if x), key=lambda x: x.residue, default=None)
    return (handed if handed is not None and handed.residue <= limit else None), nearest


def candidates(trace: BlockTrace) -> tuple[list[Writer], list[Writer]]:
    """Parts that could write: by their output, and by output minus an argument.

    Parts with equal outputs are one candidate, named by the outermost part.
    """
    counts: dict[str, int] = {}
    for part in trace.parts:
        counts[part.path] = counts.get(part.path, 0) + 1
    shaped = [
        part
        for part in trace.parts
        if part.output.shape == trace.stream.shape and counts[part.path] == 1
    ]
    plain: list[Writer] = []
    for part in sorted(shaped, key=lambda part: (part.depth, part.order)):
        if not any(torch.equal(part.output, other.part.output) for other in plain):
            plain.append(Writer(part=part))
    through = [
        Writer(part=part, minus=key)
        for part in shaped
        for key in part.inputs
        if len(part.inputs) > 1 and part.inputs[key].shape == trace.stream.shape and part.depth <= 1
    ]
    return plain, through


def _additive(trace: BlockTrace, pool: Sequence[Writer], *, needs_through: bool) -> Writers | None:
    """The smallest set of candidates that explains the update, or the nearest miss."""
    update = trace.output.double() - trace.stream.double()
    best: Writers | None = None
    for size in range(1, _MAX_WRITERS + 1):
        found = _best_set(pool, update, size, needs_through=needs_through)
        if found is not None and (best is None or found.residue < 0.5 * best.residue):
            best = found
        if best is not None and best.residue <= tolerance(trace.stream.dtype):
            return best
    return best


def _best_set(
    pool: Sequence[Writer], update: Tensor, size: int, *, needs_through: bool
) -> Writers | None:
    """The set of `size` candidates that explains `update` best, with one constant."""
    if len(pool) < size or not bool(update.isfinite().all()) or not bool(update.any()):
        return None
    rows = torch.stack([writer.raw.flatten() for writer in pool])
    rows = torch.where(rows.isfinite(), rows, torch.zeros_like(rows))
    gram, along = rows @ rows.T, rows @ update.flatten()
    total = float(update.square().sum())
    # The best fit; among equals one that needs no constant (a gate that both writes of a block
    # share looks like one in the twin), then the outermost parts.
    scored: list[tuple[float, bool, int, tuple[int, ...]]] = []
    for chosen in itertools.combinations(range(len(pool)), size):
        if needs_through and all(pool[index].minus is None for index in chosen):
            continue
        if len({pool[index].part.path for index in chosen}) < size:
            continue
        index = torch.tensor(chosen)
        norm, dot = float(gram[index][:, index].sum()), float(along[index].sum())
        if norm > 0:
            depth = sum(pool[i].part.depth for i in chosen)
            error = max(0.0, 1 - dot * dot / (norm * total)) ** 0.5
            scored.append((error, abs(dot / norm - 1) > 1e-6, depth, chosen))
    if not scored:
        return None
    least = min(scored)[0]
    *_, chosen = min(
        (entry for entry in scored if entry[0] <= 2 * least + 1e-6), key=lambda e: e[1:]
    )
    return _prove_sum([pool[index] for index in chosen], update)


def _prove_sum(chosen: Iterable[Writer], update: Tensor) -> Writers:
    writers = sorted(chosen, key=lambda writer: writer.part.order)
    total = torch.stack([writer.raw for writer in writers]).sum(0)
    scale = _neat(float((total * update).sum() / total.square().sum()))
    residue = float((update - scale * total).norm() / update.norm())
    scaled = tuple(Writer(part=writer.part, minus=writer.minus, scale=scale) for writer in writers)
    return Writers(writers=scaled, norms=(), residue=residue)


def _neat(value: float) -> float:
    """A fitted constant without the noise of the fit: 1.0000000031 becomes 1."""
    return round(value, 6) if abs(value - round(value, 6)) < 1e-6 * max(1.0, abs(value)) else value


def _post_norm_chain(
    trace: BlockTrace, plain: Sequence[Writer], norms: Sequence[PartTrace], limit: float
) -> Writers | None:
    """Follow the stream through norms whose input is ``alpha * stream + write``."""
    stream, last = trace.stream.double(), -1
    writers: list[Writer] = []
    passed: list[PartTrace] = []
    worst = 0.0
    for norm in norms:
        if norm.first_input is None:
            continue
        between = [w for w in plain if last < w.part.order < norm.order]
        found = _best_term(between, stream, norm.first_input.double())
        if found is None or found[1] > limit:
            continue
        writers.append(found[0])
        passed.append(norm)
        worst = max(worst, found[1])
        stream, last = norm.output.double(), norm.order
    if not writers or not torch.allclose(stream, trace.output.double(), rtol=1e-3, atol=limit):
        return None
    return Writers(writers=tuple(writers), norms=tuple(passed), residue=worst)


def _best_term(pool: Sequence[Writer], stream: Tensor, goal: Tensor) -> tuple[Writer, float] | None:
    """The one candidate for which ``goal = alpha * stream + scale * write`` fits best."""
    best: tuple[Writer, float] | None = None
    for writer in pool:
        columns = torch.stack([stream.flatten(), writer.raw.flatten()], dim=1)
        fit = torch.linalg.lstsq(columns, goal.flatten().unsqueeze(1)).solution.flatten()
        alpha, scale = _neat(float(fit[0])), _neat(float(fit[1]))
        error = float((goal - alpha * stream - scale * writer.raw).norm() / goal.norm())
        if abs(scale) > 1e-6 and abs(alpha) > 1e-6 and (best is None or error < best[1]):
            best = Writer(part=writer.part, scale=scale, skip_scale=alpha), error
    return best
