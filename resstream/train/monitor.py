"""What happens in every layer while a model trains?  A callback for transformers' Trainer.

>>> trainer = Trainer(model, args, train_dataset=windows, callbacks=[rs.Monitor()])
>>> trainer.train()
>>> rs.load_result("run/monitor").plot("gradient_norm")
"""

import math
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback  # noqa: TID253  Trainer takes nothing else

from resstream.errors import ConfigError, NonFiniteError
from resstream.stream.model import StreamModel
from resstream.stream.provenance import provenance_of
from resstream.train.gradients import GradientNorms, gradient_groups
from resstream.train.recording import TrainingRecording, read_recording
from resstream.train.series import Layout, SeriesWriter
from resstream.train.watching import StreamWatch


class Monitor(TrainerCallback):
    """Records every step of a training run: writes, stream, scales, gradients, the first bad value.

    Works on any model whose stream can be discovered, native or not, and changes nothing in the
    run.  The series grows on disk (`resstream.train.series`), so that memory does not; at the end
    it is saved as a `TrainingRecording`, which `resstream.load_result` and ``resstream report``
    read.

    Args:
        directory: Where the series goes; ``monitor`` in the output directory of Trainer if None.
        stop_at_non_finite: Stop before the first bad value gets into the weights.
        positions: How many positions of a sequence are sampled at most, evenly spaced.  Looking for
            values that are not finite reads all of them.

    Raises:
        ConfigError: `positions` is below 2.
        DiscoveryError: The model's stream can't be found (when training begins).
        NonFiniteError: A value is not finite and `stop_at_non_finite` is set (while it trains).
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        stop_at_non_finite: bool = False,
        positions: int = 32,
    ) -> None:
        if positions < 2:
            raise ConfigError(f"positions must be at least 2, got {positions}")
        self.directory = None if directory is None else Path(directory)
        self.recording: TrainingRecording | None = None
        """The series so far, as of the last time that training ended."""
        self.text, self.text_hash = "the data of a Trainer", ""
        """What the provenance says of the text."""
        self._stop = stop_at_non_finite
        self._positions = positions
        self._model: StreamModel | None = None
        self._watch: StreamWatch | None = None
        self._gradients: GradientNorms | None = None
        self._series: SeriesWriter | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the stream, hook it, open the series."""
        del control
        self.close()
        if not state.is_world_process_zero:
            return
        if self.directory is None:
            self.directory = Path(args.output_dir) / "monitor"
        model = _discover(kwargs["model"])
        watch = StreamWatch(model, positions=self._positions)
        self._model, self._watch = model, watch
        self._gradients = GradientNorms(gradient_groups(model))
        watch.before_forward = self._gradients.begin
        self._layout = _layout(model, watch)
        self._series = SeriesWriter(self.directory, self._layout, done=state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the row of this step, while the weights are still those that made it."""
        del control
        if self._watch is None or self._gradients is None or self._series is None:
            return
        scaler = getattr(kwargs.get("optimizer"), "scaler", None)
        gradients = self._gradients.take(1.0 if scaler is None else float(scaler.get_scale()))
        loss, stop = self._watch.take_loss(), self._watch.take_first_bad()
        # A scaler looks for gradients that overflow by itself, and leaves the step out.
        bad = self._bad_place(stop, loss, gradients if scaler is None else [])
        ledger, step = self._watch.ledger(), state.global_step + 1
        rates = kwargs["lr_scheduler"].get_last_lr() if kwargs.get("lr_scheduler") else [math.nan]
        row = self._layout.row(
            step=step,
            loss=loss,
            learning_rate=rates[0],
            bad=bad,
            gradients=gradients,
            writes=ledger.writes,
            scale=self._watch.scales(),
            stream_norm=ledger.streams,
        )
        self._series.append(row)
        if bad >= 0 and self._stop:
            place = self._layout.places[bad]
            self._finish(seed=args.seed)
            raise NonFiniteError(
                f"every value must be finite, and at step {step} {place} was not, the first in the "
                f"order of execution; the weights are still those of step {step - 1}"
            )

    def _bad_place(self, stop: int | None, loss: float, gradients: list[float]) -> int:
        """Index into the layout's places of the first that is bad; -1 if none is."""
        assert self._watch is not None
        n_stops = len(self._watch.route.stops)
        if stop is not None:
            return stop
        if math.isinf(loss) or (math.isnan(loss) and self._watch.has_loss):
            return n_stops
        if (
            gradients
            and not math.isfinite(gradients[-1])
            and all(map(math.isfinite, gradients[:-1]))
        ):
            return len(self._layout.places) - 1
        bad = [layer for layer, norm in enumerate(gradients[:-1]) if not math.isfinite(norm)]
        return n_stops + 1 + max(bad) if bad else -1  # backward begins at the last block

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint counts on the series up to it."""
        del args, state, control, kwargs
        if self._series is not None:
            self._series.flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the hooks off and save the recording."""
        del state, control, kwargs
        self._finish(seed=args.seed)

    def _finish(self, *, seed: int) -> None:
        if self._model is None or self._series is None or self.directory is None:
            return
        model = self._model
        self.close()
        provenance = provenance_of(model, self.text, self.text_hash, seed=seed)
        self.recording = read_recording(self.directory, provenance)
        self.recording.save(self.directory)

    def close(self) -> None:
        """Take all hooks off the model; done by itself when training ends or is stopped."""
        for part in (self._watch, self._gradients, self._series):
            if part is not None:
                part.close()
        self._watch = self._gradients = self._series = self._model = None


def _discover(module: nn.Module) -> StreamModel:
    """The stream of a model that is about to train, which is left in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    # accelerate puts autocast in the place of `forward`; the proof wants the model's own.
    wrapped = vars(module).pop("forward", None)
    try:
        return StreamModel(module, name=_name(module))
    finally:
        if wrapped is not None:
            module.forward = wrapped
        for part, mode in modes:
            part.training = mode


def _name(module: nn.Module) -> str:
    given = getattr(getattr(module, "config", None), "name_or_path", "")
    return given or type(module).__name__


def _layout(model: StreamModel, watch: StreamWatch) -> Layout:
    spec = model.spec
    return Layout(
        model=model.name,
        layers=tuple(write.layer for write in spec.writes),
        names=tuple(write.name for write in spec.writes),
        sites=tuple(write.site for write in spec.writes),
        stream_sites=watch.route.points,
        scale_layers=tuple(layer for layer, _ in watch.scale_places),
        scale_names=tuple(name for _, name in watch.scale_places),
        n_blocks=len(spec.blocks),
        places=(
            *(stop.site for stop in watch.route.stops),
            "the loss",
            *(f"the gradient of {block.module}" for block in spec.blocks),
            "the gradient of the parameters outside of the blocks",
        ),
    )
