"""How is a write added to the stream?  The one place where the stream of a native model grows."""

from jaxtyping import Float
from torch import Tensor


def scaled_write(branch: Tensor, scale: Tensor | None, stream: Tensor) -> Tensor:
    """What is added to the stream: ``scale * branch``, computed in the dtype of the stream."""
    branch = branch.to(stream.dtype)
    return branch if scale is None else scale.to(stream.dtype) * branch


def residual_write(
    stream: Float[Tensor, "batch pos d_model"],
    write: Float[Tensor, "batch pos d_model"],
    *,
    skip_scale: float | Tensor = 1.0,
) -> Float[Tensor, "batch pos d_model"]:
    """``x' = skip_scale * x + write``.

    Raises:
        ValueError: The shapes differ; torch would broadcast a write over the stream in silence.
    """
    if write.shape != stream.shape:
        raise ValueError(
            f"a write must have the shape of the stream {tuple(stream.shape)}, "
            f"got {tuple(write.shape)}"
        )
    skipped = stream if isinstance(skip_scale, float) and skip_scale == 1.0 else skip_scale * stream
    return skipped + write
