"""Can the model hub be asked?  Its client retries for half a minute before it says no."""

import os
import socket
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

_SECONDS = 3.0


@cache
def is_reachable() -> bool:
    """True if a connection to the hub can be opened, or a proxy may do it for us."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE"):
        return False
    if getproxies():
        return True
    place = urlsplit(constants.ENDPOINT)
    port = place.port or (80 if place.scheme == "http" else 443)
    try:
        with socket.create_connection((place.hostname or "", port), timeout=_SECONDS):
            return True
    except OSError:
        return False
