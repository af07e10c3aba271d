"""How the parts of an agent are put together; one module for each group of them."""
