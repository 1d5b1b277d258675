"""One self-contained page made of results, and the reading of saved results of any kind."""
