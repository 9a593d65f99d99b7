"""Reasoning models: the thinking part of an answer, told apart from the rest."""
