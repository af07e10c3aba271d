"""Shows what simulations tell: tables, curves of text, pictures, JSON."""
