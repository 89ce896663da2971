"""Audio: reads, decodes and encodes the audio streams of files and views."""
