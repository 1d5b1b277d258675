"""How does the native model meet transformers?  Config, model and Auto classes, nothing else.

`save_pretrained`, `from_pretrained`, `Trainer`, `generate` and PEFT work on these unchanged.
"""

from typing import Any, ClassVar, cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import (  # noqa: TID253  subclasses of transformers' classes
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast  # noqa: TID253

from resstream.errors import ConfigError
from resstream.nn.config import TransformerConfig
from resstream.nn.matrices import initialise
from resstream.nn.transformer import ResidualTransformer

_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What transformers calls the key-value cache: `past_key_values` until 5.24, then `cache`."""


class ResstreamConfig(PretrainedConfig):
    """A `TransformerConfig` as transformers wants it; `transformer` holds its fields by name."""

    model_type: ClassVar[str] = "resstream"

    transformer: dict[str, Any] | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.transformer is not None:
            shape = TransformerConfig.from_dict(self.transformer)
            self.transformer = shape.to_dict()
            self.tie_word_embeddings = shape.tied
            # The names under which generate, Trainer and others look for sizes.
            self.vocab_size, self.hidden_size = shape.d_vocab, shape.d_model
            self.num_hidden_layers, self.num_attention_heads = shape.n_layers, shape.n_heads
            self.num_key_value_heads, self.head_dim = shape.key_heads, shape.head_width
            self.max_position_embeddings = shape.n_ctx
        super().__post_init__(**kwargs)

    @classmethod
    def of(cls, transformer: TransformerConfig, **kwargs: Any) -> "ResstreamConfig":
        """The transformers config of a native config; `kwargs` are transformers' own fields."""
        return cls(transformer=transformer.to_dict(), **kwargs)

    @property
    def shape(self) -> TransformerConfig:
        """The native config.

        Raises:
            ConfigError: This config was made without one.
        """
        if self.transformer is None:
            raise ConfigError("transformer must be a mapping of the native config, got None")
        return TransformerConfig.from_dict(self.transformer)


class ResstreamForCausalLM(PreTrainedModel, GenerationMixin):
    """A `ResidualTransformer` with transformers' interface, in `model`.

    Args:
        config: Made by `ResstreamConfig.of`.
    """

    config_class = ResstreamConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012  typed by transformers
    _tied_weights_keys = {"model.unembed.weight": "model.embed.weight"}  # noqa: RUF012
    # Gates and LayerScale stay float32 when a checkpoint is loaded in half precision.
    _keep_in_fp32_modules_strict = ["scales"]  # noqa: RUF012

    def __init__(self, config: ResstreamConfig) -> None:
        super().__init__(config)
        self.model = ResidualTransformer(config.shape)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        initialise(module, self.model.config)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.model.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding."""
        self.model.embed = cast(nn.Embedding, value)

    def get_output_embeddings(self) -> nn.Module:
        """The unembedding."""
        return self.model.unembed

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the unembedding."""
        self.model.unembed = cast(nn.Linear, new_embeddings)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Grow or shrink the vocabulary, in the native config too."""
        embed = super().resize_token_embeddings(*args, **kwargs)
        self.config.transformer["d_vocab"] = embed.num_embeddings
        self.model.config = self.config.shape
        return embed

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and with `labels` the loss in nats per predicted token.

        Args:
            input_ids: Token ids, ``[batch, pos]``.
            attention_mask: 1 for real tokens, 0 for padding, those in the cache included.
            position_ids: Position of every token, ``[batch, pos]``.
            labels: Token ids, -100 where no loss is wanted.  A causal model is scored on the next
                token, a bidirectional one on the token at the same place.
            use_cache: Return keys and values for the next call.
            logits_to_keep: Logits of that many last positions only; 0: of all.
            kwargs: The cache; `num_items_in_batch` of Trainer; the `condition` of AdaLN-Zero;
                others are refused.
        """
        caches = [kwargs.pop(name, None) for name in ("cache", "past_key_values")]
        cache: Any = caches[0] if caches[0] is not None else caches[1]
        n_items = kwargs.pop("num_items_in_batch", None)
        condition = kwargs.pop("condition", None)
        _refuse(kwargs)
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if use_cache and cache is None and self.model.config.causal and not self.training:
            from transformers import DynamicCache

            cache = DynamicCache(config=self.config)
        padding = None if attention_mask is None else _padding(attention_mask)
        stream = self.model.stream(
            input_ids, padding=padding, positions=position_ids, cache=cache, condition=condition
        )
        logits = self.model.unembedded(stream[:, -logits_to_keep:])
        loss = None if labels is None else self._loss(logits, labels, n_items)
        held: dict[str, Any] = {_CACHE: cache}
        return CausalLMOutputWithPast(loss=loss, logits=cast(Any, logits), **held)

    def _loss(self, logits: Tensor, labels: Tensor, n_items: Tensor | int | None) -> Tensor:
        if self.model.config.causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        logits, labels = logits.flatten(0, 1).float(), labels.flatten()
        if n_items is None:
            return F.cross_entropy(logits, labels)
        return F.cross_entropy(logits, labels, reduction="sum") / n_items


def _padding(attention_mask: Tensor) -> Tensor | None:
    """The mask as booleans, or None where nothing is padded."""
    if attention_mask.ndim != 2:
        raise ValueError(
            "attention_mask must be [batch, key], "
            f"got {attention_mask.ndim} axes; static caches are not supported"
        )
    return None if attention_mask.all() else attention_mask.bool()


def _refuse(kwargs: dict[str, Any]) -> None:
    """Refuse what this model would otherwise ignore in silence."""
    asked = sorted(name for name, value in kwargs.items() if value not in (None, False))
    if set(asked) - {"return_dict"}:
        raise TypeError(
            f"the native model does not know {asked}; states and patterns of all layers come from "
            "its hook points or from resstream.record"
        )


def register_auto_classes() -> None:
    """Make `AutoConfig` and `AutoModelForCausalLM` know ``model_type: resstream``."""
    AutoConfig.register(ResstreamConfig.model_type, ResstreamConfig, exist_ok=True)
    AutoModelForCausalLM.register(ResstreamConfig, ResstreamForCausalLM, exist_ok=True)
