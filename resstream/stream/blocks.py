"""Describe one block: who writes, through which norm it reads, and how well that is proved."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resstream.stream import anatomy
from resstream.stream.additions import odd_addition
from resstream.stream.calls import BlockCall
from resstream.stream.spec import BlockSpec, Oddity, Placement, WriteName, WriteSpec
from resstream.stream.tracing import BlockTrace, PartTrace, trace_block, twin_weights
from resstream.stream.writers import Writer, Writers, find_writers, tolerance

Edits = dict[str, Callable[[Tensor], Tensor]]


@dataclass(frozen=True, slots=True)
class _Twin:
    """A block with random weights on a random stream, and how to run it again with changes."""

    block: nn.Module
    call: BlockCall
    weights: dict[str, Tensor] | None
    trace: BlockTrace
    norms: tuple[PartTrace, ...]

    def retrace(self, edits: Edits) -> BlockTrace:
        return trace_block(
            self.block, self.call, self.trace.stream, weights=self.weights, edits=edits
        )

    def elsewhere(self) -> BlockTrace:
        """A run on another stream of the same size."""
        own = self.trace.stream
        noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(-1))
        return trace_block(self.block, self.call, noise.to(own), weights=self.weights)


def _twin(layer: int, block: nn.Module, call: BlockCall) -> _Twin:
    weights = twin_weights(block, seed=layer)
    generator = torch.Generator().manual_seed(layer)
    noise = torch.randn(call.stream.shape, generator=generator).to(call.stream)
    stream = call.stream if weights is None else noise
    trace = trace_block(block, call, stream, weights=weights)
    return _Twin(block, call, weights, trace, anatomy.find_norms(trace, weights))


@dataclass(frozen=True, slots=True)
class _Proof:
    """What was proved about one block, from which its description follows."""

    layer: int
    path: str
    twin: _Twin
    found: Writers
    residue: float
    parallel: bool

    def stream_before(self, index: int) -> Tensor:
        """The stream that write `index` reads, in the twin's run."""
        if index and self.found.norms:
            return self.found.norms[index - 1].output
        stream = self.twin.trace.stream.double()
        for writer in () if self.parallel else self.found.writers[:index]:
            stream = stream + writer.write
        return stream


def describe_block(layer: int, path: str, block: nn.Module, call: BlockCall) -> BlockSpec:
    """Find the writers of `block` and everything around them.

    Args:
        layer: Index of the block.
        path: Its path in the model.
        block: The block.
        call: A call it was seen with.
    """
    twin = _twin(layer, block, call)
    found, nearest = find_writers(twin.trace, twin.norms)
    names = anatomy.name_writers(found.writers) if found else None
    if found is None or names is None:
        if found is not None:
            return _opaque_block(layer, path, "two of its writes are of one kind")
        odd = odd_addition(twin.trace, twin.elsewhere())
        reason = _opaque_reason(nearest) if odd is None else odd.reason
        return _opaque_block(layer, path, reason, None if odd is None else odd.kind)
    residue = _own_residue(block, call, found)
    proof = _Proof(layer, path, twin, found, residue, _is_parallel(twin, found))
    writes = tuple(_describe_write(proof, index, name) for index, name in enumerate(names))
    return BlockSpec(
        layer=layer,
        module=path,
        placement=_placement(twin, found, writes),
        parallel=proof.parallel,
        writes=writes,
        opaque=False,
        reason=None,
        stream_norms=tuple(f"{path}.{norm.path}" for norm in found.norms),
    )


def _opaque_block(layer: int, path: str, reason: str, oddity: Oddity | None = None) -> BlockSpec:
    """A block that is one write, ``block(x) - x``."""
    write = WriteSpec(layer=layer, name="block", module=path, scale=1.0, residue=0.0)
    return BlockSpec(
        layer=layer,
        module=path,
        placement="unknown",
        parallel=False,
        writes=(write,),
        opaque=True,
        reason=reason,
        oddity=oddity,
    )


def _opaque_reason(nearest: Writers | None) -> str:
    if nearest is None:
        return "none of its parts gives anything of the stream's shape"
    parts = " + ".join(writer.part.path for writer in nearest.writers)
    return (
        "no set of its parts sums to block(x) - x, and no norm reads stream + part; "
        f"nearest is {parts}, off by {nearest.residue:.2g}"
    )


def _own_residue(block: nn.Module, call: BlockCall, found: Writers) -> float:
    """The residue with the block's own weights, where these say anything (finite, not zero)."""
    own = trace_block(block, call, call.stream)
    parts = {part.path: part for part in own.parts}
    if found.norms or any(writer.part.path not in parts for writer in found.writers):
        return found.residue
    update = own.output.double() - own.stream.double()
    total = torch.zeros_like(update)
    for writer in found.writers:
        mine = Writer(part=parts[writer.part.path], minus=writer.minus, scale=writer.scale)
        total += mine.write
    error = float((update - total).norm() / update.norm())
    return found.residue if error != error else error


def _is_parallel(twin: _Twin, found: Writers) -> bool:
    """True if changing the first write leaves the second as it was."""
    if len(found.writers) < 2 or found.norms:
        return False
    first, second = found.writers[0].part.path, found.writers[1]
    changed = twin.retrace({first: lambda value: value * 1.5 + 0.25})
    part = next(part for part in changed.parts if part.path == second.part.path)
    other = Writer(part=part, minus=second.minus, scale=second.scale).write
    moved = float((other - second.write).norm() / second.write.norm())
    return moved < tolerance(twin.trace.stream.dtype)


def _describe_write(proof: _Proof, index: int, name: WriteName) -> WriteSpec:
    twin, found, path = proof.twin, proof.found, proof.path
    writer = found.writers[index]
    branch = anatomy.find_branch(writer, twin.norms, twin.trace)
    reader = anatomy.find_reader(writer, proof.stream_before(index), twin.norms, twin.trace)
    after = found.writers[index - 1].part.order if index else -1
    candidates = anatomy.product_candidates(writer, branch, after, twin.trace)
    matrix = _output_matrix(candidates, branch or writer.part, twin)
    return WriteSpec(
        layer=proof.layer,
        name=name,
        module=f"{path}.{writer.part.path}",
        scale=writer.scale,
        residue=proof.residue,
        skip_scale=writer.skip_scale,
        minus=writer.minus,
        branch=f"{path}.{branch.path}" if branch else None,
        reader=f"{path}.{reader.path}" if reader else None,
        output_matrix=f"{path}.{matrix[0].path}.weight" if matrix else None,
        output_transposed=matrix[1] if matrix else False,
        flat=writer.part.flat,
        changed_later=not torch.equal(writer.part.kept, writer.part.output),
    )


def _output_matrix(
    candidates: list[tuple[PartTrace, bool]], goal: PartTrace, twin: _Twin
) -> tuple[PartTrace, bool] | None:
    """The last product whose doubling doubles the branch: what lies behind it is linear in it."""
    for part, transposed in candidates:
        if part.path == goal.path:
            return part, transposed
        doubled = twin.retrace({part.path: lambda value: 2 * value})
        after = next((other for other in doubled.parts if other.path == goal.path), None)
        if after is None:
            continue
        # A part that adds the stream by itself is compared without it: only the change counts.
        change = (after.output - goal.output).double()
        error = float((change - part.output.double()).norm() / change.norm().clamp_min(1e-30))
        linear = float((after.output - 2 * goal.output).norm() / goal.output.norm())
        if min(error, linear) <= tolerance(goal.output.dtype):
            return part, transposed
    return None


def _placement(twin: _Twin, found: Writers, writes: tuple[WriteSpec, ...]) -> Placement:
    if found.norms:
        return "post"
    reads = all(write.reader is not None for write in writes)
    gives = all(writer.part in twin.norms for writer in found.writers)
    if reads:
        return "sandwich" if gives else "pre"
    return "after" if gives else "none"
