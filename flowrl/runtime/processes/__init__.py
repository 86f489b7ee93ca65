"""Starting, watching and ending the processes of sites."""
