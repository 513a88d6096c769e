"""Topics and channels: where messages wait, and who gets them."""
