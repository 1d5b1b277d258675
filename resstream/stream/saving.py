"""Write a model back to disk in Hugging Face's form: safetensors, config, tokenizer."""

from pathlib import Path

from resstream.errors import OutputError, UnsupportedModelError
from resstream.stream.files import write_directory
from resstream.stream.model import StreamModel
from resstream.stream.quiet import quiet


def save_model(model: StreamModel, directory: str | Path) -> Path:
    """Save weights, config and tokenizer of `model`; whole or not at all.

    Raises:
        OutputError: The directory can't be written, or holds a checkpoint already.
        UnsupportedModelError: The module has no `save_pretrained`.
    """
    save = getattr(model.module, "save_pretrained", None)
    if save is None:
        raise UnsupportedModelError(
            f"{model.name} is no Hugging Face model; save its state_dict with safetensors"
        )
    require_free(directory)
    with quiet(), write_directory(directory) as part:
        save(part)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(part)
    return Path(directory)


def require_free(directory: str | Path) -> None:
    """Refuse to write a checkpoint over another one.

    Raises:
        OutputError: There is one.
    """
    if (Path(directory) / "config.json").exists():
        raise OutputError(
            f"{directory} holds a checkpoint already; choose another directory, or remove it first"
        )
