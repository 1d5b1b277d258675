"""How is a write added to the stream?  The one place where the stream of a native model grows."""

from jaxtyping import Float
from torch import Tensor


def scaled_write(branch: Tensor, scale: Tensor | None, stream: Tensor) -> Tensor:
    """What is added to the stream: ``scale * branch``, computed in the dtype of the stream."""
    branch = branch.to(stream.dtype)
    return branch if scale is None else scale.to(stream.dtype) * branch


def residual_write(
    stream: Float[Tensor, "*batch d_model"],
    write: Float[Tensor, "*written d_written"],
    *,
    skip_scale: float | Tensor = 1.0,
) -> Float[Tensor, "*batch d_model"]:
    """``x' = skip_scale * x + write``, in the dtype of the stream; ``x' = write`` for 0.

    Raises:
        ValueError: The shapes differ; torch would broadcast a write over the stream in silence.
    """
    if write.shape != stream.shape:
        raise ValueError(
            f"a write must have the shape of the stream {tuple(stream.shape)}, "
            f"got {tuple(write.shape)}"
        )
    if isinstance(skip_scale, Tensor):
        return skip_scale.to(stream.dtype) * stream + write
    if skip_scale == 0.0:
        return write
    return (stream if skip_scale == 1.0 else skip_scale * stream) + write
