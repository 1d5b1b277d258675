"""The native model: a transformer of one stack whose residual stream is hooked throughout.

Sites have TransformerLens names, so `run_with_cache` and `run_with_hooks` of its HookedRootModule
work as on any TransformerLens model.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformer_lens import HookedRootModule  # noqa: TID253  models are made of hook points
from transformer_lens.hook_points import HookPoint  # noqa: TID253

from resstream.kernels.dispatch import Plan
from resstream.nn.attention import KeyValueCache, Turns, causal_mask, rotary_turns
from resstream.nn.block import Block
from resstream.nn.config import LearnedPositions, Rotary, TransformerConfig
from resstream.nn.fusion import Fusion
from resstream.nn.matrices import Matrix, Table, initialise
from resstream.nn.norms import StreamNorm, applied
from resstream.nn.variants import check_choice


class ResidualTransformer(HookedRootModule):
    """Embedding, blocks that write into the stream, final norm, unembedding.

    The stream is float32 (float64 for a float64 model) whatever the dtype of the matrices, unless
    the config's `stream_dtype` is ``compute``.

    Args:
        config: Shape and residual rule.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.embed: nn.Embedding = Table(config.d_vocab, d_model, role="embed")
        has_table = isinstance(config.positions, LearnedPositions)
        self.pos_embed = Table(config.n_ctx, d_model, role="positions") if has_table else None
        self.dropout = nn.Dropout(config.dropout)
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.ln_embed = StreamNorm(config.norm, d_model) if config.embed_norm else None
        self.ln_final = StreamNorm(config.norm if config.has_final_norm else None, d_model)
        self.unembed: nn.Linear = Matrix(d_model, config.d_vocab, role="unembed", bias=False)
        # transformers' gradient_checkpointing_enable sets these two.
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: Callable[..., Any] = partial(
            checkpoint, use_reentrant=False
        )
        for module in self.modules():
            initialise(module, config)
        if config.tied:
            self.unembed.weight = self.embed.weight
        self.setup()

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        *,
        padding: Bool[Tensor, "batch key"] | None = None,
        positions: Int[Tensor, "#batch pos"] | None = None,
        cache: KeyValueCache | None = None,
        condition: Float[Tensor, "batch ... d_condition"] | None = None,
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits of every position.

        Args:
            tokens: Token ids.
            padding: True for real tokens, those in the cache included; None: all are.
            positions: Position of every token; None: counted from the length of the cache.
            cache: Keys and values of earlier tokens, appended to.
            condition: What AdaLN-Zero reads, for a sequence or for each position; None: zeros.
        """
        stream = self.stream(
            tokens, padding=padding, positions=positions, cache=cache, condition=condition
        )
        return self.unembedded(stream)

    def stream(
        self,
        tokens: Int[Tensor, "batch pos"],
        *,
        padding: Bool[Tensor, "batch key"] | None = None,
        positions: Int[Tensor, "#batch pos"] | None = None,
        cache: KeyValueCache | None = None,
        condition: Float[Tensor, "batch ... d_condition"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream after the last block; arguments as in `forward`."""
        if positions is None:
            start = 0 if cache is None else cache.get_seq_length()
            positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]
        stream = self.embedded(tokens, positions)
        mask = None if padding is None else self._mask(padding, tokens.shape[1])
        turns = self._turns(positions)
        context: dict[str, Any] = {"attention_mask": mask, "position_embeddings": turns}
        context |= {"cache": cache}
        if condition is not None:
            context["condition"] = condition
        for block, following in zip(self._stack(), self._following(), strict=True):
            with block.handing_to(following):
                output = self._run(block)(stream, **context)
            if isinstance(output, tuple):
                stream, context["previous_scores"] = output
            else:
                stream = output
        return stream

    def embedded(
        self, tokens: Int[Tensor, "batch pos"], positions: Int[Tensor, "#batch pos"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream before the first block, positions included where they are learned."""
        embedded = self.embed(tokens)
        if self.pos_embed is not None:
            embedded = embedded + self.pos_embed(positions)
        embedded = applied(self.ln_embed, embedded.to(self.stream_dtype))
        return self.hook_embed(self.dropout(embedded))

    def unembedded(
        self, stream: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits of a stream: final norm, then the unembedding."""
        return self.unembed(self.ln_final(stream).to(self.unembed.weight.dtype))

    @property
    def stream_dtype(self) -> torch.dtype:
        """Dtype in which the stream is kept."""
        compute = self.embed.weight.dtype
        if torch.is_autocast_enabled(self.embed.weight.device.type):
            compute = torch.get_autocast_dtype(self.embed.weight.device.type)
        if self.config.stream_dtype == "compute":
            return compute
        return torch.promote_types(compute, torch.float32)

    def _turns(self, positions: Tensor) -> Turns | None:
        match self.config.positions:
            case Rotary(base=base):
                # Angles in float32, used in the matrices' dtype, as transformers' Llama does.
                dtype = self.embed.weight.dtype
                return rotary_turns(positions, base, self.config.head_width, dtype)
            case _:
                return None

    def _mask(self, padding: Tensor, n_queries: int) -> Bool[Tensor, "batch 1 pos key"]:
        mask = padding.bool()[:, None, None, :]
        if self.config.causal:
            return mask & causal_mask(n_queries, padding.shape[1], padding.device)
        return mask.expand(-1, -1, n_queries, -1)

    def _stack(self) -> Iterator[Block]:
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def _following(self) -> Iterator[Block | None]:
        """For each block the one that it may hand a normed stream; a recomputed one must not."""
        is_recomputed = self.gradient_checkpointing and self.training
        for block in list(self._stack())[1:]:
            yield None if is_recomputed else block
        yield None

    def set_fusion(self, fusion: Fusion) -> None:
        """Choose what adds a write and norms the stream behind it; see `resstream.nn.fusion`.

        Args:
            fusion: ``auto`` (the Triton kernel where it can run), ``off`` (separate operators),
                ``torch`` (the kernel's definition) or ``triton``.

        Raises:
            ConfigError: It is none of them.
        """
        check_choice("fusion", fusion, get_args(Fusion))
        for block in self._stack():
            block.fusion = fusion

    def write_plans(self) -> dict[str, Plan]:
        """What ran each write in the last forward, and why; by site of the write.

        Empty where nothing could be fused (on a CPU, unless asked for).
        """
        return {
            f"blocks.{layer}.hook_{name}_out": plan
            for layer, block in enumerate(self._stack())
            for name, plan in block.plans.items()
        }

    def _run(self, block: nn.Module) -> Callable[..., Any]:
        if not (self.gradient_checkpointing and self.training):
            return block
        return partial(self._gradient_checkpointing_func, block.__call__)
