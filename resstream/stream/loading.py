"""From a path, a hub id, a GGUF file or a module in memory to a `StreamModel`.

Nothing is unpickled: safetensors are preferred and torch files are read with ``weights_only=True``
(transformers' default).  Code that comes with a checkpoint runs only if the caller says so.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resstream.errors import CheckpointError, ConfigError, UnsupportedModelError
from resstream.stream.hub import is_reachable
from resstream.stream.model import StreamModel
from resstream.stream.quiet import quiet

_LONGEST_NAME = 255
"""Of a file; asking for a longer one is an error of the system."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def load(
    source: "str | Path | nn.Module | StreamModel",
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    tokenizer: Any = None,
    example: Tensor | None = None,
    trust_remote_code: bool = False,
) -> StreamModel:
    """Load a model and discover its residual stream.

    Args:
        source: A Hugging Face directory, a ``.gguf`` file, a hub id, ``"demo"``
            (``"demo:collapsed"``, ``"demo:polluted"``), a module in memory, or a TransformerLens
            bridge.
        dtype: Of the weights; float32 if None, whatever the checkpoint was saved in.  Modules in
            memory keep theirs unless it is given.
        device: Where to run; the CPU if None.  Modules in memory stay where they are.
        tokenizer: Used instead of the checkpoint's own.
        example: One batch of inputs, for own modules that do not read token ids.
        trust_remote_code: Run code that comes with the checkpoint.

    Raises:
        CheckpointError: The checkpoint is missing, damaged or incomplete.
        ConfigError: The device can't be used here.
        UnsupportedModelError: The model is an encoder-decoder.
        DiscoveryError: No single residual stream was found, or its replay differs from the model.
    """
    if isinstance(source, StreamModel):
        return source
    _require_source(source)
    place = _device(device)
    if isinstance(source, nn.Module):
        return _from_module(source, dtype, place, tokenizer, example)
    kind = _dtype(dtype)
    text = str(source)
    with quiet():
        if text.partition(":")[0] == "demo" and not Path(text).exists():
            from resstream.stream.demo import load_demo

            module, own = load_demo(text)
            module.to(dtype=kind)
        else:
            module, own = _from_checkpoint(text, kind, trust_remote_code=trust_remote_code)
    if place is not None:
        module.to(device=place)
    return StreamModel(module, name=text, tokenizer=tokenizer or own, example=example)


def _require_source(source: object) -> None:
    """Callers in a notebook are not type-checked, and the hub has no model named ``None``."""
    if not isinstance(source, str | Path | nn.Module):
        raise CheckpointError(
            f"source must be a path, a hub id or a module, got {type(source).__name__}"
        )
    if str(source) == "":
        raise CheckpointError("source must name a model, got an empty name")


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype or "float32", None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(f"dtype must be float32, float64, bfloat16 or float16, got {dtype!r}")
    return found


def _device(device: str | torch.device | None) -> torch.device | None:
    """The device of that name, if there is one here."""
    if device is None:
        return None
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
        if found.type == "meta":
            raise RuntimeError("it holds no values")
    except (RuntimeError, AssertionError, NotImplementedError) as err:
        raise ConfigError(f"device {str(device)!r} can't be used: {_one_line(err)}") from err
    return found


def _from_module(
    module: nn.Module, dtype: Any, device: Any, tokenizer: Any, example: Tensor | None
) -> StreamModel:
    # A TransformerLens bridge wraps the module it was made from; its blocks are in that one.
    inner = getattr(module, "original_model", None)
    name = type(module).__name__
    if isinstance(inner, nn.Module):
        tokenizer = tokenizer or getattr(module, "tokenizer", None)
        module = inner
    if dtype is not None or device is not None:
        module.to(device=device, dtype=_dtype(dtype) if dtype is not None else None)
    return StreamModel(module, name=name, tokenizer=tokenizer, example=example)


def _from_checkpoint(
    text: str, dtype: torch.dtype, *, trust_remote_code: bool
) -> tuple[nn.Module, Any]:
    place, gguf = _locate(text)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if gguf is not None:
        options["gguf_file"] = gguf
    is_id = not Path(place).exists()
    if is_id and not is_reachable():
        options["local_files_only"] = True  # what was fetched before can still be used
    try:
        config = _config(place, options)
        module = _weights(place, config, dtype, options)
    except (UnsupportedModelError, CheckpointError):
        raise
    except Exception as err:  # many libraries read a checkpoint; all of them fail in their own way
        if options.get("local_files_only"):
            raise CheckpointError(
                f"no such file or directory: {text}; nor is it in the cache of the model hub, "
                "which can't be reached from here"
            ) from err
        where = _damaged_file(place) or text
        raise CheckpointError(f"cannot load {where}: {_one_line(err)}") from err
    return module, _tokenizer(place, options)


def _locate(text: str) -> tuple[str, str | None]:
    """Where `from_pretrained` should look, and the GGUF file there, if it is one."""
    path = Path(text).expanduser()
    if len(path.name) > _LONGEST_NAME:
        raise CheckpointError(f"no such checkpoint: {text[:60]}...")
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{text} is a file; pass its directory (or a .gguf file)")
        return str(path.parent), path.name
    if path.is_dir():
        if (path / "config.json").is_file():
            return str(path), None
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return str(path), found[0].name
        raise CheckpointError(f"{text} has no config.json; a checkpoint directory needs one")
    looks_like_path = (
        text.startswith((".", "/", "~")) or text.count("/") > 1 or path.suffix == ".gguf"
    )
    if looks_like_path:
        raise CheckpointError(f"no such checkpoint: {text}")
    return text, None


def _config(place: str, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    from resstream.nn.pretrained import register_auto_classes

    register_auto_classes()
    file = Path(place) / "config.json"
    if file.is_file():
        try:
            json.loads(file.read_text("utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as err:
            raise CheckpointError(f"{file} is not JSON: {err}") from err
    config = AutoConfig.from_pretrained(place, **options)
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{place} is an encoder-decoder ({config.model_type}): it has two streams, and "
            "resstream follows one"
        )
    return config


def _weights(place: str, config: Any, dtype: torch.dtype, options: dict[str, Any]) -> nn.Module:
    import transformers

    extra = dict(options)
    if "gguf_file" in options and hasattr(transformers, "GgufConfig"):
        extra["quantization_config"] = transformers.GgufConfig(dequantize=True)
    module, report = _model_class(config).from_pretrained(
        place,
        config=config,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused here, with their names
        **extra,
    )
    _require_all_weights(place, report)
    return module


def _require_all_weights(place: str, report: dict[str, Any]) -> None:
    """Refuse weights that are missing or of another shape; say which ones had no place."""
    mismatched = sorted(report.get("mismatched_keys", ()), key=str)
    if mismatched:
        name, found, wanted = mismatched[0]
        raise CheckpointError(
            f"{len(mismatched)} weights of {place} do not have the shape that config.json asks "
            f"for, first {name}: {tuple(found)} instead of {tuple(wanted)}"
        )
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise CheckpointError(
            f"{place} lacks {len(missing)} of the model's weights, first {missing[0]}; "
            "it is incomplete"
        )
    unused = sorted(report.get("unexpected_keys", ()))
    if unused:
        warnings.warn(
            f"{len(unused)} weights of {place} are not used by the model that config.json "
            f"describes, first {unused[0]}",
            stacklevel=5,
        )


def _damaged_file(place: str) -> Path | None:
    """The first safetensors file of a directory that can't be opened."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(Path(place).glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError):
            return file
    return None


def _model_class(config: Any) -> Any:
    """The class that the checkpoint was saved from, if transformers has it, else the causal one."""
    import transformers

    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return transformers.AutoModelForCausalLM


def _tokenizer(place: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    has_files = any((Path(place) / name).is_file() for name in _TOKENIZER_FILES)
    if Path(place).is_dir() and "gguf_file" not in options and not has_files:
        return None
    try:
        return AutoTokenizer.from_pretrained(place, **options)
    except Exception as err:  # a checkpoint without a usable tokenizer is still a model to look at
        warnings.warn(f"going on without the tokenizer of {place}: {_one_line(err)}", stacklevel=4)
        return None


def _one_line(err: Exception) -> str:
    text = " ".join(str(err).split()) or type(err).__name__
    if "weights_only" in text:  # torch's advice there is to switch the protection off
        return (
            "its torch file holds more than tensors, which may be code; convert it to safetensors"
        )
    return text if len(text) < 300 else text[:297] + "..."
