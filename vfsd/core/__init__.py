"""The values that all other packages share: frame tables, time, views, detections."""
