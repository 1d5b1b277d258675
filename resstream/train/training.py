"""How is a native model trained from a configuration?  Thin glue over transformers' Trainer.

A run is a directory: the checkpoint itself (``config.json``, weights, tokenizer), ``training.yaml``
with every default spelled out, ``result.json`` and its tables, ``checkpoints/`` to go on from, and
``monitor/`` (see `resstream.train.series`).
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resstream.errors import CheckpointError, ConfigError, DiscoveryError, OutputError
from resstream.nn.pretrained import ResstreamConfig, ResstreamForCausalLM, register_auto_classes
from resstream.nn.rates import parameter_groups
from resstream.stream.files import write_directory
from resstream.stream.model import StreamModel
from resstream.stream.provenance import Provenance, package_versions, provenance_of
from resstream.stream.quiet import quiet
from resstream.stream.tensor_files import TensorFile
from resstream.train.config import RunConfig, read_config, write_config
from resstream.train.interruption import TrainingInterrupted, heeding_interrupts
from resstream.train.log import Log, LogCallback
from resstream.train.monitor import Monitor
from resstream.train.result import TrainingResult
from resstream.train.series import open_series
from resstream.train.tokenizer import load_tokenizer, make_tokenizer
from resstream.train.windows import Windows, documents_of, make_windows

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

_CONFIG, _CHECKPOINTS, _MONITOR = "training.yaml", "checkpoints", "monitor"
_MAY_CHANGE = (
    "output",
    "training.steps",
    "training.save_every",
    "training.keep",
    "training.evaluate_every",
    "training.log_every",
    "training.tensorboard",
    "text.files",
    "text.validation",
    "text.hash",
)
"""What may differ when a run is resumed; that the text is the same is seen by its hash."""


@dataclass(frozen=True, slots=True)
class Data:
    """What a run reads."""

    tokenizer: Any
    windows: Windows
    held_out: Windows | None
    description: str


def run_training(
    config: RunConfig,
    *,
    resume: bool = False,
    device: str | None = None,
    log: Log | None = None,
) -> TrainingResult:
    """Train a native model and leave a checkpoint that every verb reads.

    The first interrupt (Ctrl-C, or SIGTERM) ends the run after the step, with a checkpoint to
    resume from; the second ends it at once.

    Args:
        config: The run; `output` must be set.
        resume: Go on from the last checkpoint in `output`.
        device: ``cpu`` (None), or ``cuda`` or ``mps`` where there is one.
        log: Called every `log_every` steps.

    Raises:
        ConfigError: The device can't be used, or a resumed run is another one.
        OutputError: `output` can't be written, or holds a run already.
        TextError: The text can't be used.
        NonFiniteError: A value is not finite; the checkpoints are from before.
        TrainingInterrupted: It was interrupted.
    """
    if config.output is None:
        raise ConfigError("output must be the directory of the run, got None; or pass --out")
    place = config.output
    last = _last_checkpoint(place) if resume else _refuse_a_run(place)
    data = _prepare(config, place, resume=resume)
    if last is not None:
        _require_same(read_config(place / _CONFIG), config, data.windows.hash)
        _require_unfinished(place, last, config.training.steps)
    trainer, monitor = _trainer(config, data, place, device, log)
    _write_start(config, data, place)
    with quiet(), heeding_interrupts(trainer) as interrupts:
        try:
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        except DiscoveryError as err:
            raise ConfigError(f"monitor must be false for this model, got true: {err}") from err
    if interrupts.heeded:
        raise TrainingInterrupted(trainer.state.global_step, place)
    scores = _evaluated(trainer)
    model: Any = trainer.model
    _save(model.cpu(), data.tokenizer, place)
    result = _result(config, data, trainer, monitor, scores, last)
    result.save(place)
    return result


def _refuse_a_run(place: Path) -> None:
    """A run must not be lost under another."""
    for name in (_CONFIG, "config.json"):
        if (place / name).exists():
            raise OutputError(
                f"{place} holds a run already ({name}); choose another directory, or go on with "
                "--resume"
            )


def _last_checkpoint(place: Path) -> Path:
    from transformers.trainer_utils import get_last_checkpoint

    folder = place / _CHECKPOINTS
    found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    if found is None or not (place / _CONFIG).exists():
        raise ConfigError(f"--resume needs a checkpoint in {folder}, there is none")
    return Path(found)


def _require_unfinished(place: Path, last: Path, steps: int) -> None:
    """A finished run is left as it is, and a damaged checkpoint is named."""
    done = int(last.name.rpartition("-")[2])
    if done >= steps and (place / "config.json").exists():
        raise ConfigError(
            f"nothing to resume: {place} has {done} of {steps} steps; ask for more --steps"
        )
    for file in sorted(last.glob("*.safetensors")):
        try:
            TensorFile(file)
        except CheckpointError as err:
            raise CheckpointError(f"{err}; remove {last} to resume from the one before") from err


def _prepare(config: RunConfig, place: Path, *, resume: bool) -> Data:
    documents, said = documents_of(config.text.files)
    n_ctx = config.shape(d_vocab=257).n_ctx
    if resume:
        tokenizer = load_tokenizer(str(place))
    else:
        tokenizer = make_tokenizer(config.tokenizer, documents, n_ctx=n_ctx)
    windows, held_out = make_windows(
        config.text, documents, tokenizer, length=n_ctx, batch=config.training.batch
    )
    return Data(tokenizer, windows, held_out, f"{len(windows)} windows of {n_ctx} tokens of {said}")


def _require_same(old: RunConfig, new: RunConfig, text_hash: str) -> None:
    """A resumed run must be the same run."""
    if old.text.hash != text_hash:
        raise ConfigError(
            f"--resume needs the same text: its hash was {old.text.hash}, now it is {text_hash}"
        )
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key) and key not in _MAY_CHANGE:
            raise ConfigError(
                f"--resume needs the same configuration: {key} was {before.get(key)!r}, "
                f"got {after.get(key)!r}"
            )


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _write_start(config: RunConfig, data: Data, place: Path) -> None:
    """What a resumed run needs, before the first step."""
    text = config.text.model_copy(update={"hash": data.windows.hash})
    with write_directory(place) as part:
        write_config(part / _CONFIG, config.model_copy(update={"text": text}))
        data.tokenizer.save_pretrained(part)


def _trainer(
    config: RunConfig, data: Data, place: Path, device: str | None, log: Log | None
) -> tuple["Trainer", Monitor | None]:
    from torch.optim import AdamW
    from transformers import PrinterCallback, ProgressCallback, Trainer, set_seed

    asked = config.training
    set_seed(asked.seed)
    with quiet():
        model = _model(config, data.tokenizer)
        groups = parameter_groups(
            model, model.model.config, asked.learning_rate, weight_decay=asked.weight_decay
        )
        # Reports and Trainer's own log read the first group: let it be one at the full rate.
        groups.sort(key=lambda group: abs(group["lr"] - asked.learning_rate))
        trainer = Trainer(
            model=model,
            args=_arguments(config, place, device),
            train_dataset=data.windows,
            eval_dataset=data.held_out,
            optimizers=(AdamW(groups, betas=asked.betas), None),  # type: ignore[arg-type]
        )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    if log is not None:
        trainer.add_callback(LogCallback(log))
    monitor = None
    if config.monitor is not None:
        settings = config.monitor
        monitor = Monitor(
            place / _MONITOR,
            stop_at_non_finite=settings.stop_at_non_finite,
            positions=settings.positions,
        )
        monitor.text, monitor.text_hash = data.description, data.windows.hash
        trainer.add_callback(monitor)
    return trainer, monitor


def _model(config: RunConfig, tokenizer: Any) -> ResstreamForCausalLM:
    register_auto_classes()
    end = tokenizer.eos_token_id
    ids = {"eos_token_id": end, "pad_token_id": end, "bos_token_id": tokenizer.bos_token_id}
    model = ResstreamForCausalLM(ResstreamConfig.of(config.shape(len(tokenizer)), **ids))
    model.model.gradient_checkpointing = config.training.checkpointed
    return model


def _arguments(config: RunConfig, place: Path, device: str | None) -> "TrainingArguments":
    from transformers import TrainingArguments

    asked = config.training
    on_cpu = device in (None, "cpu")
    if asked.dtype == "float16" and on_cpu:
        raise ConfigError("training.dtype must be float32 or bfloat16 on a CPU, got 'float16'")
    if asked.tensorboard:
        _require_tensorboard()
    schedules = {"constant": "constant_with_warmup"}
    try:
        arguments = TrainingArguments(
            output_dir=str(place / _CHECKPOINTS),
            max_steps=asked.steps,
            per_device_train_batch_size=asked.batch,
            per_device_eval_batch_size=asked.batch,
            gradient_accumulation_steps=asked.accumulate,
            learning_rate=asked.learning_rate,
            lr_scheduler_type=schedules.get(asked.schedule, asked.schedule),
            warmup_steps=asked.warmup_steps,
            max_grad_norm=asked.clip,
            seed=asked.seed,
            bf16=asked.dtype == "bfloat16",
            fp16=asked.dtype == "float16",
            save_strategy="steps",
            save_steps=asked.save_every or asked.steps,
            save_total_limit=asked.keep,
            eval_strategy="steps" if asked.evaluate_every else "no",
            eval_steps=asked.evaluate_every,
            prediction_loss_only=True,
            logging_steps=asked.log_every,
            logging_nan_inf_filter=False,
            report_to=["tensorboard"] if asked.tensorboard else [],
            use_cpu=on_cpu,
            dataloader_pin_memory=not on_cpu,
            disable_tqdm=True,
        )
        if not on_cpu and arguments.device.type != str(device).partition(":")[0]:
            raise ValueError(f"there is {arguments.device.type} only")
    except (ValueError, RuntimeError, ImportError) as err:
        raise ConfigError(f"device {device or 'cpu'!r} can't be used for this run: {err}") from err
    return arguments


def _require_tensorboard() -> None:
    from importlib.util import find_spec

    if find_spec("tensorboard") is None:
        raise ConfigError(
            "training.tensorboard must be false where tensorboard is not installed, got True; "
            "pip install 'resstream[train]'"
        )


def _evaluated(trainer: "Trainer") -> dict[str, float]:
    """Loss on the validation text at the end of the run, if it was not measured there already."""
    if trainer.eval_dataset is None:
        return {}
    done = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    if done and done[-1]["step"] == trainer.state.global_step:
        return {"eval_loss": done[-1]["eval_loss"]}
    with quiet():
        return trainer.evaluate()


def _save(model: Any, tokenizer: Any, place: Path) -> None:
    with quiet(), write_directory(place) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)


def _result(
    config: RunConfig,
    data: Data,
    trainer: "Trainer",
    monitor: Monitor | None,
    scores: dict[str, float],
    resumed: Path | None,
) -> TrainingResult:
    history = trainer.state.log_history
    model: Any = trainer.model
    provenance = _provenance(config, data, model)
    recording = None if monitor is None else monitor.recording
    if recording is not None:
        recording = dataclasses.replace(recording, provenance=provenance)
    logged, losses = _logged(config, history)
    # The last measurement is that of the whole run, though one step may have two.
    measured = {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}
    steps = trainer.state.global_step
    tokens = steps * config.training.batch * config.training.accumulate * model.config.shape.n_ctx
    return TrainingResult(
        provenance=provenance,
        directory=str(config.output),
        rule=model.config.shape.rule.kind,
        n_layers=model.config.shape.n_layers,
        d_model=model.config.shape.d_model,
        n_parameters=sum(value.numel() for value in model.parameters()),
        n_steps=steps,
        n_tokens=tokens * trainer.args.world_size,
        resumed_from=None if resumed is None else int(resumed.name.rpartition("-")[2]),
        logged_steps=np.array(logged, dtype=np.int64),
        logged_loss=np.array(losses, dtype=np.float64),
        validation_steps=np.array(list(measured), dtype=np.int64),
        validation_loss=np.array(list(measured.values()), dtype=np.float64),
        final_loss=losses[-1] if losses else math.nan,
        final_validation_loss=scores.get("eval_loss"),
        recording=recording,
    )


def _logged(config: RunConfig, history: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    """Steps of the log, and the mean loss since the entry before each.

    The monitor's series is exact; Trainer forgets, when it is resumed, what came before.
    """
    entries = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    steps = [step for step, _ in entries]
    if config.monitor is None or config.output is None:
        return steps, [loss for _, loss in entries]
    layout, rows = open_series(config.output / _MONITOR)
    parts = layout.split(rows)
    ends = np.searchsorted(parts["step"], steps, side="right")
    spans = itertools.pairwise([0, *ends.tolist()])
    return steps, [float(parts["loss"][a:b].mean(dtype=np.float64)) for a, b in spans]


def _provenance(config: RunConfig, data: Data, module: Any) -> Provenance:
    """Also of a model whose stream is not a single one, such as residual attention's."""
    seed = config.training.seed
    try:
        stream = StreamModel(module, name=str(config.output), tokenizer=data.tokenizer)
        return provenance_of(stream, data.description, data.windows.hash, seed=seed)
    except DiscoveryError:
        return Provenance(
            model=str(config.output),
            model_hash="",
            text=data.description,
            text_hash=data.windows.hash,
            dtype=str(module.dtype).removeprefix("torch."),
            device=str(module.device),
            seed=seed,
            replay_error=math.nan,
            versions=package_versions(),
        )
