"""What a program says about its pipeline, as plain data."""
