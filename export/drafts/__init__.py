"""What a bundle has for drafts: candidates and successors, counted in answers of the model."""
