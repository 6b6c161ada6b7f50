"""`feedline.Loader`."""
