"""Steps from one version of the schema to the next.  Each file in `versions` is one."""
