"""Whether bytes are still what they were, and which frames are lost with those that are not."""
