"""Every error that resstream raises on purpose, in one place.

The command line prints a `ResstreamError` as one line and exits with status 2; anything else is a
bug and keeps its traceback.  A class of its own exists only where a caller would want to catch it.
"""


class ResstreamError(Exception):
    """Root of all errors whose message is meant for the person at the keyboard."""


class CheckpointError(ResstreamError):
    """A checkpoint is missing, damaged, or of a kind that can't be read safely."""


class DiscoveryError(ResstreamError):
    """No residual stream could be found (or proved) in a module."""


class UnsupportedModelError(ResstreamError):
    """The model is understood, but this analysis does not apply to it."""


class UnknownSiteError(ResstreamError, LookupError):
    """A site name fits no site of this model."""


class SilentHookError(ResstreamError):
    """A hook was attached to a site that the run never reached."""


class TextError(ResstreamError, ValueError):
    """A text, a text file or a set of token ids can't be used."""


class ConfigError(ResstreamError, ValueError):
    """A configuration has an unknown key or a value that is not allowed."""


class OutputError(ResstreamError, OSError):
    """An output path can't be written."""


class ResultError(ResstreamError, ValueError):
    """A saved result is missing, damaged, or of an unknown schema."""


class NonFiniteError(ResstreamError):
    """A training run met a value that is NaN or infinite, and was asked to stop there."""
