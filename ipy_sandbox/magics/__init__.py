"""The IPython extension."""
