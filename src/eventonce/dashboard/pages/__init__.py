"""The pages, one module each: a function from a request to a response."""
