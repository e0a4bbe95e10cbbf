"""How much was rebuilt, beside what is proven."""
