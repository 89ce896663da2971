"""From what is asked to pixels: plans, decoders, and what is kept warm between reads."""
