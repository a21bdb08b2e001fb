"""The command line gpushare: a folder has the name of its command."""
