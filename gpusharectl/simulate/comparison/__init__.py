"""How node policies compare in a simulation."""
