"""How a whole model is called: what goes in, with which options, and what comes out."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from resstream.errors import DiscoveryError, UnsupportedModelError
from resstream.stream.calls import first_tensor


class Caller:
    """Calls a model on token ids (or on whatever its main input is) and gives one tensor.

    Args:
        module: The model.
        example: One input that the model takes, for models that do not read token ids.

    Raises:
        UnsupportedModelError: The model is an encoder-decoder.
        DiscoveryError: It is not clear what the model takes.
    """

    def __init__(self, module: nn.Module, example: Tensor | None = None) -> None:
        config = getattr(module, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise UnsupportedModelError(
                f"{type(module).__name__} is an encoder-decoder: it has two streams, and resstream "
                "follows one; load its encoder or a decoder-only model"
            )
        self.module = module
        names = inspect.signature(module.forward).parameters
        self._options = {"use_cache": False} if "use_cache" in names else {}
        self._name: str | None = getattr(module, "main_input_name", None)
        if self._name not in names:
            self._name = None
        self.example = example if example is not None else self._make_example()

    @property
    def reads_tokens(self) -> bool:
        """True if the model's input is token ids ``[batch, pos]``."""
        return self.example.ndim == 2 and not self.example.is_floating_point()

    def __call__(self, inputs: Tensor) -> Tensor:
        """The model's output: logits if it has a head, else its last hidden states."""
        if self._name is None:
            output = self.module(inputs, **self._options)
        else:
            output = self.module(**{self._name: inputs}, **self._options)
        for key in ("logits", "last_hidden_state"):
            value = output.get(key) if isinstance(output, Mapping) else getattr(output, key, None)
            if isinstance(value, Tensor):
                return value
        tensor = first_tensor(tuple(output.values()) if isinstance(output, Mapping) else output)
        if tensor is None:
            raise DiscoveryError(f"the model returned {type(output).__name__}, not a tensor")
        return tensor

    def like(self, stream: Tensor) -> Tensor:
        """Inputs for as many sequences and positions as `stream` has; their values don't matter."""
        if self.reads_tokens:
            return torch.zeros(stream.shape[:2], dtype=torch.long, device=stream.device)
        one = self.example[:1].to(stream.device)
        return one.expand(stream.shape[0], *one.shape[1:])

    def _make_example(self) -> Tensor:
        """Two short inputs, drawn with a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        device = next((value.device for value in self.module.parameters()), torch.device("cpu"))
        if self._name == "pixel_values":
            return torch.randn(self._picture_shape(), generator=generator).to(device)
        size = vocabulary_size(self.module)
        if size is None:
            raise DiscoveryError(
                f"it is not clear what {type(self.module).__name__} takes: it has no token "
                "embedding; pass example=, one batch of inputs"
            )
        low = min(3, size - 1)  # the first ids are padding and the like in many vocabularies
        return torch.randint(low, size, (2, 9), generator=generator).to(device)

    def _picture_shape(self) -> tuple[int, int, int, int]:
        config: Any = self.module.config
        config = getattr(config, "vision_config", config)
        size = getattr(config, "image_size", 224)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return (2, getattr(config, "num_channels", 3), height, width)


def vocabulary_size(module: nn.Module) -> int | None:
    """How many token ids the model embeds."""
    getter = getattr(module, "get_input_embeddings", None)
    try:
        embedding = getter() if callable(getter) else None
    except (NotImplementedError, AttributeError):
        embedding = None
    if not isinstance(embedding, nn.Embedding):
        found = (part for part in module.modules() if isinstance(part, nn.Embedding))
        embedding = next(found, None)
    return None if embedding is None else embedding.num_embeddings
