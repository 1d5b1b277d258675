"""What does one block of the transformer do to the stream?  Attention's write, then the MLP's."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint  # noqa: TID253  models are made of hook points

from resstream.nn.attention import Attention, KeyValueCache, Scores, Turns
from resstream.nn.config import TransformerConfig
from resstream.nn.mlp import Mlp
from resstream.nn.writing import WritingBlock


class Block(WritingBlock):
    """Attention and MLP, one after the other or, where `parallel`, from the same stream.

    In a parallel block there is no stream between the writes, and no `hook_resid_mid`.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__(config.plan, layer)
        self.attn, self.mlp = Attention(config, layer), Mlp(config)
        self.hook_resid_mid = None if config.parallel else HookPoint()

    def forward(
        self,
        stream: Float[Tensor, "batch pos d_model"],
        *,
        attention_mask: Bool[Tensor, "batch 1 pos key"] | None = None,
        position_embeddings: Turns | None = None,
        cache: KeyValueCache | None = None,
        condition: Tensor | None = None,
        previous_scores: Scores | None = None,
    ) -> Any:
        """The stream after both writes, and with residual attention the scores."""
        stream = self.hook_resid_pre(stream)
        read, attn_terms = self._read("attn", stream, condition)
        mixed = self.attn(
            read,
            attention_mask=attention_mask,
            position_embeddings=position_embeddings,
            cache=cache,
            previous_scores=previous_scores,
        )
        branch, scores = mixed if isinstance(mixed, tuple) else (mixed, None)
        written = self.write("attn", stream, branch, attn_terms)
        if self.hook_resid_mid is not None:
            stream = written = self.hook_resid_mid(written)
        read, terms = self._read("mlp", stream, condition)
        stream = self.hook_resid_post(self.write("mlp", written, self.mlp(read), terms))
        return stream if scores is None else (stream, scores)

    def read_dtype(self, name: str) -> torch.dtype | None:
        """The matrices' dtype, unless something is done to the normed stream first."""
        return None if self._scale(name).changes_read else self.attn.o_proj.weight.dtype

    def _read(self, name: str, stream: Tensor, condition: Tensor | None) -> tuple[Tensor, Any]:
        read, terms = self.read(name, stream, condition)
        return read.to(self.attn.o_proj.weight.dtype), terms
