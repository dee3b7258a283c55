"""Running graphs of fixed sizes, which a bundle may have for a device beside its plain ones."""
