"""The law and what plans, routes and judges events by it: pure, it touches no system."""
