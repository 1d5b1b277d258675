"""What does a position take from others?  Grouped multi-head attention, causal or not."""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint  # noqa: TID253  models are made of hook points

from resstream.nn.config import TransformerConfig
from resstream.nn.matrices import Matrix
from resstream.nn.norms import HeadScale, ScalarBias, StreamNorm, applied
from resstream.nn.placements import norms_inside

Turns = tuple[Float[Tensor, "batch pos d_head"], Float[Tensor, "batch pos d_head"]]
"""Cosines and sines of the rotary angles."""
Scores = Float[Tensor, "batch n_heads pos key"]
"""What a softmax over the keys makes the pattern of, before any mask."""


class KeyValueCache(Protocol):
    """What attention asks of a cache; transformers' `Cache` does."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Append, and give all keys and values of the layer."""
        ...

    def get_seq_length(self) -> int:
        """How many positions are held."""
        ...


def rotary_turns(
    positions: Int[Tensor, "batch pos"], base: float, d_head: int, dtype: torch.dtype
) -> Turns:
    """Cosines and sines of ``position * base^(-2 i / d_head)``, each angle twice (Llama's layout).

    References:
        Su et al. (2021), "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    """
    exponents = torch.arange(0, d_head, 2, device=positions.device).float() / d_head
    angles = positions[..., None].float() * (1.0 / base**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def turned(heads: Float[Tensor, "batch n_heads pos d_head"], turns: Turns) -> Tensor:
    """Turn each pair of channels ``(i, i + d_head / 2)`` by its position's angle."""
    cos, sin = (turn[:, None] for turn in turns)
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def causal_mask(n_queries: int, n_keys: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """True where a query may look; the last query sees all keys."""
    everything = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return everything.tril(n_keys - n_queries)


class Attention(nn.Module):
    """``concat_h(softmax(Q_h K_h^T / sqrt(d_head)) V_h) W_O``.

    With residual attention the scores of the previous block are added before the softmax; with
    Sub-LN `ln_inner` norms what W_O reads; NormFormer scales the heads; Fixup has scalar biases.

    References:
        Vaswani et al. (2017), "Attention Is All You Need"; grouped queries, Ainslie et al. (2023).
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.causal = config.causal
        self.dropout = config.dropout
        self.d_head = config.head_width
        self.n_groups = config.n_heads // config.key_heads
        self.score_weight = config.rule.score_weight
        d_model, bias = config.d_model, config.bias
        d_query, d_key = config.n_heads * self.d_head, config.key_heads * self.d_head
        self.q_proj = Matrix(d_model, d_query, role="query", bias=bias)
        self.k_proj = Matrix(d_model, d_key, role="key", bias=bias)
        self.v_proj = Matrix(d_model, d_key, role="value", bias=bias)
        self.o_proj = Matrix(d_query, d_model, role="attn_out", bias=bias)
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_z = HookPoint()
        self.hook_attn_scores = None if self.score_weight is None else HookPoint()
        self._make_extras(config)

    def _make_extras(self, config: TransformerConfig) -> None:
        placement, width = config.norm_placement, config.n_heads * self.d_head
        has_inner = norms_inside(placement, "attn")
        self.ln_inner = StreamNorm(config.norm, width) if has_inner else None
        self.head_scale = HeadScale(config.n_heads) if placement == "normformer" else None
        has_biases = config.rule.has_scalar_biases
        self.bias_in, self.bias_inner, self.bias_out = (
            ScalarBias() if has_biases else None for _ in range(3)
        )

    def forward(
        self,
        read: Float[Tensor, "batch pos d_model"],
        *,
        attention_mask: Bool[Tensor, "batch 1 pos key"] | None = None,
        position_embeddings: Turns | None = None,
        cache: KeyValueCache | None = None,
        previous_scores: Scores | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend; without a mask, as causal or not as the config says.

        Returns:
            The branch ``[batch, pos, d_model]``; with residual attention the scores as well.
        """
        read = applied(self.bias_in, read)
        query = self.hook_q(self._heads(self.q_proj(read))).transpose(1, 2)
        key = self.hook_k(self._heads(self.k_proj(read))).transpose(1, 2)
        value = self.hook_v(self._heads(self.v_proj(read))).transpose(1, 2)
        if position_embeddings is not None:
            query = turned(query, position_embeddings)
            key = turned(key, position_embeddings)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        if self.n_groups > 1:
            key, value = (part.repeat_interleave(self.n_groups, dim=1) for part in (key, value))
        if self.score_weight is None:
            return self._projected(self._mixed(query, key, value, attention_mask))
        scores = query @ key.mT / self.d_head**0.5
        if previous_scores is not None:
            scores = scores + self.score_weight * previous_scores
        assert self.hook_attn_scores is not None
        scores = self.hook_attn_scores(scores)
        pattern = self._pattern(scores, attention_mask)
        return self._projected(pattern @ value), scores

    def _heads(self, flat: Tensor) -> Float[Tensor, "batch pos n_heads d_head"]:
        return flat.unflatten(-1, (-1, self.d_head))

    def _projected(self, mixed: Float[Tensor, "batch n_heads pos d_head"]) -> Tensor:
        heads = self.hook_z(applied(self.head_scale, mixed.transpose(1, 2)))
        flat = applied(self.bias_inner, applied(self.ln_inner, heads.flatten(2)))
        return applied(self.bias_out, self.o_proj(flat))

    def _pattern(self, scores: Scores, mask: Tensor | None) -> Tensor:
        """Softmax over the keys that a query may see, in float32."""
        if mask is None and self.causal:
            mask = causal_mask(scores.shape[2], scores.shape[3], scores.device)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        pattern = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        return F.dropout(pattern.to(scores.dtype), self.dropout, self.training)

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        n_queries, n_keys = query.shape[2], key.shape[2]
        # torch's is_causal counts from the first key, so a longer cache needs its mask spelled out.
        fresh = n_queries == n_keys
        if mask is None and self.causal and not fresh and n_queries > 1:
            mask = causal_mask(n_queries, n_keys, query.device)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None and self.causal and fresh,
        )
