"""What does a training run need to be told?  One schema, which refuses what it does not know."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from resstream.errors import ConfigError
from resstream.nn.config import TransformerConfig

Whole = Annotated[int, Field(ge=1, strict=True)]
Schedule = Literal["linear", "cosine", "constant", "inverse_sqrt"]
"""What the learning rate does after the warm-up."""
TrainingDtype = Literal["float32", "bfloat16", "float16"]
"""What matrices are multiplied in; weights, stream and gates are float32 (autocast)."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Files = Annotated[tuple[Path, ...], BeforeValidator(_listed)]


class Text(_Section):
    """What is read; files are .txt (one document), .jsonl or .parquet (one a row, ``text``)."""

    files: Files | None = None
    """None: the text that comes with resstream, which is enough to try things out."""
    validation: Files | None = None
    """Files that are only measured on; None: the end of `files`."""
    validation_share: Annotated[float, Field(ge=0.0, le=0.5)] = 0.05
    """How much of `files` is kept for that, where there is no `validation`; 0: nothing is."""
    hash: str | None = None
    """SHA-256 of the token ids (first 16 hex digits), to refuse any other text."""


class BytesTokenizer(_Section):
    """One token a byte, and one for the end of a document: 257 in all."""

    kind: Literal["bytes"] = "bytes"


class BpeTokenizer(_Section):
    """Byte-level BPE (Sennrich et al. 2016), learned from the text that is trained on."""

    kind: Literal["bpe"] = "bpe"
    d_vocab: Annotated[int, Field(ge=257, strict=True)] = 1024


class SavedTokenizer(_Section):
    """The tokenizer of a directory or hub id."""

    kind: Literal["saved"] = "saved"
    path: str


TokenizerConfig = Annotated[
    BytesTokenizer | BpeTokenizer | SavedTokenizer, Field(discriminator="kind")
]


class Training(_Section):
    """How long, how fast, how exact."""

    steps: Whole
    """Updates of the weights."""
    batch: Whole = 8
    """Windows of one forward pass (on each device)."""
    accumulate: Whole = 1
    """Forward passes of one step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak; the residual rule may give parts of the model a factor of it."""
    schedule: Schedule = "cosine"
    warmup_steps: Annotated[int, Field(ge=0, strict=True)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Of matrices and embeddings, decoupled (Loshchilov and Hutter 2019)."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.95,
    )
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the whole gradient; 0: it is not clipped."""
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    """Of weights, order of the windows, and dropout."""
    dtype: TrainingDtype = "float32"
    checkpointed: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    save_every: Whole | None = None
    """Steps from checkpoint to checkpoint; None: at the end, and when interrupted."""
    keep: Whole = 2
    """How many checkpoints are kept."""
    evaluate_every: Whole | None = None
    """Steps between measurements on the validation text; None: at the end."""
    log_every: Whole = 10
    tensorboard: bool = False
    """Write its event files too; needs tensorboard."""


class Monitoring(_Section):
    """The monitor, see `resstream.train.monitor.Monitor`."""

    positions: Annotated[int, Field(ge=2, strict=True)] = 32
    stop_at_non_finite: bool = True


def _kind_alone(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


def _one_or_many(value: object) -> object:
    return {"files": value} if isinstance(value, str | list) else value


def _off(value: object) -> object:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class RunConfig(_Section):
    """All that `resstream train` reads from YAML."""

    model: dict[str, Any]
    """Fields of `resstream.nn.config.TransformerConfig` but `d_vocab`, which the tokenizer sets."""
    training: Training
    text: Annotated[Text, BeforeValidator(_one_or_many)] = Text()
    tokenizer: Annotated[TokenizerConfig, BeforeValidator(_kind_alone)] = BytesTokenizer()
    monitor: Annotated[Monitoring | None, BeforeValidator(_off)] = Monitoring()
    """``false``: none."""
    output: Path | None = None
    """Directory of the checkpoint, the result and all that belongs to the run."""

    def shape(self, d_vocab: int) -> TransformerConfig:
        """The native config for a vocabulary of that size.

        Raises:
            ConfigError: A key of the model is unknown or missing, or a value is not allowed.
        """
        if "d_vocab" in self.model:
            raise ConfigError(
                f"model.d_vocab must not be given, got {self.model['d_vocab']!r}; the tokenizer "
                f"sets it ({d_vocab})"
            )
        known = [name for name in TransformerConfig.__dataclass_fields__ if name != "d_vocab"]
        for key, value in self.model.items():
            if key not in known:
                raise ConfigError(_unknown(f"model.{key}", value, known))
        try:
            return TransformerConfig.from_dict({**self.model, "d_vocab": d_vocab})
        except ConfigError as err:
            raise ConfigError(f"model: {err}") from err


_SECTIONS: dict[str, type[BaseModel]] = {
    "": RunConfig,
    "text": Text,
    "training": Training,
    "monitor": Monitoring,
    "tokenizer.bytes": BytesTokenizer,
    "tokenizer.bpe": BpeTokenizer,
    "tokenizer.saved": SavedTokenizer,
}


def read_config(path: str | Path, **changes: object) -> RunConfig:
    """Read a run from YAML.

    Args:
        path: The file.
        changes: Values that take the place of those in the file, by dotted key with ``__`` for the
            dot; None changes nothing.

    Raises:
        ConfigError: The file can't be read, a key is unknown or missing, or a value is not allowed;
            the message has the key, the value and what is allowed.
    """
    try:
        plain = yaml.load(Path(path).read_text("utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read {path}: {getattr(err, 'strerror', None) or err}") from err
    except yaml.YAMLError as err:
        raise ConfigError(f"{path} is not YAML: {err}") from err
    if not isinstance(plain, dict):
        raise ConfigError(f"{path} must hold a mapping, got {plain!r:.60}")
    for key, value in changes.items():
        if value is not None:
            _put(plain, key.split("__"), value)
    try:
        config = RunConfig.model_validate(plain)
        config.shape(d_vocab=257)  # refuse a bad model before any text is read
    except ValidationError as err:
        raise ConfigError(f"{path}: {_first(err)}") from err
    except ConfigError as err:
        raise ConfigError(f"{path}: {err}") from err
    return config


def write_config(path: Path, config: RunConfig) -> None:
    """Write a run so that `read_config` reads it back, defaults spelled out."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    path.write_text(text, encoding="utf-8")


def _put(plain: dict[str, Any], keys: list[str], value: object) -> None:
    *sections, last = keys
    for key in sections:
        inner = plain.get(key)
        if inner is None or not isinstance(inner, dict):
            inner = plain[key] = {} if inner is None else cast(Any, _one_or_many(inner))
        plain = inner
    plain[last] = value


def _first(err: ValidationError) -> str:
    """The first thing that is wrong, in one line: key, value, what is allowed."""
    found = err.errors()[0]
    path = ".".join(str(part) for part in found["loc"])
    place, _, _ = path.rpartition(".")
    if found["type"] == "extra_forbidden":
        known = list(_SECTIONS[place].model_fields) if place in _SECTIONS else []
        return _unknown(path, found["input"], known)
    if found["type"] == "missing":
        return f"{path} is missing; it has no default"
    allowed = re.sub(r"^.*?should (be|have) ", r"\1 ", found["msg"]).removeprefix("be ")
    if found["type"] == "union_tag_invalid":
        allowed = f"of a kind in {found.get('ctx', {}).get('expected_tags')}"
    return f"{path} must be {allowed}, got {found['input']!r}"


def _unknown(path: str, value: object, known: list[str]) -> str:
    section = path.rpartition(".")[0] or "the file"
    return f"{path}: {value!r} has an unknown key; known keys of {section}: {', '.join(known)}"


class _Loader(yaml.SafeLoader):
    """YAML without two of its traps: ``1e-3`` is a number, and no key may stand there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that comes twice, the first of which would be lost in silence."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float) and key in seen:
                raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: {key!r} stands twice")
            seen.add(key if isinstance(key, str | int | float) else id(key_node))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
