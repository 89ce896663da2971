"""Tiles that become one stream without being encoded."""
