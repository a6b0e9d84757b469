"""Terminal output: tables, pictures and the live display."""
