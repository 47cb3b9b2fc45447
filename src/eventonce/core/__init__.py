"""The law, and the code that plans, routes and judges events by it: pure, without any system."""
