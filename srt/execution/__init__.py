"""From a planned batch to sampled tokens."""
