"""gpushare uninstall."""
