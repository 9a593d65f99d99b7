"""Slots, the radix tree over them, and the one owner of both."""
