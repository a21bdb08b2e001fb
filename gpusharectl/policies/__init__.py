"""How node policies compare: what each of them leaves, and for which pods it is too little."""
