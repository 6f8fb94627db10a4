"""Length-direction decoupling, as the encyclopaedia article on batch normalization tells it."""
