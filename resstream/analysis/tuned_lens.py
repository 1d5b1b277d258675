"""What does the stream say in its own words?  An affine translator before the readout, by depth.

At depth ``i`` the translated stream is ``x + A_i x + b_i`` with ``A = 0, b = 0`` at the start; they
are trained to bring the readout's distribution near the model's own, by KL divergence.

Reference: Belrose et al. (2023), "Eliciting Latent Predictions from Transformers with the Tuned
Lens", arXiv:2303.08112.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from resstream.analysis.lens_profile import LensProfileResult, lens_profile
from resstream.analysis.points import Point, run_streams, stream_points
from resstream.analysis.readings import log_probs
from resstream.errors import CheckpointError, ConfigError, TextError
from resstream.stream.files import write_directory
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.stream.result import Result
from resstream.stream.texts import Corpus, Texts, read_corpus

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_HELD_OUT = 0.1
"""Share of the sequences that the lens is judged on and not trained on."""

_BATCH_TOKENS = 512

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLensConfig:
    """How translators are trained; the defaults follow the authors' code, made for few tokens."""

    learning_rate: float = 1.0
    """Of SGD before the momentum's share: the step is ``learning_rate * (1 - momentum)``."""
    momentum: float = 0.9
    weight_decay: float = 1e-3
    clip: float = 1.0
    """Largest norm of the gradient of one depth."""
    n_tokens: int | None = None
    """Tokens to train on; all of the text once if None, more go round again."""
    batch_tokens: int = _BATCH_TOKENS


class TunedLens:
    """Translators for the embedding and every block but the last; `logit_lens` takes one.

    Args:
        weights: The matrices ``A``.
        biases: The vectors ``b``.
    """

    def __init__(
        self,
        weights: Float[Tensor, "depth d_model d_model"],
        biases: Float[Tensor, "depth d_model"],
    ) -> None:
        self.weights = weights
        self.biases = biases

    @classmethod
    def untrained(cls, model: StreamModel) -> Self:
        """A lens that changes nothing."""
        depth, width = model.spec.n_layers, model.spec.d_model
        kind: dict[str, Any] = {"device": model.device, "dtype": torch.float32}
        return cls(torch.zeros(depth, width, width, **kind), torch.zeros(depth, width, **kind))

    def __call__(
        self, stream: Float[Tensor, "*shape d_model"], point: Point
    ) -> Float[Tensor, "*shape d_model"]:
        """Translate the stream after the embedding, or at the end of a block.

        Raises:
            ConfigError: The point is between two writes of a block, where there is no translator.
        """
        if point.site.endswith("resid_mid"):
            raise ConfigError("a tuned lens reads the ends of blocks only; pass mid=False")
        depth = point.layer + 1
        return _translated(stream, self.weights[depth], self.biases[depth])

    def save(self, directory: str | Path, model: StreamModel) -> Path:
        """Write ``config.json`` and ``params.safetensors``, named as published lenses are.

        Raises:
            OutputError: The directory can't be written.
        """
        from safetensors.torch import save_file

        config = {
            "base_model_name_or_path": model.name,
            "base_model_hash": model.weights_hash,
            "d_model": self.weights.shape[-1],
            "num_hidden_layers": len(self.weights),
            "bias": True,
            "lens_type": "linear_tuned_lens",
        }
        tensors: dict[str, Tensor] = {}
        for depth in range(len(self.weights)):
            tensors[f"{depth}.weight"] = self.weights[depth].contiguous().cpu()
            tensors[f"{depth}.bias"] = self.biases[depth].contiguous().cpu()
        with write_directory(directory) as part:
            (part / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
            save_file(tensors, part / "params.safetensors")
        return Path(directory)

    @classmethod
    def load(cls, directory: str | Path, model: StreamModel) -> Self:
        """Read what `save` wrote, or a published lens (``params.pt``; no code in it is run).

        Raises:
            CheckpointError: There is no lens, it is damaged, or it does not fit the model.
        """
        tensors = _read_tensors(Path(directory))
        depth, width = model.spec.n_layers, model.spec.d_model
        shapes = {(f"{i}.weight", (width, width)) for i in range(depth)}
        shapes |= {(f"{i}.bias", (width,)) for i in range(depth)}
        missing = [name for name, shape in sorted(shapes) if _shape(tensors.get(name)) != shape]
        if missing or f"{depth}.weight" in tensors:
            raise CheckpointError(
                f"a lens for {model.name} must have {depth} translators of width {width}; that of "
                f"{directory} has no fitting {missing[0] if missing else 'number of them'}"
            )
        stacked = (torch.stack([tensors[f"{i}.{n}"] for i in range(depth)]) for n in _NAMES)
        weights, biases = (part.to(model.device, torch.float32) for part in stacked)
        return cls(weights, biases)


_NAMES = ("weight", "bias")


def _translated(stream: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return stream + torch.nn.functional.linear(stream, weight.to(stream), bias.to(stream))


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    safe, pickled = directory / "params.safetensors", directory / "params.pt"
    try:
        if safe.is_file():
            return load_file(safe)
        if pickled.is_file():
            found = torch.load(pickled, map_location="cpu", weights_only=True)
            prefix = "layer_translators."
            return {name.removeprefix(prefix): value for name, value in found.items()}
    except (SafetensorError, OSError, RuntimeError, ValueError, AttributeError, EOFError) as err:
        raise CheckpointError(f"the lens in {directory} is damaged: {err}") from err
    except Exception as err:  # torch wraps what it refuses to unpickle in several classes
        raise CheckpointError(f"the lens in {directory} can't be read safely: {err}") from err
    raise CheckpointError(f"no lens in {directory}: it must hold params.safetensors or params.pt")


@dataclass(frozen=True, kw_only=True)
class TunedLensResult(Result):
    """Held-out KL to the model's output by depth, with and without translators."""

    schema: ClassVar[str] = "resstream.tuned_lens/1"

    model: str
    text: str
    depths: tuple[str, ...]
    tuned_kl_nats: Float[np.ndarray, " depth"]
    logit_kl_nats: Float[np.ndarray, " depth"]
    n_trained: int
    """Tokens that were trained on (with repetitions)."""
    n_held_out: int
    """Tokens that both lenses are judged on: never trained on, first and massive ones left out."""
    warnings: tuple[str, ...]

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a depth."""
        import pandas as pd

        return pd.DataFrame(
            {
                "depth": np.arange(len(self.depths)),
                "point": self.depths,
                "tuned_kl_nats": self.tuned_kl_nats,
                "logit_kl_nats": self.logit_kl_nats,
            }
        )

    def plot(self) -> "go.Figure":
        """Both by depth."""
        from resstream.figures.profile import Series, layer_profile

        series = [
            Series(name="tuned lens", values=self.tuned_kl_nats),
            Series(name="logit lens", values=self.logit_kl_nats, aside=True),
        ]
        return layer_profile(
            series,
            value_title="KL to the model's output, nats per token",
            layer_title="depth: blocks passed (0 is the embedding)",
        )


def tuned_lens(
    model: StreamModel,
    texts: Texts | Corpus = None,
    *,
    config: TunedLensConfig | None = None,
    n_sampled: int | None = 512,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[TunedLens, TunedLensResult]:
    """Train a translator for every depth and judge it on text that it has not seen.

    Streams are computed batch by batch and dropped; only the translators stay.

    Args:
        model: A causal language model; its weights are not changed.
        texts: What it reads, or a corpus made of it.
        config: How to train.
        n_sampled: Held-out tokens to judge on; None takes all.
        seed: Of the order of the batches and of what is held out.
        progress: Called with the tokens that are done and all there are.

    Raises:
        UnsupportedModelError: The model predicts no tokens.
        ConfigError: A value of `config` is out of range.
        TextError: The text has fewer than two sequences.
    """
    model.require_language_model("tuned_lens")
    chosen = config or TunedLensConfig()
    _check(chosen)
    corpus = read_corpus(model, texts, seed=seed)
    training, held_out = _split(corpus, seed)
    lens = TunedLens.untrained(model)
    n_trained = _train(model, lens, training, chosen, seed, progress)
    options: dict[str, Any] = {"n_sampled": n_sampled, "mid": False, "seed": seed}
    tuned = lens_profile(model, held_out, translate=lens, **options)
    plain = lens_profile(model, held_out, **options)
    return lens, TunedLensResult(
        provenance=provenance_of(model, corpus.description, corpus.hash, seed=seed),
        model=model.name,
        text=corpus.description,
        depths=tuned.depths,
        tuned_kl_nats=tuned.reading("kl_nats"),
        logit_kl_nats=plain.reading("kl_nats"),
        n_trained=n_trained,
        n_held_out=int(tuned.n_tokens[0]),
        warnings=tuple(_warnings(tuned, plain)),
    )


def _check(config: TunedLensConfig) -> None:
    if config.learning_rate <= 0 or not 0 <= config.momentum < 1 or config.clip <= 0:
        raise ConfigError(
            "learning_rate and clip must be above 0 and momentum in 0..1, got "
            f"{config.learning_rate}, {config.clip} and {config.momentum}"
        )
    if config.n_tokens is not None and config.n_tokens < 1:
        raise ConfigError(f"n_tokens must be at least 1, got {config.n_tokens}")


def _split(corpus: Corpus, seed: int) -> tuple[Corpus, Corpus]:
    """Sequences to train on and to judge on; whole documents stay together where there are many."""
    units = sorted(set(corpus.documents))
    if len(units) < 2:
        raise TextError("a tuned lens needs at least 2 sequences: one to train on, one to judge on")
    order = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed)).tolist()
    held = {units[index] for index in order[: max(1, round(_HELD_OUT * len(units)))]}

    def part(wanted: bool) -> Corpus:
        rows = [i for i, unit in enumerate(corpus.documents) if (unit in held) == wanted]
        return Corpus(
            sequences=tuple(corpus.sequences[row] for row in rows),
            documents=tuple(corpus.documents[row] for row in rows),
            description=f"{corpus.description}, {'held out' if wanted else 'training'}",
            random=corpus.random,
        )

    return part(wanted=False), part(wanted=True)


def _batches(
    corpus: Corpus, config: TunedLensConfig, seed: int
) -> Iterator[Int[Tensor, "batch pos"]]:
    """Batches in random order, again and again."""
    generator = torch.Generator().manual_seed(seed)
    batches = [batch.tokens for batch in corpus.batches(config.batch_tokens)]
    while True:
        for index in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[index]


def _train(
    model: StreamModel,
    lens: TunedLens,
    corpus: Corpus,
    config: TunedLensConfig,
    seed: int,
    progress: Progress | None,
) -> int:
    points = stream_points(model.spec, mid=False)
    optimizer = torch.optim.SGD(
        [lens.weights, lens.biases],
        lr=config.learning_rate * (1 - config.momentum),
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
    )
    first = optimizer.param_groups[0]["lr"]
    goal, done = config.n_tokens or corpus.n_tokens, 0
    for tokens in _batches(corpus, config, seed):
        optimizer.param_groups[0]["lr"] = first * (1 - done / goal)
        _set_gradients(model, lens, tokens, points, config.clip)
        optimizer.step()
        done += tokens.numel()
        if progress is not None:
            progress(min(done, goal), goal)
        if done >= goal:
            break
    lens.weights.grad = lens.biases.grad = None
    return done


def _set_gradients(
    model: StreamModel,
    lens: TunedLens,
    tokens: Int[Tensor, "batch pos"],
    points: Sequence[Point],
    clip: float,
) -> None:
    """One depth at a time: only one depth's logits are held."""
    streams, output = run_streams(model, tokens, points)
    goal = log_probs(output)
    gradients: list[tuple[Tensor, Tensor]] = []
    for depth, stream in enumerate(streams[:-1]):
        weight = lens.weights[depth].detach().requires_grad_()
        bias = lens.biases[depth].detach().requires_grad_()
        with torch.enable_grad():
            own = log_probs(model.readout(_translated(stream, weight, bias)))
            loss = (goal.exp() * (goal - own)).sum(-1).mean()
            pull, push = torch.autograd.grad(loss, (weight, bias))
        size = torch.sqrt(pull.square().sum() + push.square().sum())
        factor = torch.clamp(clip / (size + 1e-6), max=1.0)
        gradients.append((factor * pull, factor * push))
    lens.weights.grad = torch.stack([pull for pull, _ in gradients])
    lens.biases.grad = torch.stack([push for _, push in gradients])


def _warnings(tuned: LensProfileResult, plain: LensProfileResult) -> Iterator[str]:
    # Not "larger": a lens that was trained to NaN is no better either.
    worse = ~(tuned.reading("kl_nats") < plain.reading("kl_nats"))[:-1]
    if worse.any():
        names = ", ".join(tuned.depths[index] for index in np.flatnonzero(worse)[:5])
        yield (
            f"the tuned lens is no better than the logit lens at {int(worse.sum())} of "
            f"{len(worse)} depths ({names}); train it on more tokens"
        )
