"""What a loader counts and reports while it runs."""
