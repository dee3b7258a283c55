"""Several prompts side by side in one decoder: a step takes a token of each answer."""
