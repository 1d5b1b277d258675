"""Find the residual stream of any torch module, and prove what was found.

The steps are those of docs/decisions (streams are discovered): find the list of blocks in one short
run, take each block's *twin* (same modules, random weights) to see which parts write, find norm and
head, and replay the model block by block.  The replay must equal the model's own output.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resstream.errors import DiscoveryError
from resstream.stream import anatomy
from resstream.stream.blocks import describe_block
from resstream.stream.calling import Caller, vocabulary_size
from resstream.stream.calls import (
    BlockCall,
    find_call,
    first_tensor,
    largest_difference,
    same_tensor,
)
from resstream.stream.several_streams import Step, name_streams
from resstream.stream.skeleton import Skeleton
from resstream.stream.spec import ReadoutSpec, StreamSpec
from resstream.stream.writers import tolerance


@dataclass(frozen=True, slots=True)
class _Seen:
    """One call of one module in the probe."""

    call: BlockCall | None
    output: Any


@dataclass(frozen=True, slots=True)
class Discovery:
    """A discovered stream: its description and what is needed to run it."""

    spec: StreamSpec
    blocks: tuple[nn.Module, ...]
    skeleton: Skeleton


def discover(module: nn.Module, caller: Caller, *, name: str) -> Discovery:
    """Find and prove the stream of `module`.

    Raises:
        DiscoveryError: No list of blocks hands on one stream, or the replay differs from the model.
    """
    with torch.no_grad():
        seen, output = _probe(module, caller)
        path, blocks = _block_list(module, seen)
        calls = [_seen_call(seen[f"{path}.{i}"][0]) for i in range(len(blocks))]
        templates = [seen[f"{path}.{i}"][0].output for i in range(len(blocks))]
        skeleton = Skeleton(module, blocks, templates, caller)
        error = _replay_error(caller, blocks, skeleton, output)
        _check_one_stream(seen, path, caller, blocks)
        width = calls[0].stream.shape[-1]
        specs = tuple(
            describe_block(layer, f"{path}.{layer}", block, call)
            for layer, (block, call) in enumerate(zip(blocks, calls, strict=True))
        )
        last = first_tensor(templates[-1])
        assert last is not None, "the block list was chosen by its tensors"
        spec = StreamSpec(
            model=name,
            n_layers=len(blocks),
            d_model=width,
            d_vocab=output.shape[-1] if caller.reads_tokens and output.shape[-1] != width else None,
            embed=_embedding(module) if caller.reads_tokens else None,
            blocks=specs,
            readout=_readout(module, seen, f"{path}.{len(blocks) - 1}", last, output),
            replay_error=error,
            causal=caller.reads_tokens and _is_causal(module, caller, output),
            family=getattr(getattr(module, "config", None), "model_type", None)
            or type(module).__name__,
        )
    return Discovery(spec, blocks, skeleton)


def _probe(module: nn.Module, caller: Caller) -> tuple[dict[str, list[_Seen]], Tensor]:
    """Run once and keep what every module below the top received and gave."""
    seen: dict[str, list[_Seen]] = {}

    def watch(path: str) -> Any:
        def hook(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            del part
            seen.setdefault(path, []).append(_Seen(find_call(args, kwargs), output))

        return hook

    handles = [
        part.register_forward_hook(watch(path), with_kwargs=True)
        for path, part in module.named_modules()
        if path
    ]
    try:
        return seen, caller(caller.example)
    finally:
        for handle in handles:
            handle.remove()


def _seen_call(seen: _Seen) -> BlockCall:
    if seen.call is None:
        raise DiscoveryError("a block was called without a stream")
    return seen.call


def _block_list(
    module: nn.Module, seen: dict[str, list[_Seen]]
) -> tuple[str, tuple[nn.Module, ...]]:
    """The largest list of modules, each called once, that hand on one stream."""
    broken: list[tuple[str, list[_Seen]]] = []
    best: tuple[int, str, tuple[nn.Module, ...]] | None = None
    for path, part in module.named_modules():
        if not isinstance(part, nn.ModuleList | nn.Sequential) or len(part) == 0 or not path:
            continue
        runs = [seen.get(f"{path}.{index}", []) for index in range(len(part))]
        if any(len(run) != 1 for run in runs):
            continue
        size = sum(value.numel() for value in part.parameters())
        if _hands_on(run[0] for run in runs):
            if best is None or size > best[0]:
                best = size, path, tuple(part)
        elif len(part) > 1:
            broken.append((path, [run[0] for run in runs]))
    if best is None:
        hint = f"; {_several(*broken[0])}" if broken else ""
        raise DiscoveryError(
            f"no residual stream found in {type(module).__name__}: resstream needs its blocks in "
            f"one ModuleList or Sequential, each called once{hint}"
        )
    return best[1], best[2]


def _several(path: str, runs: list[_Seen]) -> str:
    named = name_streams([Step(run.call, run.output) for run in runs])
    return f"the modules of {path!r} do not hand on one stream [batch, pos, width] {named}"


def _hands_on(runs: Any) -> bool:
    before: Tensor | None = None
    for run in runs:
        after = first_tensor(run.output)
        if run.call is None or after is None or after.shape != run.call.stream.shape:
            return False
        if before is not None and not same_tensor(before, run.call.stream):
            return False
        before = after
    return before is not None


def _check_one_stream(
    seen: dict[str, list[_Seen]], path: str, caller: Caller, blocks: tuple[nn.Module, ...]
) -> None:
    """Refuse blocks that hand on more than the stream, where that depends on what the model reads.

    What is the same for other inputs, such as a position bias, passes: the replay has it from the
    probe.
    """
    beside = _handed_beside(seen, path, len(blocks))
    if beside is None:
        return
    layer, index, name = beside
    outputs: list[Any] = []
    handle = blocks[layer].register_forward_hook(lambda *call: outputs.append(call[-1]))
    try:
        caller(caller.example.flip(-1))
    finally:
        handle.remove()
    if not same_tensor(seen[f"{path}.{layer}"][0].output[index], outputs[0][index]):
        raise DiscoveryError(
            f"the modules of {path!r} hand on {name!r} beside the stream: resstream needs blocks "
            "that hand on one stream"
        )


def _handed_beside(
    seen: dict[str, list[_Seen]], path: str, n_blocks: int
) -> tuple[int, int, str] | None:
    """What a block returns beside the stream and the next one takes: block, place, argument."""
    for layer in range(n_blocks - 1):
        output, call = seen[f"{path}.{layer}"][0].output, _seen_call(seen[f"{path}.{layer + 1}"][0])
        if not isinstance(output, tuple | list):
            continue
        arguments = {**dict(enumerate(call.args)), **call.kwargs}
        for name, given in arguments.items():
            for index, value in enumerate(output[1:], start=1):
                if isinstance(value, Tensor) and given is value:
                    return layer, index, str(name)
    return None


def _replay_error(
    caller: Caller, blocks: tuple[nn.Module, ...], skeleton: Skeleton, output: Tensor
) -> float:
    """Largest difference between the model and its replay; places where both are NaN count as 0."""
    calls = skeleton.calls(caller.example)
    stream = calls[0].stream
    for block, call in zip(blocks, calls, strict=True):
        args, kwargs = call.with_stream(stream)
        result = first_tensor(block(*args, **kwargs))
        if result is None:
            raise DiscoveryError("a block stopped returning a tensor when replayed")
        stream = result
    replayed = skeleton.readout(caller.example, stream)
    error = largest_difference(replayed, output)
    size = float(output[output.isfinite()].abs().max()) if bool(output.isfinite().any()) else 1.0
    if not error <= tolerance(output.dtype) * max(size, 1e-30):
        raise DiscoveryError(
            f"replaying {type(blocks[0]).__name__} block by block differs from the model by "
            f"{error:.2g} (outputs reach {size:.2g}): its blocks share state that can't be seen"
        )
    return error


def _embedding(module: nn.Module) -> str | None:
    found = (path for path, part in module.named_modules() if isinstance(part, nn.Embedding))
    return next(found, None)


def _readout(
    module: nn.Module, seen: dict[str, list[_Seen]], last_block: str, last: Tensor, output: Tensor
) -> ReadoutSpec:
    """The norm that reads the last stream, and the last leaf behind it that gives logits."""
    order = list(seen)
    norm = head = None
    for path in order[order.index(last_block) + 1 :]:
        part, run = module.get_submodule(path), seen[path][0]
        value = first_tensor(run.output)
        if value is None or any(True for child in part.children() for _ in child.parameters()):
            continue  # a whole, whose parts come by themselves; hook points are no parts
        reads = run.call is not None and same_tensor(run.call.stream, last)
        if reads and norm is None and _acts_as_norm(part, last):
            norm = path
        elif value.shape == output.shape and path != norm:
            head = path
    return ReadoutSpec(norm=norm, head=head)


def _acts_as_norm(part: nn.Module, like: Tensor) -> bool:
    """Ask on noise, because the model's own last stream may hold NaN."""
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)
    try:
        given = part(noise)
    except (TypeError, RuntimeError):
        return False
    return isinstance(given, Tensor) and anatomy.is_norm(part, noise, given, part)


def _is_causal(module: nn.Module, caller: Caller, output: Tensor) -> bool:
    """True if changing the last token leaves the outputs before it as they were."""
    size = vocabulary_size(module)
    if size is None or output.ndim != 3 or caller.example.shape[1] < 2:
        return False
    changed = caller.example.clone()
    changed[:, -1] = (changed[:, -1] + 1) % size
    other = caller(changed)
    scale = float(torch.nan_to_num(output, posinf=0, neginf=0).abs().max())
    return largest_difference(output[:, :-1], other[:, :-1]) <= 1e-5 * scale
