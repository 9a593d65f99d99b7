"""The frontend language: programs that call a model many times."""
