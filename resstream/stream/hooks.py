"""From a site's name to torch hooks: how a stream point or a write is read and replaced.

A hook is a function of the value; what it returns, if not None, takes the value's place.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from resstream.errors import UnknownSiteError
from resstream.stream import sites
from resstream.stream.calls import find_call, first_tensor, replace_first
from resstream.stream.spec import BlockSpec, StreamSpec, WriteSpec

Hook = Callable[[Tensor], Tensor | None]
Active = Callable[[], bool]


class Attacher:
    """Attaches hooks to the parts of one discovered model.

    Args:
        module: The model.
        spec: Its stream.
        silent: True while the model runs as a skeleton; hooks then do nothing.
    """

    def __init__(self, module: nn.Module, spec: StreamSpec, silent: Active) -> None:
        self._module = module
        self._spec = spec
        self._silent = silent

    def attach(self, site: str, hook: Hook) -> list[RemovableHandle]:
        """Attach `hook` at a full site name (see `resstream.stream.sites`)."""
        if site == sites.EMBED and self._spec.embed:
            return [self._on_output(self._spec.embed, hook)]
        if site == sites.FINAL_NORM and self._spec.readout.norm:
            return [self._on_output(self._spec.readout.norm, hook)]
        _, layer, name = site.split(".")
        block = self._spec.blocks[int(layer)]
        kind = name.removeprefix("hook_")
        if kind == "resid_pre":
            return [self._on_block_input(block, hook)]
        if kind == "resid_post":
            return [self._on_output(block.module, hook)]
        if kind == "resid_mid":
            return self._on_middle(block, hook)
        for write in block.writes:
            if kind == f"{write.name}_out":
                return self._on_write(block, write, hook)
            if kind == f"{write.name}_branch":
                return self._on_branch(block, write, hook)
        raise UnknownSiteError(f"site {site!r} has no place in {block.module}")

    def _part(self, path: str) -> nn.Module:
        return self._module.get_submodule(path)

    def _on_output(
        self,
        path: str,
        hook: Hook,
        *,
        before: Callable[[Any, Any, Tensor], Tensor] | None = None,
        after: Callable[[Any, Any, Tensor], Tensor] | None = None,
    ) -> RemovableHandle:
        """Hook the first output; `before` and `after` map it to the site's value and back."""

        def run(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            del module
            value = None if self._silent() else first_tensor(output)
            if value is None:
                return None
            changed = hook(before(args, kwargs, value) if before else value)
            if changed is None:
                return None
            return replace_first(output, after(args, kwargs, changed) if after else changed)

        return self._part(path).register_forward_hook(run, with_kwargs=True)

    def _on_block_input(self, block: BlockSpec, hook: Hook) -> RemovableHandle:
        def run(module: nn.Module, args: Any, kwargs: Any) -> Any:
            del module
            call = None if self._silent() else find_call(args, kwargs)
            changed = None if call is None else hook(call.stream)
            return None if call is None or changed is None else call.with_stream(changed)

        return self._part(block.module).register_forward_pre_hook(run, with_kwargs=True)

    def _on_write(self, block: BlockSpec, write: WriteSpec, hook: Hook) -> list[RemovableHandle]:
        """The write is ``scale * (output - argument)``; an opaque block's is output less input."""
        if block.opaque:
            return [self._on_output(write.module, hook, before=_less_stream, after=_plus_stream)]
        if write.flat:
            return self._on_flat_write(block, write, hook)
        if write.scale == 1.0 and write.minus is None and not write.changed_later:
            return [self._on_output(write.module, hook)]

        def before(args: Any, kwargs: Any, value: Tensor) -> Tensor:
            raw = value if write.minus is None else value - _argument(args, kwargs, write.minus)
            raw = raw.clone() if write.changed_later else raw
            return raw if write.scale == 1.0 else raw * write.scale

        def after(args: Any, kwargs: Any, value: Tensor) -> Tensor:
            raw = value if write.scale == 1.0 else value / write.scale
            return raw if write.minus is None else raw + _argument(args, kwargs, write.minus)

        return [self._on_output(write.module, hook, before=before, after=after)]

    def _on_flat_write(
        self, block: BlockSpec, write: WriteSpec, hook: Hook
    ) -> list[RemovableHandle]:
        """A module that works on ``[batch * pos, d_model]``: the block's input tells the shape."""
        shape: list[torch.Size] = []

        def keep(stream: Tensor) -> None:
            shape[:] = [stream.shape]

        def unflat(value: Tensor) -> Tensor | None:
            changed = hook(write.scale * value.reshape(shape[0]))
            return None if changed is None else changed.reshape(value.shape) / write.scale

        return [self._on_block_input(block, keep), self._on_output(write.module, unflat)]

    def _on_branch(self, block: BlockSpec, write: WriteSpec, hook: Hook) -> list[RemovableHandle]:
        if write.branch is not None:
            return [self._on_output(write.branch, hook)]
        if block.opaque or write.minus is not None or write.flat:
            return self._on_write(block, write, hook)
        return [self._on_output(write.module, hook)]

    def _on_middle(self, block: BlockSpec, hook: Hook) -> list[RemovableHandle]:
        """The stream between two writes: behind a Post-LN norm, else block input plus first write.

        Replacing it replaces the first write by what leads there, so the sum holds to rounding.
        """
        if block.stream_norms:
            return [self._on_output(block.stream_norms[0], hook)]
        kept: list[Tensor] = []

        def keep(stream: Tensor) -> None:
            kept[:] = [stream]

        def middle(write: Tensor) -> Tensor | None:
            stream = kept[0]
            changed = hook(stream + write)
            return None if changed is None else changed - stream

        return [self._on_block_input(block, keep), *self._on_write(block, block.writes[0], middle)]


def _argument(args: Any, kwargs: Any, key: int | str) -> Tensor:
    return args[key] if isinstance(key, int) else kwargs[key]


def _stream_of(args: Any, kwargs: Any) -> Tensor:
    call = find_call(args, kwargs)
    assert call is not None, "a block that discovery accepted is always called with a stream"
    return call.stream


def _less_stream(args: Any, kwargs: Any, value: Tensor) -> Tensor:
    return value - _stream_of(args, kwargs)


def _plus_stream(args: Any, kwargs: Any, value: Tensor) -> Tensor:
    return value + _stream_of(args, kwargs)
