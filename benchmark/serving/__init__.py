"""Serving benchmark: cases A to F against our server and against installed peers.

Run with benchmark/ on the module path: PYTHONPATH=benchmark python -m serving --help.
"""
