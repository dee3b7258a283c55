"""The request of an export: its options, and the time and memory that they need."""
