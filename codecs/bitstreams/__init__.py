"""Parsers and writers of bitstreams: NAL units, parameter sets, slice headers, SEI messages."""
