"""From a request to pixels: plans, decoders, caches."""
