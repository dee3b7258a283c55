"""A bundle's data for drafts: candidates and successors, counted in answers of the model."""
