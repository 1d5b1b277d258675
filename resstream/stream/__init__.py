"""A network seen as a residual stream and a list of writes into it.

Discovery finds the stream in any torch module and proves what it found; `StreamModel` runs it, with
or without hooks; loading, texts and the base of all results live here too.
"""
