"""What is put into a store: files, pixels, tiles and renditions."""
