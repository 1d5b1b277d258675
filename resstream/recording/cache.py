"""What is at every site in one run of some prompts?  Activations under TransformerLens's names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.errors import TextError, UnknownSiteError
from resstream.stream.model import StreamModel
from resstream.stream.sites import (
    EMBED,
    FINAL_NORM,
    Key,
    block_site,
    match_sites,
    name_of_key,
    resolve_site,
)
from resstream.stream.texts import Corpus, Texts, read_corpus

Filter = str | Sequence[str] | Callable[[str], bool] | None
"""Sites to keep: names or globs, or a function of the full name; None keeps all."""

_SHARED = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out")
"""What TransformerLens calls by the same name and means the same by."""


class ActivationCache(Mapping[str, Tensor]):
    """Values of one run, ``[batch, pos, d_model]`` each, by site.

    ``cache["blocks.3.hook_resid_post"]``, ``cache["blocks.3.resid_post"]`` and
    ``cache["resid_post", 3]`` are the same; a negative layer counts from the end.

    Args:
        values: Value of each site, by its full name.
        n_layers: Blocks of the model.
    """

    def __init__(self, values: Mapping[str, Tensor], *, n_layers: int) -> None:
        self._values = dict(values)
        self.n_layers = n_layers

    def __getitem__(self, key: Key) -> Float[Tensor, "batch pos d_model"]:
        name = name_of_key(key, n_layers=self.n_layers)
        return self._values[resolve_site(name, tuple(self._values))]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        try:
            return self[key] is not None  # type: ignore[index]
        except (UnknownSiteError, TypeError, ValueError):
            return False

    def __repr__(self) -> str:
        return f"ActivationCache({len(self)} sites of {self.n_layers} blocks)"

    def stack_activation(self, name: str) -> Float[Tensor, "layer batch pos d_model"]:
        """One activation of all blocks, such as ``resid_post``.

        Raises:
            UnknownSiteError: A block has none of that name.
        """
        return torch.stack([self[name, layer] for layer in range(self.n_layers)])

    def to_transformer_lens(self, bridge: Any) -> Any:
        """The same values as a ``transformer_lens.ActivationCache``.

        Only the stream, the writes and the embedding are known here; TransformerLens's methods that
        need more (queries, patterns, scales of norms) say which name they miss.

        Args:
            bridge: A TransformerLens model of the same weights, which the cache's methods use.

        Returns:
            The cache, for TransformerLens's own analyses.
        """
        from transformer_lens import ActivationCache as TheirCache

        shared = {
            name: value
            for name, value in self._values.items()
            if name == EMBED or name.rpartition(".")[2] in _SHARED
        }
        if FINAL_NORM in self._values:
            # Their `hook_normalized` is before the gain, and this is behind it.
            shared["ln_final.hook_out"] = self._values[FINAL_NORM]
        first = block_site(0, "resid_pre")
        if {EMBED, first} <= shared.keys():
            positions = shared[first] - shared[EMBED]
            if positions.any():  # models that rotate queries and keys have none
                shared["hook_pos_embed"] = positions
        return TheirCache(shared, bridge)


def run_with_cache(
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    names_filter: Filter = None,
    bos: bool | None = None,
) -> tuple[Float[Tensor, "batch pos d_vocab"], ActivationCache]:
    """Run prompts once and keep what is at every site; for long texts use `record`.

    Args:
        model: The model.
        texts: Prompts of the same number of tokens (nothing is padded), or token ids.
        names_filter: Sites to keep: names, globs, or a function of the full name; all if None.
        bos: Begin with the BOS token; None does as the tokenizer does.

    Returns:
        The model's output, and the cache; both without gradients.

    Raises:
        TextError: The prompts have different lengths.
        UnknownSiteError: A name fits no site.

    Example:
        >>> import resstream as rs
        >>> logits, cache = rs.run_with_cache(rs.load("demo"), "Once upon a time")
        >>> cache["resid_post", 3].shape
        torch.Size([1, 5, 128])
    """
    corpus = read_corpus(model, texts, bos=bos)
    lengths = sorted({len(sequence) for sequence in corpus.sequences})
    if len(lengths) > 1:
        raise TextError(
            f"all prompts must have the same number of tokens, got {lengths}: nothing is padded; "
            "run them one by one"
        )
    kept: dict[str, Tensor] = {}

    def keeping(site: str) -> Callable[[Tensor], None]:
        # A copy: some models add to the stream in place.
        return lambda value: kept.update({site: value.detach().clone()})

    chosen = _chosen(names_filter, model.sites)
    with torch.no_grad():
        output = model.run(torch.stack(corpus.sequences), {site: keeping(site) for site in chosen})
    values = {site: kept[site] for site in chosen}
    return output, ActivationCache(values, n_layers=model.spec.n_layers)


def _chosen(names_filter: Filter, sites: tuple[str, ...]) -> tuple[str, ...]:
    if names_filter is None:
        return sites
    if callable(names_filter):
        return tuple(site for site in sites if names_filter(site))
    return match_sites([names_filter] if isinstance(names_filter, str) else names_filter, sites)
