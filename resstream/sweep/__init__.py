"""Many variants of one base run: what differs, where from, and how they are run.

`reference` runs every variant as a whole forward with hooks and is the oracle; `replay` starts each
variant from the base run's stream.
"""
