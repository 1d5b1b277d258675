"""How do the blocks of a stack write?  What transformer and nets tell their blocks."""

from dataclasses import dataclass, replace

from resstream.nn.initialisation import Depth
from resstream.nn.norm_kinds import NetNorm
from resstream.nn.placements import Placement
from resstream.nn.rule import ResidualRule, WritePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """One residual rule at work in one stack of blocks."""

    rule: ResidualRule
    placement: Placement
    norm: NetNorm
    depth: Depth
    d_model: int
    """Width of the stream behind the write."""
    names: tuple[str, ...]
    """Sublayers of a block, in order."""
    dropout: float = 0.0

    @property
    def block_norm(self) -> NetNorm:
        """The norm of the blocks, with the epsilon that the rule asks for."""
        factor = self.rule.eps_factor(self.depth)
        return self.norm if factor == 1.0 else replace(self.norm, eps=self.norm.eps * factor)

    def place(self, layer: int) -> WritePlace:
        """What a rule may know about the writes of block `layer`."""
        return WritePlace(layer=layer, depth=self.depth, d_model=self.d_model)
