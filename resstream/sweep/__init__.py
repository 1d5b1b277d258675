"""Many variants of one base run: what differs, where from, and how they are run.

`reference` runs every variant as a whole forward with hooks and is the oracle; `walk` runs whole
sequences layer by layer as one growing batch; `packed` runs suffixes behind the base run's keys and
values; `replay` runs one variant at a time from the base run's streams.
"""
