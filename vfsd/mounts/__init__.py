"""Starting, finding, asking and ending mounts, and the process that serves one."""
