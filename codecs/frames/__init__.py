"""Pictures and their samples: what they mean, as arrays, made of each other, compared."""
