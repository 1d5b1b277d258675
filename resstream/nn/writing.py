"""How does a sublayer read from the stream and write into it?  The part that all blocks share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint  # noqa: TID253  models are made of hook points

from resstream.kernels.dispatch import Plan
from resstream.nn.fusion import Fusion, fuse, is_watched, may_fuse, version_of
from resstream.nn.norms import StreamNorm, applied
from resstream.nn.placements import norms_branch, norms_read, norms_stream
from resstream.nn.plan import WritePlan
from resstream.nn.scales import WriteScale, WriteTerms
from resstream.nn.write import residual_write, scaled_write


class WritingBlock(nn.Module):
    """A block of one or more writes.

    Each is, with the parts that rule and placement ask for::

        read   = read_gain * norm(x) + read_shift     ln1, ln2, ...
        branch = sublayer(read)                       hook_NAME_branch
        branch = branch_act(norm(branch))             ln1_post, ln2_post; branch_act in nets only
        write  = scale * branch                       hook_NAME_scale; hook_NAME_out is the write
        x      = skip * carried(x) + write
        x      = norm(x)                              ln1, ln2 (placement post)

    Args:
        plan: How the blocks of the stack write.
        layer: Which block this is.
        d_read: Width of the stream before the block; None: as behind it.
    """

    def __init__(self, plan: WritePlan, layer: int, *, d_read: int | None = None) -> None:
        super().__init__()
        self.names = plan.names
        self.norms_read = norms_read(plan.placement)
        self.norms_stream = norms_stream(plan.placement)
        self.dropout = plan.dropout
        self.branch_act: nn.Module | None = None
        self.fusion: Fusion = "auto"
        """Whether a write and the norm behind it are one operation; see `resstream.nn.fusion`."""
        self.on_statistics: Callable[[str, Tensor], None] | None = None
        """Called with the name and the statistics of each write that is fused."""
        self.plans: dict[str, Plan] = {}
        """What ran each write last, and why, where fusion was possible."""
        self._following: tuple[StreamNorm, torch.dtype | None] | None = None
        self._make_norms(plan, plan.d_model if d_read is None else d_read)
        # A shared scale is registered once: a checkpoint must not hold one tensor under two names.
        owners = ("block",) if plan.rule.is_shared else plan.names
        place = plan.place(layer)
        self.scales = nn.ModuleDict({name: plan.rule.write_scale(place) for name in owners})
        self._make_hooks()

    def _make_norms(self, plan: WritePlan, d_read: int) -> None:
        has_gain = plan.rule.has_norm_gain

        def norm(is_there: bool, width: int) -> StreamNorm | None:
            return StreamNorm(plan.block_norm, width, has_gain=has_gain) if is_there else None

        width = d_read if self.norms_read else plan.d_model
        for number, name in enumerate(plan.names, start=1):
            is_there = self.norms_read or self.norms_stream
            self.register_module(f"ln{number}", norm(is_there, width))
            is_there = norms_branch(plan.placement, name)
            self.register_module(f"ln{number}_post", norm(is_there, plan.d_model))

    def _make_hooks(self) -> None:
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()
        for name in self.names:
            parts = ("branch", "scale", "out") if self._scale(name).is_scaled else ("branch", "out")
            for part in parts:
                self.add_module(f"hook_{name}_{part}", HookPoint())

    def _scale(self, name: str) -> WriteScale:
        scale = self.scales["block" if "block" in self.scales else name]
        assert isinstance(scale, WriteScale)
        return scale

    def _norm(self, name: str, suffix: Literal["", "_post"] = "") -> nn.Module | None:
        return getattr(self, f"ln{self.names.index(name) + 1}{suffix}")

    def _hook(self, name: str, part: Literal["branch", "scale", "out"]) -> nn.Module:
        return getattr(self, f"hook_{name}_{part}")

    def read(
        self, name: str, stream: Float[Tensor, "*batch d_read"], condition: Tensor | None
    ) -> tuple[Float[Tensor, "*batch d_read"], WriteTerms]:
        """What sublayer `name` reads, and what else goes into its write."""
        terms: WriteTerms = self._scale(name)(stream, condition)
        read = applied(self._norm(name), stream) if self.norms_read else stream
        if isinstance(terms.read_gain, Tensor) or terms.read_gain != 1.0:
            read = terms.read_gain * read
        if terms.read_shift is not None:
            read = read + terms.read_shift
        return read, terms

    def write(
        self,
        name: str,
        stream: Float[Tensor, "*batch d_model"],
        branch: Float[Tensor, "*batch d_model"],
        terms: WriteTerms,
    ) -> Float[Tensor, "*batch d_model"]:
        """The stream behind the write of sublayer `name`."""
        branch = self._hook(name, "branch")(branch)
        # No module: a shared one would be called once per write, and hide whose branch it gives.
        branch = F.dropout(branch, self.dropout, self.training) if self.dropout else branch
        branch_norm = self._norm(name, "_post")
        branch = branch if branch_norm is None else branch_norm(branch.to(stream.dtype))
        branch = applied(self.branch_act, branch)
        scale = terms.scale if terms.scale is None else self._hook(name, "scale")(terms.scale)
        rule = self._scale(name)
        skip, stream = rule.skip(scale), rule.carried(stream)
        if may_fuse(stream, self.fusion):
            return self._write_fused(name, stream, branch, scale, skip)
        write = self._hook(name, "out")(scaled_write(branch, scale, stream))
        stream = residual_write(stream, write, skip_scale=skip)
        return applied(self._norm(name), stream) if self.norms_stream else stream

    def _write_fused(
        self,
        name: str,
        stream: Tensor,
        branch: Tensor,
        scale: Tensor | None,
        skip: float | Tensor,
    ) -> Tensor:
        branch, scale = self._shown(name, branch, scale, stream)
        norm = self._norm(name) if self.norms_stream else self._reading_norm(name)
        assert norm is None or isinstance(norm, StreamNorm)
        written, self.plans[name] = fuse(
            stream,
            branch,
            scale=scale,
            skip_scale=skip,
            reader=None if norm is None else norm.as_reader(self._read_dtype(name, stream)),
            stats=self.on_statistics is not None,
            fusion=self.fusion,
        )
        if written is None:
            new = residual_write(stream, scaled_write(branch, scale, stream), skip_scale=skip)
            return applied(norm, new) if self.norms_stream else new
        if self.on_statistics is not None and written.stats is not None:
            self.on_statistics(name, written.stats)
        if norm is None or written.normed is None:
            return applied(norm, written.stream) if self.norms_stream else written.stream
        if self.norms_stream:
            return norm.hook_normalized(written.normed)
        norm.hand_ahead(written.stream, written.normed)
        return written.stream

    def _shown(
        self, name: str, branch: Tensor, scale: Tensor | None, stream: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Branch and scale of the write, after hooks of the write have seen it.

        A write that they change, or whose gradient they may ask for, is itself the branch.
        """
        hook = self._hook(name, "out")
        if not is_watched(hook):
            return branch, scale
        write = scaled_write(branch, scale, stream)
        version = version_of(write)
        seen = hook(write)
        is_as_it_was = seen is write and version is not None and version == version_of(seen)
        return (branch, scale) if is_as_it_was and not write.requires_grad else (seen, None)

    def _reading_norm(self, name: str) -> nn.Module | None:
        """The norm that reads the stream behind write `name`, if it may be given its answer."""
        if name == self.names[-1]:
            return self._following[0] if self._following else None
        between = getattr(self, "hook_resid_mid", None)
        if between is None or not self.norms_read:
            return None
        may_hand = not (torch.is_grad_enabled() and is_watched(between))
        return self._norm(self.names[self.names.index(name) + 1]) if may_hand else None

    def _read_dtype(self, name: str, stream: Tensor) -> torch.dtype:
        """Dtype in which the norm behind write `name` is read."""
        if self.norms_stream:
            return stream.dtype
        if name == self.names[-1]:
            return (self._following[1] if self._following else None) or stream.dtype
        return self.read_dtype(self.names[self.names.index(name) + 1]) or stream.dtype

    def read_dtype(self, name: str) -> torch.dtype | None:
        """Dtype to which what sublayer `name` reads is rounded at once; None: the stream's."""
        del name
        return None

    @contextmanager
    def handing_to(self, following: "WritingBlock | None") -> Iterator[None]:
        """Let the last write give the first norm of the block behind its answer, meanwhile.

        Nothing is handed on where a hook may ask for the gradient of the stream between them.
        """
        self._following = None if following is None else self._first_reader(following)
        try:
            yield
        finally:
            self._following = None

    def _first_reader(
        self, following: "WritingBlock"
    ) -> tuple[StreamNorm, torch.dtype | None] | None:
        between = (self, self.hook_resid_post, following, following.hook_resid_pre)
        if not following.norms_read or (torch.is_grad_enabled() and is_watched(*between)):
            return None
        first = following.names[0]
        norm, dtype = following._norm(first), following.read_dtype(first)
        return (norm, dtype) if isinstance(norm, StreamNorm) else None
