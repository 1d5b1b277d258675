"""A network as a residual stream: run it whole or block by block, read and replace its sites."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from resstream.errors import SilentHookError, UnsupportedModelError
from resstream.stream import sites
from resstream.stream.calling import Caller
from resstream.stream.calls import BlockCall, first_tensor, largest_difference
from resstream.stream.discovery import Discovery, discover
from resstream.stream.hooks import Attacher, Hook
from resstream.stream.spec import StreamSpec


@dataclass(frozen=True, slots=True)
class Frame:
    """What a run starts from: the embedding, and what each block is called with."""

    stream: Tensor
    """The stream before block 0, ``[batch, pos, d_model]``."""
    calls: tuple[BlockCall, ...]


class StreamModel:
    """A model whose residual stream was discovered and proved.

    ``stream = frame.stream; for layer: stream = run_block(layer, stream, frame); readout(stream)``
    equals the model's own forward; `hooked` works in both.  Make one with `resstream.load`.
    The module is put in evaluation mode and otherwise left as it is.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        name: str,
        tokenizer: Any = None,
        example: Tensor | None = None,
    ) -> None:
        module.eval()
        self.module = module
        self.name = name
        self.tokenizer = tokenizer
        self._caller = Caller(module, example)
        found: Discovery = discover(module, self._caller, name=name)
        self.spec: StreamSpec = found.spec
        self.sites: tuple[str, ...] = sites.site_names(found.spec)
        self._blocks = found.blocks
        self._skeleton = found.skeleton
        self._attacher = Attacher(module, found.spec, lambda: found.skeleton.active)

    @property
    def device(self) -> torch.device:
        """Where the first parameter lives."""
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the first parameter."""
        return next(self.module.parameters()).dtype

    @property
    def reads_tokens(self) -> bool:
        """True if the model's input is token ids."""
        return self._caller.reads_tokens

    @cached_property
    def weights_hash(self) -> str:
        """SHA-256 over names, shapes and values of all weights, first 16 hex digits."""
        digest = hashlib.sha256()
        for name, value in sorted(self.module.state_dict().items()):
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            flat = value.detach().contiguous().cpu().flatten()
            digest.update(flat.view(torch.uint8).numpy() if flat.numel() else b"")
        return digest.hexdigest()[:16]

    def require_language_model(self, what: str) -> None:
        """Refuse models that do not predict the next token.

        Raises:
            UnsupportedModelError: Always in that case, naming `what` needs it.
        """
        if self.spec.d_vocab is None or not self.spec.causal:
            raise UnsupportedModelError(
                f"{what} needs a causal language model with logits; {self.name} "
                f"({self.spec.family}) "
                f"{'is not causal' if self.spec.d_vocab else 'has no vocabulary head'}; "
                "inspect and record work on it"
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """The model's own forward.

        Args:
            inputs: Token ids ``[batch, pos]``, or the model's main input.

        Returns:
            Logits ``[batch, pos, d_vocab]`` (last hidden states if there is no head).
        """
        return self._caller(inputs.to(self.device))

    def begin(self, inputs: Tensor) -> Frame:
        """Embed `inputs` and find out what each block is called with; no block runs."""
        calls = self._skeleton.calls(inputs.to(self.device))
        return Frame(calls[0].stream, calls)

    def run_block(
        self, layer: int, stream: Float[Tensor, "batch pos d_model"], frame: Frame
    ) -> Float[Tensor, "batch pos d_model"]:
        """One block, exactly as the model runs it on the inputs of `frame`."""
        args, kwargs = frame.calls[layer].with_stream(stream)
        output = first_tensor(self._blocks[layer](*args, **kwargs))
        assert output is not None, "discovery replayed this block and it gave a tensor"
        return output

    def readout(self, stream: Float[Tensor, "batch pos d_model"]) -> Tensor:
        """What the model itself makes of a last stream: final norm, head, scales and soft-caps."""
        return self._skeleton.readout(self._caller.like(stream), stream)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Dropout is off while the context is open, also where someone turned it on again."""
        training = [part for part in self.module.modules() if part.training]
        self.module.eval()
        try:
            yield
        finally:
            for part in training:
                part.training = True

    def replay_error(self, inputs: Tensor) -> float:
        """Largest absolute difference between the model's own output and the replayed stream's."""
        with torch.no_grad():
            frame = self.begin(inputs)
            stream = frame.stream
            for layer in range(self.spec.n_layers):
                stream = self.run_block(layer, stream, frame)
            return largest_difference(self.readout(stream), self.forward(inputs))

    def run(self, inputs: Tensor, hooks: Mapping[str, Hook]) -> Tensor:
        """The model's own forward with hooks.

        Raises:
            UnknownSiteError: A name fits no site.
            SilentHookError: A hook was never reached.
        """
        fired: set[str] = set()

        def noting(site: str, hook: Hook) -> Hook:
            def run(value: Tensor) -> Tensor | None:
                fired.add(site)
                return hook(value)

            return run

        named = {sites.resolve_site(name, self.sites): hook for name, hook in hooks.items()}
        with self.hooked({site: noting(site, hook) for site, hook in named.items()}):
            output = self.forward(inputs)
        silent = [site for site in named if site not in fired]
        if silent:
            raise SilentHookError(f"the run never reached {', '.join(silent)}; nothing was hooked")
        return output

    @contextmanager
    def hooked(self, hooks: Mapping[str, Hook]) -> Iterator[None]:
        """Hook sites while the context is open.

        Args:
            hooks: Site name (full or short) to a function of the value there; a tensor that it
                returns takes the value's place.

        Raises:
            UnknownSiteError: A name fits no site.
        """
        handles = []
        try:
            for name, hook in hooks.items():
                handles += self._attacher.attach(sites.resolve_site(name, self.sites), hook)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __repr__(self) -> str:
        spec = self.spec
        return (
            f"StreamModel({self.name!r}, {spec.family}, {spec.n_layers} blocks, "
            f"{len(spec.writes)} writes, d_model {spec.d_model}, "
            f"replay error {spec.replay_error:.1g})"
        )
