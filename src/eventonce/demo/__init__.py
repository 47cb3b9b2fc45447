"""The story `eventonce demo` tells: a morning of calls, what arrives of it, and what becomes of it
under the usual recipes and under eventonce."""
