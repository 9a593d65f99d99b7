"""From a model path to a folder, and from a folder to weights."""
