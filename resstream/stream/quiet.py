"""Keep the libraries' progress bars and advice off the terminal while they read or save."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from logging import CRITICAL
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers and the hub's client inside the context; they are as before afterwards.

    What fails is raised, and said once by who catches it.
    """
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    level, bars, hub_level = (
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        hub.get_verbosity(),
    )
    logging.set_verbosity_error()
    hub.set_verbosity(CRITICAL)
    logging.disable_progress_bar()
    try:
        with _quiet_gguf():
            yield
    finally:
        logging.set_verbosity(level)
        hub.set_verbosity(hub_level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _quiet_gguf() -> Iterator[None]:
    """The reader of GGUF files draws a bar of its own, which no setting reaches."""
    reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    bar = reader.tqdm
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar
