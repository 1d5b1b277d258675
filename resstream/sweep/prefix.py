"""Can a model's suffixes be run alone, behind the base run's keys and values?  Proved by trying.

Once per model: the suffixes of random variants, run as loose rows, must give the last stream that
whole sequences give.  State-space layers, convolutions, blocks that compute attention by themselves
and blocks that share state do not pass; their variants are run as whole sequences.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from resstream.stream.model import StreamModel
from resstream.stream.writers import tolerance
from resstream.sweep.arguments import Arguments, NotPackableError, find_axes, probe_tokens
from resstream.sweep.packed import Suffixes
from resstream.sweep.starts import HeardRun, Start, hear_base

_LENGTH = 11
_PLACES = ((0, 0), (0, 4), (1, 4), (1, _LENGTH - 1), (0, 7))


@dataclass(frozen=True, slots=True)
class PrefixProof:
    """Whether suffixes can be run alone, and how far they were off."""

    proved: bool
    reason: str
    """Why not, in a phrase; empty if it is proved."""
    error: float
    """Largest difference from whole sequences over the largest value; NaN if none was run."""
    axes: Arguments
    """What the arguments of the blocks count; empty if it is not proved."""
    kv_channels: int = 0
    """Channels of keys and values of a position, all layers together."""


_PROOFS: WeakKeyDictionary[StreamModel, PrefixProof] = WeakKeyDictionary()


def prove_prefix(model: StreamModel) -> PrefixProof:
    """Prove it, or say why it can't be; remembered for as long as the model lives."""
    if model not in _PROOFS:
        _PROOFS[model] = _prove(model)
    return _PROOFS[model]


@torch.no_grad()
def _prove(model: StreamModel) -> PrefixProof:
    nan = float("nan")
    if not (model.spec.causal and model.reads_tokens):
        return PrefixProof(False, "the model is not causal", nan, ())
    try:
        axes = find_axes(model)
        base = hear_base(model, probe_tokens(model, 2, _LENGTH, seed=1), attention=None)
        starts = _random_starts(model, base)
        found = Suffixes(model, base, axes, rows=3 * _LENGTH).run(starts)
    except NotPackableError as err:
        return PrefixProof(False, str(err), nan, ())
    except Exception as err:  # a block that can't run on loose rows fails in its own way
        reason = f"its blocks do not run on loose rows ({type(err).__name__})"
        return PrefixProof(False, reason, nan, ())
    wanted = torch.stack([_whole(model, base, start) for start in starts])
    error = float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))
    if not error <= tolerance(model.dtype):
        return PrefixProof(False, f"its suffixes differ by {error:.1g} when run alone", error, ())
    parts = [part for call in base.attention for part in (call.key, call.value)]
    channels = sum(part.shape[1] * part.shape[3] for part in parts)
    return PrefixProof(True, "", error, axes, channels)


def _random_starts(model: StreamModel, base: HeardRun) -> list[Start]:
    generator = torch.Generator().manual_seed(2)
    starts: list[Start] = []
    for layer, places in ((0, _PLACES), (model.spec.n_layers // 2, _PLACES[1:3])):
        for sequence, position in places:
            stream = base.streams[layer]
            noise = torch.randn(stream.shape[-1], generator=generator).to(stream)
            row = stream[sequence, position] + noise * stream.std()
            starts.append(Start(len(starts), sequence, layer, position, row))
    return starts


def _whole(model: StreamModel, base: HeardRun, start: Start) -> Tensor:
    stream = base.streams[start.layer].clone()
    stream[start.sequence, start.position] = start.row
    frame = model.begin(base.tokens)  # a fresh one: some models keep state in what they pass on
    for layer in range(start.layer, model.spec.n_layers):
        stream = model.run_block(layer, stream, frame)
    return stream[start.sequence, -1]
