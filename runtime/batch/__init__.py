"""Several prompts in one decoder at a time: a step takes a token of each answer."""
