"""A batch in the program's hands."""
