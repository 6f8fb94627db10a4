"""Length-direction decoupling, after the encyclopaedia article on batch normalization."""
