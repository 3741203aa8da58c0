"""A site's own efficiencies, fitted from what it measured."""
