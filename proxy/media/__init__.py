"""Media of a request: fetched, checked, kept for as long as the engine needs them."""
