"""Commands that train, and show what was trained."""
