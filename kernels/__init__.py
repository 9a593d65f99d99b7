"""Tensors in, tensors out. Import from the module that defines the name."""
