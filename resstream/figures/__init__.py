"""Plotly figures from plain arrays and labels; knows no result and no model."""
