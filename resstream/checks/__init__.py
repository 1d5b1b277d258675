"""Verdicts: passive readings name suspects, experiments on the same text confirm or clear them."""
