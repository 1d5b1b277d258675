"""What is the skip where the stream changes width?  A projection, or padding with zeros."""

from typing import Literal

import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn

from resstream.nn.matrices import Matrix

ShortcutKind = Literal["zero_pad", "projection", "projection_always"]
"""He et al. (2015), section 3.3: option A pads new channels with zeros, B projects where widths
differ, C projects in every block."""


class Shortcut(nn.Module):
    """``W_s x``, or x with zeros for the new channels; places are thinned out by `stride`.

    A 1 x 1 convolution is a matrix on the channels, so the projection is one matrix.

    Args:
        d_in: Width before.
        d_out: Width after.
        stride: Every `stride`-th row and column of an image is kept.
        projects: False: pad with zeros (or cut).

    References:
        He et al. (2015), "Deep Residual Learning for Image Recognition", equation 2.
    """

    def __init__(self, d_in: int, d_out: int, *, stride: int = 1, projects: bool = True) -> None:
        super().__init__()
        self.d_in, self.d_out, self.stride = d_in, d_out, stride
        self.matrix = Matrix(d_in, d_out, role="shortcut", bias=False) if projects else None

    def forward(self, stream: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*thinned d_out"]:
        """The stream in its new width."""
        if self.stride > 1:
            stream = stream[:, :: self.stride, :: self.stride]
        if self.matrix is None:
            return F.pad(stream, (0, self.d_out - self.d_in))
        return self.matrix(stream.to(self.matrix.weight.dtype)).to(stream.dtype)


def shortcut_of(
    kind: ShortcutKind, d_in: int, d_out: int, *, stride: int = 1, carries: bool = True
) -> Shortcut | None:
    """The shortcut of one block; None where the stream itself is carried.

    Args:
        kind: Which.
        d_in: Width before.
        d_out: Width after.
        stride: Thinning of places.
        carries: False for a net without skip, which needs the shape and no matrix.
    """
    changes = d_in != d_out or stride > 1
    if not (changes or (carries and kind == "projection_always")):
        return None
    return Shortcut(d_in, d_out, stride=stride, projects=carries and kind != "zero_pad")
