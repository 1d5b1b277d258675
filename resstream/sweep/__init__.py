"""Many variants of one base run: what differs, where from, and how they are run.

`reference` runs every variant as a whole forward with hooks and is the oracle; `walk` runs whole
sequences layer by layer as one growing batch; `packed` runs suffixes behind the base run's keys and
values; `replay` keeps a base run for experiments that start from its streams.  `activations` lets
those that are written out in many passes be one kernel while a sweep runs.
"""
