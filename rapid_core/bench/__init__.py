"""`rapid bench`: transformers' own decoding and ours, side by side in one process."""
