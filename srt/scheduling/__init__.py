"""Queue order, admission, retraction and the scheduler's four verbs."""
