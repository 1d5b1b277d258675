"""What is measured at the answer: logit difference, probability, rank, or divergence?"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from resstream.errors import ConfigError
from resstream.stream.model import StreamModel
from resstream.sweep.readout import Readout

Metric = Literal["logit_diff", "probability", "rank", "kl"]
"""`logit_diff`: answer less wrong answer, in logits; `probability` of the answer; `rank` of the
answer (1 is first); `kl`: divergence of the patched from the clean prediction, in nats."""
Direction = Literal["denoising", "noising"]
"""`denoising` puts clean values into the corrupted run (what suffices for the answer?), `noising`
corrupted values into the clean run (what is needed for it?).  They are not symmetric."""

_BYTES_AT_ONCE = 24 << 20
"""Logits of whole vocabularies that are measured at once, in float64."""


def require_known(metric: str, direction: str) -> None:
    """Refuse what is not measured.

    Raises:
        ConfigError: An unknown metric or direction.
    """
    for name, value, known in (("metric", metric, Metric), ("direction", direction, Direction)):
        if value not in get_args(known):
            raise ConfigError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")


class Meter:
    """Measures last streams that belong to pairs.

    Args:
        model: A language model.
        metric: What is measured.
        answers: Token id of the right answer, by pair.
        wrongs: Token id of the wrong answer, by pair; only `logit_diff` needs it.
        clean: Last stream of each pair's clean run, ``[pair, d_model]``.
    """

    def __init__(
        self,
        model: StreamModel,
        metric: Metric,
        answers: Sequence[int],
        wrongs: Sequence[int],
        clean: Float[Tensor, "pair d_model"],
    ) -> None:
        self._metric = metric
        columns = sorted({*answers, *wrongs}) if metric == "logit_diff" else None
        self._whole_rows = max(1, _BYTES_AT_ONCE // (8 * (model.spec.d_vocab or 1)))
        self._readout = Readout(model, columns, clean)
        place = {token: index for index, token in enumerate(columns or [])}
        self._answers = torch.tensor([place.get(token, token) for token in answers])
        self._wrongs = torch.tensor([place.get(token, token) for token in wrongs])
        self._clean = self._readout(clean).double().log_softmax(-1) if metric == "kl" else None

    def __call__(
        self, streams: Float[Tensor, "row d_model"], pairs: Sequence[int]
    ) -> Float[np.ndarray, " row"]:
        """The metric of each row, which belongs to the pair named at its place."""
        step = 1024 if self._metric == "logit_diff" else self._whole_rows
        parts = [
            self._measure(streams[start : start + step], torch.tensor(pairs[start : start + step]))
            for start in range(0, len(streams), step)
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def _measure(self, streams: Tensor, pairs: Tensor) -> np.ndarray:
        logits = self._readout(streams)
        rows = torch.arange(len(logits))
        if self._metric == "kl":
            assert self._clean is not None, "made with this metric"
            patched, clean = logits.double().log_softmax(-1), self._clean[pairs]
            found = (clean.exp() * (clean - patched)).sum(-1)
        else:
            answer = logits[rows, self._answers[pairs]]
            if self._metric == "logit_diff":
                found = answer - logits[rows, self._wrongs[pairs]]
            elif self._metric == "probability":
                found = (answer.double() - logits.double().logsumexp(-1)).exp()
            else:
                found = 1 + (logits > answer[:, None]).sum(-1)
        return found.double().cpu().numpy()
