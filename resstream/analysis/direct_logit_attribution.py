"""Which writes speak for the answer?  The logit taken apart into what each write puts into it.

The final norm is held at the statistics of the run; then the logit is a sum over the embedding,
all writes (or heads, or neurons) and the biases.  Only the direct path counts: what a write does
through later blocks is not in it.

References:
    Elhage et al. (2021), "A Mathematical Framework for Transformer Circuits".
    Dao et al. (2023), "An Adversarial Example for Direct Logit Attribution", arXiv:2310.07325.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.analysis.attribution_parts import (
    Level,
    Part,
    Snapshot,
    contributions,
    read_direction,
    read_tokens,
    snapshot,
)
from resstream.analysis.vocabulary import Target, token_ids, token_texts
from resstream.errors import ConfigError, TextError
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.spec import WriteSpec
from resstream.stream.texts import Batch, Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_BATCH_TOKENS = 1024
_ERASED = 0.7
"""Share of a write that later writes take away, from which on a reader is warned."""
_LEADING = 5
"""Parts that are looked at for erasure: the largest ones."""


@dataclass(frozen=True, kw_only=True)
class AttributionResult(Result):
    """What each part adds to a logit, a difference of logits, or a direction."""

    schema: ClassVar[str] = "resstream.attribute/1"

    model: str
    text: str
    level: str
    prompts: tuple[str, ...]
    question: tuple[str, ...]
    """What is explained, for each prompt: ``' Paris' - ' Rome'``."""
    parts: tuple[str, ...]
    kinds: tuple[str, ...]
    """`embed`, a write (`attn`, `mlp`, ...), `head`, `neuron`, `bias`, or `rest`."""
    layers: Int[np.ndarray, " part"]
    """-1 for what belongs to no block."""
    contributions: Float[np.ndarray, "prompt part"]
    """In logits; positive speaks for the answer."""
    explained: Float[np.ndarray, " prompt"]
    """The model's own value, which the parts should sum to; before a soft-cap, if there is one."""
    completeness_error: Float[np.ndarray, " prompt"]
    """|sum of the parts - explained| over the larger of the logits in question."""
    erased: Float[np.ndarray, "prompt part"]
    r"""Share of a write that later writes take away, :math:`-\sum_{j>i} \langle w_j, w_i \rangle /
    |w_i|^2`; NaN for parts that are no write."""
    warnings: tuple[str, ...]

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a prompt and part; contributions in logits."""
        import pandas as pd

        prompt, part = (index.ravel() for index in np.indices(self.contributions.shape))
        return pd.DataFrame(
            {
                "prompt": prompt,
                "question": [self.question[index] for index in prompt],
                "part": [self.parts[index] for index in part],
                "kind": [self.kinds[index] for index in part],
                "layer": self.layers[part],
                "contribution_logits": self.contributions.ravel(),
                "erased_share": self.erased.ravel(),
            }
        )

    def plot(self) -> "go.Figure":
        """Bars in order of execution, averaged over prompts."""
        from resstream.figures.bars import attribution_bars

        mean = self.contributions.mean(0)
        count = len(self.question)
        what = self.question[0] if count == 1 else f"mean of {count} prompts"
        title = f"contribution, logits (positive: towards the answer; {what})"
        return attribution_bars(self.parts, mean, value_title=title)


def direct_logit_attribution(  # noqa: PLR0913  (the answer is said in one of three ways)
    model: StreamModel,
    texts: Texts | Corpus,
    *,
    answer: Target | Sequence[Target] | None = None,
    wrong: Target | Sequence[Target] | None = None,
    direction: Float[Tensor, " d_model"] | None = None,
    level: Level = "write",
    position: int = -1,
    top_k: int = 40,
) -> AttributionResult:
    r"""Take a logit apart into what every part of the model writes into it.

    With :math:`u = W_U[\text{answer}] - W_U[\text{wrong}]`, gain :math:`\gamma` and the final
    norm's statistic :math:`\sigma` held at its value in the run, a write :math:`w` contributes
    :math:`\langle w - \bar w, \gamma u \rangle / \sigma` (without the mean for an RMSNorm).
    All contributions sum to the model's own value, and the result says how exactly.

    Args:
        model: A causal language model whose stream is a sum.
        texts: Prompts.
        answer: Token whose logit is explained, one for all prompts or one each; the model's own
            first choice if None.
        wrong: Token whose logit is subtracted.
        direction: Explain the component of the normed last stream along this, instead of tokens.
        level: Take writes as they are, or split attention into heads, or MLPs into neurons.
        position: Where the answer is predicted; the last token by default.
        top_k: Neurons that are shown one by one, the largest over all prompts; the others of a
            layer are summed.

    Raises:
        UnsupportedModelError: The stream is no sum (Post-LN, gates in the stream), the readout is
            not a norm and a matrix, or a write can't be split.
        ConfigError: An unknown level, or both tokens and a direction.
        TextError: A target is not one token, or the numbers of prompts and targets differ.
    """
    model.require_language_model("direct_logit_attribution")
    if level not in get_args(Level):
        raise ConfigError(f"level must be one of {', '.join(get_args(Level))}, got {level!r}")
    if direction is not None and (answer is not None or wrong is not None):
        raise ConfigError("give either tokens (answer, wrong) or a direction, not both")
    corpus = read_corpus(model, texts)
    count = len(corpus.sequences)
    question = _Question(
        _for_each(model, answer, count), _for_each(model, wrong, count), direction, level, position
    )
    rows: dict[int, _Row] = {}
    parts: list[Part] = []
    for batch in corpus.batches(_BATCH_TOKENS):
        parts, explained = _explain(model, batch, question)
        rows |= dict(zip(batch.rows, explained, strict=True))
    return _result(model, corpus, question, (parts, [rows[row] for row in range(count)]), top_k)


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """What is explained."""

    answers: Int[Tensor, " prompt"] | None
    wrongs: Int[Tensor, " prompt"] | None
    direction: Float[Tensor, " d_model"] | None
    level: Level
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One prompt, taken apart."""

    question: str
    contributions: Float[np.ndarray, " part"]
    erased: Float[np.ndarray, " part"]
    value: float
    size: float
    is_capped: bool


def _for_each(
    model: StreamModel, targets: Target | Sequence[Target] | None, count: int
) -> Int[Tensor, " prompt"] | None:
    if targets is None:
        return None
    if isinstance(targets, str | int):
        targets = [targets] * count
    if len(targets) != count:
        raise TextError(f"one target a prompt is needed, got {len(targets)} for {count} prompts")
    return torch.tensor(token_ids(model, targets), device=model.device)


def _explain(
    model: StreamModel, batch: Batch, question: _Question
) -> tuple[list[Part], list[_Row]]:
    length = batch.tokens.shape[1]
    if not -length <= question.position < length:
        raise TextError(f"position must be in 0..{length - 1}, got {question.position}")
    split = _to_split(model, question.level)
    found = snapshot(model, batch.tokens, question.position, split)
    if question.direction is not None:
        reader = read_direction(model, found, question.direction)
        asked = ["direction"] * len(batch.rows)
    else:
        of = list(batch.rows)
        answer = found.logits.argmax(-1) if question.answers is None else question.answers[of]
        wrong = None if question.wrongs is None else question.wrongs[of]
        reader = read_tokens(model, found, answer, wrong)
        asked = _asked(model, answer, wrong)
    parts, columns = contributions(model, found, reader, question.level, split)
    numbers = zip(
        asked,
        columns.cpu().numpy(),
        _erased(model, found, parts).cpu().numpy(),
        reader.value.tolist(),
        reader.size.tolist(),
        strict=True,
    )
    return parts, [_Row(*values, reader.is_capped) for values in numbers]


def _to_split(model: StreamModel, level: Level) -> tuple[WriteSpec, ...]:
    name = {"write": None, "head": "attn", "neuron": "mlp"}[level]
    return tuple(write for write in model.spec.writes if write.name == name)


def _asked(model: StreamModel, answer: Tensor, wrong: Tensor | None) -> list[str]:
    answers = token_texts(model, answer.tolist())
    if wrong is None:
        return [repr(text) for text in answers]
    wrongs = token_texts(model, wrong.tolist())
    return [f"{one!r} - {other!r}" for one, other in zip(answers, wrongs, strict=True)]


def _erased(
    model: StreamModel, found: Snapshot, parts: Sequence[Part]
) -> Float[Tensor, "batch part"]:
    """Share of each write that later writes take away."""
    erased = torch.full((len(found.last), len(parts)), torch.nan, dtype=torch.float64)
    place = {part.label: index for index, part in enumerate(parts)}
    later = torch.zeros_like(found.embed)
    for write in reversed(model.spec.writes):
        own = found.factors[write.site] * found.writes[write.site]
        if write.label in place:
            erased[:, place[write.label]] = (-(own * later).sum(-1) / own.square().sum(-1)).cpu()
        later = later + own
    return erased


def _result(
    model: StreamModel,
    corpus: Corpus,
    question: _Question,
    explained: tuple[Sequence[Part], Sequence[_Row]],
    top_k: int,
) -> AttributionResult:
    parts, rows = explained
    columns = np.stack([row.contributions for row in rows])
    erased = np.stack([row.erased for row in rows])
    value, size = (np.array([getattr(row, name) for row in rows]) for name in ("value", "size"))
    error = np.abs(columns.sum(1) - value) / size
    if question.level == "neuron":
        parts, columns, erased = _reduce(parts, columns, erased, top_k)
    return AttributionResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=0),
        model=model.name,
        text=corpus.description,
        level=question.level,
        prompts=tuple("".join(token_texts(model, ids.tolist())) for ids in corpus.sequences),
        question=tuple(row.question for row in rows),
        parts=tuple(part.label for part in parts),
        kinds=tuple(part.kind for part in parts),
        layers=np.array([part.layer for part in parts]),
        contributions=columns,
        explained=value,
        completeness_error=error,
        erased=erased,
        warnings=tuple(_warnings(parts, columns, erased, rows[0].is_capped)),
    )


def _reduce(
    parts: Sequence[Part], columns: np.ndarray, erased: np.ndarray, top_k: int
) -> tuple[list[Part], np.ndarray, np.ndarray]:
    """Keep the `top_k` largest neurons; sum the others of each layer."""
    sizes = np.array([part.kind == "neuron" for part in parts]) * np.abs(columns).mean(0)
    largest = set(np.argsort(-sizes, kind="stable")[:top_k].tolist())
    groups: dict[Part, list[int]] = {}
    for index, part in enumerate(parts):
        is_small = part.kind == "neuron" and index not in largest
        rest = Part(f"L{part.layer} other neurons", "rest", part.layer)
        groups.setdefault(rest if is_small else part, []).append(index)
    summed = np.stack([columns[:, indices].sum(1) for indices in groups.values()], axis=1)
    return list(groups), summed, erased[:, [indices[0] for indices in groups.values()]]


def _warnings(
    parts: Sequence[Part], columns: np.ndarray, erased: np.ndarray, is_capped: bool
) -> Iterator[str]:
    if is_capped:
        yield "the model soft-caps its logits; what is explained is the logit before the cap"
    leading = np.argsort(-np.abs(columns).mean(0), kind="stable")[:_LEADING]
    for index in leading:
        share = np.median(erased[:, index])
        if share > _ERASED:
            yield (
                f"{parts[index].label}: later writes take away {share:.0%} of it; its direct "
                "attribution says little about what it does"
            )
