"""Training through transformers' Trainer: a checked configuration, and a monitor of every write.

`monitor` holds the callback, for any model; `training` the thin glue of `resstream train`.
"""
