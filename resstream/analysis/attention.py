"""Where do the heads look?  Entropy, sinks, and heads that look at the sink and write nothing.

References:
    Gu et al. (2024), "When Attention Sink Emerges in Language Models", arXiv:2410.10781.
    Guo et al. (2024), "Active-Dormant Attention Heads", arXiv:2410.13835.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from resstream.analysis.attribution_parts import n_heads
from resstream.errors import UnsupportedModelError
from resstream.stream.linear_parts import output_matrix, reading_inputs
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.spec import WriteSpec
from resstream.stream.texts import Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SINK_SHARE = 0.3
"""A head sinks in a sequence if the first token gets more than this on average."""
DORMANT_SHARE = 0.95
DORMANT_WRITE = 0.1
"""A dormant head gives the first token more than `DORMANT_SHARE`, and writes less than this part of
the median head of its layer."""

_BATCH_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class AttentionResult(Result):
    """Readings of every attention head; layers that do not attend are left out."""

    schema: ClassVar[str] = "resstream.attention/1"

    model: str
    text: str
    layers: Int[np.ndarray, " row"]
    entropy: Float[np.ndarray, "row head"]
    """Entropy over that of attending evenly to all that is visible, mean over queries from 1 on."""
    first_share: Float[np.ndarray, "row head"]
    """Share that the first token gets, mean over queries from 1 on."""
    sink_rate: Float[np.ndarray, "row head"]
    """Share of sequences in which the first token gets more than 0.3 on average."""
    write_norm: Float[np.ndarray, "row head"]
    """Mean norm of what the head adds to the branch; NaN where it can't be split."""
    is_dormant: Bool[np.ndarray, "row head"]

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a layer and head."""
        import pandas as pd

        row, head = (index.ravel() for index in np.indices(self.entropy.shape))
        names = ("entropy", "first_share", "sink_rate", "write_norm", "is_dormant")
        columns = {name: getattr(self, name).ravel() for name in names}
        return pd.DataFrame({"layer": self.layers[row], "head": head, **columns})

    def plot(self) -> "go.Figure":
        """Entropy and share of the first token by layer, with the range over heads."""
        from resstream.figures.profile import Series, layer_profile

        series = [
            Series(
                name=name,
                values=values.mean(1),
                low=values.min(1),
                high=values.max(1),
                at=self.layers.astype(np.float64),
            )
            for name, values in (
                ("entropy (1: even)", self.entropy),
                ("share of the first token", self.first_share),
            )
        ]
        return layer_profile(series, value_title="mean over heads (band: all heads)")


def attention(
    model: StreamModel, texts: Texts | Corpus = None, *, seed: int = 0
) -> AttentionResult:
    """Read the attention patterns of all heads; the model attends in its eager way for it.

    A head that only looks at the first token is ordinary, and not thereby idle.

    Args:
        model: A causal model whose library gives attention patterns.
        texts: What it reads, or a corpus made of it.
        seed: Of random ids where there is no text.

    Raises:
        UnsupportedModelError: There are no attention patterns to be had.
        TextError: The text can't be used.
    """
    corpus = read_corpus(model, texts, seed=seed)
    writes = [write for write in model.spec.writes if write.name == "attn"]
    if not writes or not model.spec.causal:
        raise UnsupportedModelError(f"{model.name} has no causal attention to read")
    heads = n_heads(model)
    splits = [write for write in writes if write.output_matrix is not None]
    sums = np.zeros((3, len(writes), heads))
    norms = np.full((len(writes), heads), np.nan)
    norms[[writes.index(write) for write in splits]] = 0.0
    for batch in corpus.batches(_BATCH_TOKENS):
        with reading_inputs(model, splits) as inputs, torch.no_grad():
            patterns = _patterns(model, batch.tokens, len(writes))
        for row, pattern in enumerate(patterns):
            sums[:, row] += _readings(pattern).sum(1).cpu().numpy()
        for write in splits:
            z = inputs[write.site].reshape(*batch.tokens.shape, -1)
            norms[writes.index(write)] += _head_norms(model, write, z, heads)
    sums /= len(corpus.sequences)
    norms /= corpus.n_tokens
    median = np.nanmedian(norms, axis=1, keepdims=True) if splits else norms
    return AttentionResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        layers=np.array([write.layer for write in writes]),
        entropy=sums[0],
        first_share=sums[1],
        sink_rate=sums[2],
        write_norm=norms,
        is_dormant=(sums[1] > DORMANT_SHARE) & (norms < DORMANT_WRITE * median),
    )


def _patterns(
    model: StreamModel, tokens: Int[Tensor, "batch pos"], count: int
) -> list[Float[Tensor, "batch head query key"]]:
    """Attention patterns of all layers that attend."""
    points = [part for name, part in model.module.named_modules() if name.endswith("hook_pattern")]
    tokens = tokens.to(model.device)
    found = _from_hooks(model, points, tokens) if points else _from_library(model, tokens)
    if len(found) != count:
        raise UnsupportedModelError(
            f"{model.name} gave {len(found)} attention patterns for {count} attention layers"
        )
    return found


def _from_hooks(model: StreamModel, points: Sequence[nn.Module], tokens: Tensor) -> list[Tensor]:
    kept: list[Tensor] = []
    handles = [
        point.register_forward_hook(lambda module, args, out: kept.append(out.detach()))
        for point in points
    ]
    try:
        model.forward(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return kept


def _from_library(model: StreamModel, tokens: Tensor) -> list[Tensor]:
    try:
        with _eager(model.module):
            output = model.module(tokens, output_attentions=True, use_cache=False)
    except TypeError as err:
        found = _from_torch(model, tokens)
        if not found:
            raise UnsupportedModelError(
                f"{model.name} does not give attention patterns: {err}"
            ) from err
        return found
    patterns = getattr(output, "attentions", None) or ()
    return [pattern for pattern in patterns if isinstance(pattern, Tensor)]


def _from_torch(model: StreamModel, tokens: Tensor) -> list[Tensor]:
    """Patterns of a model that attends through torch's fused function, which gives none itself."""
    with _Watching() as watched:
        model.forward(tokens)
    return watched.patterns


class _Watching(TorchFunctionMode):
    """Computes the pattern of each fused attention that runs while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.patterns: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.patterns.append(_fused_pattern(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _fused_pattern(  # noqa: PLR0913  (torch's own arguments)
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "batch head query key"]:
    """What ``scaled_dot_product_attention`` weighs the values with; its arguments are torch's."""
    del value, dropout_p
    if enable_gqa:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1)


@contextmanager
def _eager(module: Any) -> Iterator[None]:
    """Only eager attention gives its patterns."""
    before = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if before is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} does not give attention patterns: it is no transformers "
            "model and has no hook_pattern"
        )
    own = {part: list(_hooks_of(part)) for part in module.modules()}
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(before)
        _remove_new_hooks(module, own)


def _hooks_of(part: nn.Module) -> dict[int, Any]:
    return part._forward_hooks  # pyright: ignore[reportPrivateUsage]  (torch has no public name)


def _remove_new_hooks(module: Any, own: dict[nn.Module, list[int]]) -> None:
    """The library leaves its recording hooks on the model; they are taken off again."""
    for part, before in own.items():
        hooks = _hooks_of(part)
        for handle in set(hooks) - set(before):
            del hooks[handle]
    for part in module.modules():  # the model inside a head has a mark of its own
        if getattr(part, "_output_capturing_hooks_installed", False):
            part._output_capturing_hooks_installed = False


def _readings(
    pattern: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "reading batch head"]:
    """Entropy, share of the first token, and whether that is a sink; queries from 1 on."""
    later = pattern[:, :, 1:].double()
    visible = torch.arange(2, later.shape[-1] + 1, device=later.device, dtype=later.dtype)
    entropy = (torch.special.entr(later).sum(-1) / visible.log()).mean(-1)
    share = later[..., 0].mean(-1)
    return torch.stack([entropy, share, (share > SINK_SHARE).double()])


def _head_norms(
    model: StreamModel, write: WriteSpec, z: Float[Tensor, "batch pos d_in"], heads: int
) -> Float[np.ndarray, " head"]:
    """Sum over tokens of the norm of what each head adds."""
    weight, _ = output_matrix(model, write)
    parts = weight.double().unflatten(0, (heads, -1))
    gram = parts @ parts.mT
    split = z.double().unflatten(-1, (heads, -1))
    squares = torch.einsum("bphd,hde,bphe->bph", split, gram, split)
    return squares.clamp(min=0).sqrt().sum((0, 1)).cpu().numpy()
