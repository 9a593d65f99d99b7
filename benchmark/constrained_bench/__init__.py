"""Parts of constrained.py: what decoding under a grammar costs, and what it gives."""
