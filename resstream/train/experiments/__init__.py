"""Experiments that show or refute what is claimed about residual connections, minutes on a CPU."""
