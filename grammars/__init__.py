"""Constrained decoding: specs in, token masks out."""
