"""What an export is asked for: its options, and the time and memory that they take."""
