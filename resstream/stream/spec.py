"""What was found out about a model: its blocks, its writes, its readout.  Plain data, no torch."""

from dataclasses import dataclass
from typing import Literal

WriteName = Literal["attn", "mlp", "mixer", "block"]
Placement = Literal["pre", "post", "sandwich", "after", "none", "unknown"]
Oddity = Literal["activation", "broadcast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """One write into the stream: ``scale * (output of module - the stream handed to it)``."""

    layer: int
    """Block it belongs to, counted from 0."""
    name: WriteName
    """`attn` and `mlp` where a block has two writes, `mixer` for one, `block` if it is opaque."""
    module: str
    """Path of the module whose output is the write."""
    scale: float
    """Constant between the module's output and what is added to the stream."""
    residue: float
    """How far the proof is off: norm of what the writes leave unexplained over the update's."""
    skip_scale: float = 1.0
    """What multiplies the stream before the write is added (DeepNorm's alpha)."""
    minus: int | str | None = None
    """Argument (position or keyword) that the module adds by itself and that is taken off again."""
    branch: str | None = None
    """Path of the module whose output is the raw branch, where a norm or a scale comes after it."""
    reader: str | None = None
    """Path of the norm through which this write reads the stream."""
    output_matrix: str | None = None
    """Path of the parameter that projects into the stream, where there is exactly one."""
    output_transposed: bool = False
    """True if that parameter is stored ``[in, out]`` (GPT-2's Conv1D)."""
    flat: bool = False
    """True if the module works on ``[batch * pos, d_model]`` (OPT's MLP)."""
    changed_later: bool = False
    """True if the block changes the module's output in place after it was returned (Falcon)."""

    @property
    def site(self) -> str:
        """TransformerLens name of the write, for example ``blocks.3.hook_attn_out``."""
        return f"blocks.{self.layer}.hook_{self.name}_out"

    @property
    def label(self) -> str:
        """Short name for tables and figures, for example ``L3 attn``."""
        return f"L{self.layer} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """One block: where its norms stand and what it writes."""

    layer: int
    module: str
    placement: Placement
    parallel: bool
    """True if both writes read the same stream (GPT-J); there is no resid_mid then."""
    writes: tuple[WriteSpec, ...]
    opaque: bool
    reason: str | None
    """Why the block is opaque, in a sentence."""
    stream_norms: tuple[str, ...] = ()
    """Post-LN only: the norm that the stream passes after each write."""
    oddity: Oddity | None = None
    """Opaque blocks: an activation behind the addition, or a branch that is broadcast into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadoutSpec:
    """How the stream becomes logits."""

    norm: str | None
    head: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A discovered and proved residual stream.  This is what `resstream inspect` prints."""

    model: str
    n_layers: int
    d_model: int
    d_vocab: int | None
    embed: str | None
    blocks: tuple[BlockSpec, ...]
    readout: ReadoutSpec
    replay_error: float
    """Largest absolute difference between the model's own output and the replayed stream's."""
    causal: bool
    """True if later tokens were seen not to change earlier outputs."""
    family: str

    @property
    def writes(self) -> tuple[WriteSpec, ...]:
        """All writes of the model in order of execution."""
        return tuple(write for block in self.blocks for write in block.writes)
