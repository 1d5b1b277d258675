"""One pass over a text: statistics of every write, kept online in memory that does not grow.

`record` runs the model and gives a `Recording`; activations go to disk if they are asked for.
"""
